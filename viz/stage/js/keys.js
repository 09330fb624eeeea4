// Keys of the whole Stage, and roving focus over the tokens and the block table. Pool and slider have their own arrows.

import { h } from './dom.js';

export const KEYS = [
  ['← → ↑ ↓', 'move by token, table entry or slot'], ['Enter', 'look it up'], ['[  ]', 'one step back, forward'], ['{  }', 'event before, next event'], ['space', 'play or pause'],
  ['/', 'find a token'], ['+  −  0', 'zoom the pool, fit it'], ['a', 'ask the picture'], ['t', 'tour'], ['p', 'predict'], ['Esc', 'clear, leave'], ['?', 'this list'],
];

const LEARN = { a: 'ask', t: 'tour', p: 'predict' };

export function stageKeys(root, actions) {
  const rows = root.querySelector('.rows');

  // On document, so that [ and ] work wherever the page is clicked; never while somebody types.
  const onKey = event => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !root.isConnected || !root.offsetParent) return;
    const target = event.target, inside = root.contains(target), typing = target.closest?.('input, textarea, select, [contenteditable="true"]');
    if (event.key === 'Escape' && (inside || target === document.body)) return actions.clear();
    if (typing) return;
    if (!inside && target !== document.body) return;
    if (event.key === '[') actions.step(-1);
    else if (event.key === ']') actions.step(1);
    else if (event.key === '{') actions.event(-1);
    else if (event.key === '}') actions.event(1);
    else if (event.key === ' ' && !target.closest('button, summary, [role="slider"]')) { event.preventDefault(); actions.play(); }
    else if (event.key === '/') { event.preventDefault(); actions.find(); }
    else if (event.key === '?') actions.help();
    else if (LEARN[event.key]) { event.preventDefault(); actions.learn(LEARN[event.key]); }
  };
  document.addEventListener('keydown', onKey);

  rowKeys(rows);
  return () => document.removeEventListener('keydown', onKey);
}

// Arrows, Home and End move the focus over the tokens and the block table.
export function rowKeys(rows) {
  rows.addEventListener('keydown', event => {
    const by = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], Home: [-Infinity, 0], End: [Infinity, 0] }[event.key];
    const from = event.target.closest('button');
    if (!by || !from || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const next = neighbour(rows, from, by);
    if (next) { rove(rows, next); next.focus(); }
  });
  rows.addEventListener('focusin', event => { const button = event.target.closest('button'); if (button) rove(rows, button); });
}

// Exactly one button of the scroller is in the tab order.
export function rove(rows, button) {
  const old = rows.querySelector('button[tabindex="0"]');
  if (old === button) return;
  if (old) old.tabIndex = -1;
  if (button) button.tabIndex = 0;
}

export function ensureTabStop(rows) {
  if (!rows.querySelector('button[tabindex="0"]')) rove(rows, rows.querySelector('.tok[data-position]') ?? rows.querySelector('button'));
}

function neighbour(rows, from, [dx, dy]) {
  const same = from.matches('.tok') ? '.tok[data-position], .fold' : from.matches('.cell') ? '.cell' : 'button';
  const all = [...rows.querySelectorAll(same)], i = all.indexOf(from);
  if (dx && from.matches('.cell')) return dx < 0 ? from.closest('.lrow').querySelector('.tok[data-position]') : null;
  if (dx) return all[Math.max(0, Math.min(all.length - 1, i + dx))];
  const box = from.getBoundingClientRect(), x = box.left + box.width / 2;
  const beyond = all.filter(el => { const b = el.getBoundingClientRect(); return dy > 0 ? b.top >= box.bottom - 2 : b.bottom <= box.top + 2; });
  const nearest = beyond.reduce((y, el) => { const top = el.getBoundingClientRect().top; return y === null || (dy > 0 ? top < y : top > y) ? top : y; }, null);
  const line = beyond.filter(el => Math.abs(el.getBoundingClientRect().top - nearest) < 4);
  return line.sort((a, b) => Math.abs(centre(a) - x) - Math.abs(centre(b) - x))[0];
}
const centre = el => { const b = el.getBoundingClientRect(); return b.left + b.width / 2; };

export function helpBox(onClose) {
  const box = h('div', 'keybox', [h('h3', '', 'Keys'), h('dl', '', KEYS.flatMap(([key, text]) => [h('dt', '', key), h('dd', '', text)])), h('button', 'btn small', 'Close', { type: 'button' })], { role: 'dialog', 'aria-label': 'Keys' });
  box.querySelector('button').addEventListener('click', onClose);
  return box;
}
