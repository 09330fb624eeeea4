// The status line above the Stage (#status .pw-status, where the page has one): what runs, which step, how full, how fast.

import { h, num, fmt } from './dom.js';

export class Status {
  constructor() { this.signature = ''; }

  render({ header, running, newest, mirror }) {
    const host = document.querySelector('#status .pw-status');
    if (!host) return;
    const counts = mirror.live.counts, has = mirror.live.requests.length > 0, ms = has ? lastMs(mirror.log) : null;
    const waiting = mirror.live.requests.filter(r => r.status === 'waiting').length;
    const signature = [running, newest, counts.used, has, ms, waiting, header.device, header.backend].join(' ');
    const controls = document.querySelector('#pw-controls');
    if (controls) controls.toggleAttribute('data-running', running);
    for (const [id, off] of [['generate', running], ['step', running], ['stop', !mirror.live.requests.some(r => r.status !== 'finished')]]) {
      const button = document.querySelector(`button#${id}, #${id} button`);
      if (button) button.disabled = off;
    }
    if (signature === this.signature && host.firstChild) return;
    this.signature = signature;
    const parts = [h('span', `live ${running ? 'on' : 'idle'}`, [h('i'), running ? 'Generating' : has ? 'Ready' : 'Nothing runs yet'])];
    const add = (...children) => parts.push(h('i', 'dotsep'), h('span', '', children));
    if (has) {
      add('step ', num(fmt(newest)));
      add(num(fmt(counts.used)), ' of ', num(fmt(header.num_blocks)), ' blocks in use');
      if (waiting) add(num(fmt(waiting)), ' waiting');
      if (ms !== null) add(num(ms), ' ms a step');
    }
    const device = [header.backend && `${header.backend} on ${header.device}`, header.dtype].filter(Boolean).join(', ');
    const why = header.backend_reason ? h('span', 'why', header.backend_reason) : '';
    host.replaceChildren(...parts, h('span', 'right', [why, h('span', '', device)], { title: header.backend_reason ?? device }));
  }
}

// Wall clock of the last steps, averaged so that the number can be read while it runs.
function lastMs(log) {
  let sum = 0, n = 0;
  for (let i = log.length - 1; i >= 0 && n < 16 && log.length - i < 600; i--) if (log[i][0] === 'StepTimed') { sum += log[i][4] + log[i][5] + log[i][6]; n++; }
  return n ? (sum / n).toFixed(sum / n < 10 ? 1 : 0) : null;
}
