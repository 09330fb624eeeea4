// The one line above the panes, only when the page must explain itself: a recording, where in time you are, what went wrong.

import { h, bold, fmt, icon, setText } from './dom.js';

export class Notice {
  constructor(root, { onNewest, onSeek, onOthers, onOwn, onOpen, onCompare }) {
    this.host = root.querySelector('.notice');
    Object.assign(this, { onNewest, onSeek, onOthers, onOwn, onOpen, onCompare, signature: '' });
  }

  // Trouble first, then a full pool in a recording, the recording, the past, a full pool (a preempted sequence waits), news.
  // Returns true when the line came or went, or its kind changed (the panes' height changes).
  render({ message, recording, state, step, newest, running, following }) {
    const past = step < newest && !following, victim = state.requests.find(r => r.status === 'waiting' && r.preemptedAt !== null);
    const what = message?.level === 'bad' ? ['bad', message.text]
      : recording ? (victim ? ['bad', fullPool(state, victim), victim.preemptedAt - 1] : ['recording', recording, message?.text])
        : past ? ['past', step, newest, running]
          : victim ? ['bad', fullPool(state, victim), victim.preemptedAt - 1]
            : message ? ['info', message.text] : null;
    const signature = JSON.stringify(what);
    if (signature === this.signature) return false;
    const before = `${this.host.hidden} ${this.host.className}`;
    if (what?.[0] === 'past' && this.pastText && this.host.classList.contains('past')) this.#move(step, newest, running);
    else {
      this.host.hidden = !what;
      this.pastText = null;
      if (what) {
        this.host.className = `notice ${what[0]}`;
        this.host.replaceChildren(...this.#content(what, step, newest, running));
      }
    }
    this.signature = signature;
    return before !== `${this.host.hidden} ${this.host.className}`;
  }

  #content(what, step, newest, running) {
    if (what[0] === 'past') return this.#past(step, newest, running);
    if (what[0] === 'recording') return this.#recording(what[1], what[2]);
    const [level, text, shown] = what;
    return shown === undefined ? noticeParts(level, text) : [...noticeParts(level, text), acts([`Show step ${fmt(shown)}`, () => this.onSeek(shown)])];
  }

  #recording(recording, news) {
    const start = recording.id ? 'A recording of a real run. ' : 'A recording from a file. ';
    const sizes = recording.family?.length ? [h('span', 'seg', recording.family.map(member => {
      const button = h('button', '', member.label, { type: 'button', 'aria-pressed': String(member.id === recording.id), 'aria-label': `Block size ${member.label}` });
      button.addEventListener('click', () => this.onOpen(member.id));
      return button;
    }), { role: 'group', 'aria-label': 'Block size' }), act('Compare', () => this.onCompare())] : [];
    return [icon('rec'), h('span', '', [bold(start), news ?? (recording.sentence || recording.name)]),
      h('span', 'acts', [...sizes, act('Other recordings', () => this.onOthers()), act('Start my own', () => this.onOwn())])];
  }

  #past(step, newest, running) {
    this.pastText = { step: bold(''), rest: h('span') };
    this.#move(step, newest, running);
    return [icon('past'), h('span', '', [this.pastText.step, this.pastText.rest]), acts(['Back to newest', () => this.onNewest()])];
  }

  // While somebody scrubs only the numbers change: the button keeps its focus.
  #move(step, newest, running) {
    setText(this.pastText.step, `You are at step ${fmt(step)}. `);
    setText(this.pastText.rest, running ? `The run goes on (step ${fmt(newest)}); everything below is as it was.` : `The run stands at step ${fmt(newest)}; everything below is as it was.`);
  }
}

function act(label, onClick) {
  const button = h('button', 'btn small', label, { type: 'button' });
  button.addEventListener('click', onClick);
  return button;
}
const acts = (...buttons) => h('span', 'acts', buttons.map(([label, onClick]) => act(label, onClick)));

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
