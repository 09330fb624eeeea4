// The status line above the Stage (#status .pw-status, where the page has one): what runs, which step, how full, how fast.

import { h, num, fmt } from './dom.js';

export class Status {
  constructor() { this.signature = ''; }

  render({ header, running, step, newest, state, mirror, loading, moving }) {
    const host = document.querySelector('#status .pw-status');
    if (!host) return;
    const { recording } = header, has = mirror.live.requests.length > 0;
    const counts = (recording ? state : mirror.live).counts, ms = has && !recording ? lastMs(mirror.log) : null;
    const waiting = mirror.live.requests.filter(r => r.status === 'waiting').length;
    this.#buttons(running, Boolean(recording) || !mirror.live.requests.some(r => r.status !== 'finished'));
    const signature = JSON.stringify([running, recording && [recording.name, step, moving], newest, counts.used, has, ms, waiting, header.device, header.backend, loading]);
    if (signature === this.signature && host.firstChild) return;
    this.signature = signature;
    const parts = [], add = (...children) => parts.push(h('i', 'dotsep'), h('span', '', children));
    if (recording) {
      parts.push(live(moving, moving ? 'Playing a recording' : 'A recording'));
      add('step ', num(fmt(step)), ' of ', num(fmt(newest)));
    } else {
      parts.push(live(running, running ? 'Generating' : has ? 'Ready' : 'Nothing runs yet'));
      if (has) add('step ', num(fmt(newest)));
    }
    if (loading) add(`loading ${loading.name.replace(/-Instruct$/, '')}, `, num(fmt(loading.seconds)), ' s so far; Generate works when it is ready');
    else if (has) {
      add(num(fmt(counts.used)), ' of ', num(fmt(header.num_blocks)), ' blocks in use');
      if (waiting && !recording) add(num(fmt(waiting)), ' waiting');
      if (ms !== null) add(num(ms), ' ms a step');
    }
    host.replaceChildren(...parts, this.#device(header));
  }

  #buttons(running, nothingToStop) {
    document.querySelector('#pw-controls')?.toggleAttribute('data-running', running);
    for (const [id, off] of [['generate', running], ['step', running], ['stop', nothingToStop]]) {
      const button = document.querySelector(`button#${id}, #${id} button`);
      if (button) button.disabled = off;
    }
  }

  #device(header) {
    if (header.recording) {
      const made = `made on ${header.device === 'cpu' ? 'CPU' : header.device}, ${header.backend}, ${header.dtype}`;
      return h('span', 'right', h('span', '', made), { title: `${made}, Pagewalk ${header.version}` });
    }
    const device = [header.backend && `${header.backend} on ${header.device}`, header.dtype].filter(Boolean).join(', ');
    const why = header.backend_reason ? h('span', 'why', header.backend_reason) : '';
    return h('span', 'right', [why, h('span', '', device)], { title: header.backend_reason ?? device });
  }
}

const live = (on, text) => h('span', `live ${on ? 'on' : 'idle'}`, [h('i'), text]);

// Wall clock of the last steps, averaged so that the number can be read while it runs.
function lastMs(log) {
  let sum = 0, n = 0;
  for (let i = log.length - 1; i >= 0 && n < 16 && log.length - i < 600; i--) if (log[i][0] === 'StepTimed') { sum += log[i][4] + log[i][5] + log[i][6]; n++; }
  return n ? (sum / n).toFixed(sum / n < 10 ? 1 : 0) : null;
}
