// The one line above the panes, only when the page must explain itself: where in time you are, or what went wrong.

import { h, bold, fmt, icon } from './dom.js';

export class Notice {
  constructor(root, { onNewest, onSeek }) {
    this.host = root.querySelector('.notice');
    this.onNewest = onNewest;
    this.onSeek = onSeek;
    this.signature = '';
  }

  // Trouble first, then the past, then a full pool (a preempted sequence waits), then news. Returns true when the line came or went (the panes' height changes).
  render({ message, state, step, newest, running, following }) {
    const past = step < newest && !following;
    const victim = state.requests.find(r => r.status === 'waiting' && r.preemptedAt !== null);
    const what = message?.level === 'bad' ? ['bad', message.text] : past ? ['past', step, newest, running] : victim ? ['bad', fullPool(state, victim), victim.preemptedAt - 1] : message ? ['info', message.text] : null;
    const signature = JSON.stringify(what);
    if (signature === this.signature) return false;
    const before = this.host.hidden;
    this.signature = signature;
    this.host.hidden = !what;
    if (what) {
      this.host.className = `notice ${what[0]}`;
      this.host.replaceChildren(...(what[0] === 'past' ? this.#past(step, newest, running) : this.#said(what)));
    }
    return before !== this.host.hidden;
  }

  #said([level, text, step]) {
    if (step === undefined) return noticeParts(level, text);
    const show = h('button', 'btn small', `Show step ${fmt(step)}`, { type: 'button' });
    show.addEventListener('click', () => this.onSeek(step));
    return [...noticeParts(level, text), h('span', 'acts', show)];
  }

  #past(step, newest, running) {
    const back = h('button', 'btn small', 'Back to newest', { type: 'button' });
    back.addEventListener('click', this.onNewest);
    const rest = running ? `The run goes on (step ${fmt(newest)}); everything below is as it was.` : `The run stands at step ${fmt(newest)}; everything below is as it was.`;
    return [icon('past'), h('span', '', [bold(`You are at step ${fmt(step)}. `), rest]), h('span', 'acts', back)];
  }
}

// A sequence is preempted only when every block is in use.
function fullPool(state, victim) {
  const n = fmt(state.numBlocks);
  return `Pool full: ${n} of ${n} blocks in use; sequence ${victim.id} was preempted at step ${fmt(victim.preemptedAt)}. Add blocks or shorten a prompt.`;
}

// A bad notice is bold up to its first colon. Its text is data.
export function noticeParts(level, text) {
  const colon = level === 'bad' ? text.indexOf(':') : -1;
  return [icon(level === 'bad' ? 'warn' : 'past'), h('span', '', colon < 0 ? text : [bold(text.slice(0, colon + 1)), text.slice(colon + 1)])];
}
