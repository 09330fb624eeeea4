// The events list: what the engine did up to the shown step, and why; newest first, a fixed number of nodes.

import { h, fmt, setText, setClass } from './dom.js';
import { glyph } from './glyphs.js';

const SHOWN = 40;

export class EventsPane {
  constructor(root, { onSeek }) {
    this.list = root.querySelector('.events ol');
    this.signature = '';
    this.list.addEventListener('click', event => { const row = event.target.closest('.ev'); if (row) onSeek(Number(row.dataset.step)); });
    this.list.addEventListener('keydown', event => this.#arrows(event));
  }

  render(story, step) {
    const end = story.upTo(step), last = story.entries[end - 1], signature = `${end} ${step} ${last ? last.what : ''}`;
    if (signature === this.signature) return;
    this.signature = signature;
    const focused = this.list.contains(document.activeElement), entries = story.entries.slice(Math.max(0, end - SHOWN), end).reverse();
    while (this.list.children.length > entries.length) this.list.lastChild.remove();
    entries.forEach((entry, i) => this.#fill(this.list.children[i] ?? this.list.appendChild(blank()), entry, step));
    const first = this.list.firstChild?.firstChild;
    if (first) first.tabIndex = 0;
    if (focused && !this.list.contains(document.activeElement)) first?.focus();   // its row is not shown any more
  }

  // One tab stop for the list, the newest event; up and down move in it.
  #arrows(event) {
    const rows = this.list.children, at = [...rows].indexOf(event.target.closest('li')), to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    rows[Math.max(0, Math.min(rows.length - 1, to))].firstChild.focus();
  }

  #fill({ firstChild: row }, entry, step) {
    const [at, shape, text] = row.children, [what, why] = text.children;
    setClass(row, `ev${entry.step === step ? ' now' : ''}${entry.bad ? ' bad' : ''}`);
    row.dataset.step = entry.step;
    setText(at, fmt(entry.step));
    if (shape.dataset.kind !== entry.kind) { shape.dataset.kind = entry.kind; shape.replaceChildren(glyph(entry.kind)); }
    setText(what, entry.what);
    setText(why, entry.why ? `: ${noBreak(entry.why)}.` : '.');
  }
}

const blank = () => h('li', '', h('button', 'ev', [h('span', 's'), h('span', 'g'), h('span', '', [h('b'), h('span', 'why')])], { type: 'button', tabindex: -1 }));
const noBreak = text => text.replace(/\d+ [%/] \d+ = \d+|n = \d+/g, match => match.replace(/ /g, '\u00a0'));
