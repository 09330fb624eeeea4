// The same prompts at several block sizes: what each run measured, side by side. Numbers come from Python (engine.comparison).

import { h, fmt, num } from './dom.js';

const COLUMNS = [
  ['Slots a block', m => fmt(m.block_size)], ['Waste', m => `${m.waste_percent.toFixed(1)} %`, 'Of the slots in blocks in use, those that hold no token: the average over all steps.'],
  ['Longest table', m => fmt(m.longest_table), 'Entries of the longest block table.'], ['Blocks at the peak', m => `${fmt(m.peak_blocks)} of ${fmt(m.num_blocks)}`],
  ['Tokens reused', m => fmt(m.hit_tokens), 'Prompt tokens found in the pool instead of computed.'], ['ms a step', m => m.step_ms.toFixed(1), 'Median wall clock of the steps, forward pass and bookkeeping.'],
];

// `measured`: one a recording; `shown`: the id of the one on the page.
export function compareBox(recording, made, { onOpen, onClose }) {
  const rows = recording.family.map(member => {
    const open = h('button', 'btn small', member.id === recording.id ? 'Shown' : 'Show', { type: 'button', 'aria-label': `Show block size ${member.label}` });
    open.disabled = member.id === recording.id;
    open.addEventListener('click', () => onOpen(member.id));
    return h('tr', member.id === recording.id ? 'on' : '', [...COLUMNS.map(([, cell], i) => h(i ? 'td' : 'th', '', num(cell(member.measured)), i ? {} : { scope: 'row' })), h('td', '', open)]);
  });
  const head = h('tr', '', [...COLUMNS.map(([name, , title]) => h('th', '', name, { scope: 'col', title })), h('th', '', h('span', 'vh', 'Show'))]);
  const close = h('button', 'btn small', 'Close', { type: 'button' });
  close.addEventListener('click', onClose);
  return h('div', 'keybox compare', [
    h('h3', '', 'The same prompts, four block sizes'), h('table', '', [h('thead', '', head), h('tbody', '', rows)]),
    h('p', '', `Measured when these were recorded: ${made}. Each pool has the same 1,024 slots.`), close,
  ], { role: 'dialog', 'aria-label': 'Comparison of block sizes' });
}
