// Tokens and block table: one scroller, so that a table entry always stands beside its block. Nodes are reused:
// a row is built once and only touched again when its signature (what it shows) changes.

import { h, fmt, colour, icon, visible, spoken, setText, setClass, setAttr } from './dom.js';
import { layout } from './folds.js';
import { list, readers } from './describe.js';

export class TokensPane {
  constructor(root) {
    this.host = root.querySelector('.rows');
    this.subtitle = root.querySelector('.tokens-size');
    this.root = root;
    this.parts = new Map();      // key -> { el, signature, update }
    this.opened = new Map();     // request id -> Set of logical blocks opened by hand
    this.end = h('i', 'end', '', { 'aria-hidden': 'true' });
    this.host.replaceChildren(this.end);
    // Says whether there is more below, without asking for a layout in every frame.
    new IntersectionObserver(([end]) => this.host.classList.toggle('more', !end.isIntersecting), { root: this.host, rootMargin: '0px 0px 12px 0px' }).observe(this.end);
  }

  reset() { this.parts.clear(); this.opened.clear(); this.host.replaceChildren(this.end); }

  open(id, first, last) {
    const rows = this.opened.get(id) ?? new Set();
    for (let i = first; i <= last; i++) rows.add(i);
    this.opened.set(id, rows);
  }

  close(id) { this.opened.delete(id); }

  // `pin`: { request, position, query } or null.
  render(state, pin, heights) {
    const plan = layout(state, { pin, opened: this.opened, heights }), wanted = [];
    this.state = state;
    this.pin = pin;
    for (const request of state.requests) {
      wanted.push(this.#part(`${request.id}/head`, () => head(request), headSignature(request), el => updateHead(el, request)));
      for (const run of plan.get(request.id)) {
        if (run.kind === 'row') {
          const signature = this.#rowSignature(request, run.first);
          wanted.push(this.#part(`${request.id}/${run.first}`, () => newRow(request, run.first, state.blockSize), signature, el => this.#updateRow(el, request, run.first)));
        } else {
          const signature = `${run.kind} ${run.first}-${run.last} ${request.table.slice(run.first, run.last + 1).join(' ')} ${request.table.length} ${request.length}`;
          wanted.push(this.#part(`${request.id}/fold${run.first}`, newFold, signature, el => this.#updateFold(el, request, run)));
        }
      }
    }
    if (!wanted.length) wanted.push(this.#part('none', () => h('p', 'none', 'No tokens yet. Pick an example or press Generate.'), '', () => {}));
    this.#place(wanted);
  }

  token(request, position) { return this.host.querySelector(`.tok[data-request="${request}"][data-position="${position}"]`); }
  cell(request, logical) { return this.host.querySelector(`.cell[data-request="${request}"][data-logical="${logical}"]`); }

  #part(key, make, signature, update) {
    let part = this.parts.get(key);
    if (!part) { part = { el: make(), signature: null }; this.parts.set(key, part); }
    part.used = true;
    if (part.signature !== signature) { part.signature = signature; update(part.el); }
    return part.el;
  }

  #place(wanted) {
    for (const [key, part] of this.parts) {
      if (part.used) part.used = false;
      else { part.el.remove(); this.parts.delete(key); }
    }
    let at = this.host.firstChild;
    for (const el of wanted) {
      if (el === at) at = at.nextSibling;
      else this.host.insertBefore(el, at);
    }
  }

  #rowSignature(r, logical) {
    const size = this.state.blockSize, first = logical * size, block = r.table[logical], pin = this.pin;
    const inRow = p => (p !== null && p >= first && p < first + size ? p : '');
    const mine = pin && pin.request === r.id;
    return [r.status,Math.min(r.length, first + size), Math.min(r.computed, first + size), block, block === undefined ? r.status : this.state.ref[block],
      mine ? inRow(pin.position) : '', mine ? inRow(pin.query) : ''].join(' ');
  }

  #updateRow(el, r, logical) {
    const { state, pin } = this, size = state.blockSize, first = logical * size, block = r.table[logical], held = block !== undefined;
    const texts = state.texts.get(r.id), [, line, , last] = el.children, mine = pin && pin.request === r.id;
    for (let k = 0; k < size; k++) {
      const p = first + k, slot = line.children[k];
      if (p < r.length) {
        const button = slot.tagName === 'BUTTON' ? slot : newToken(r, p, texts[p]);
        if (button !== slot) slot.replaceWith(button);
        const classes = ['tok'];
        if (p < r.numPrompt) classes.push('prompt');
        if (p >= r.computed) classes.push(held || r.status === 'running' ? 'unwritten' : 'ghost');
        if (mine && pin.position === p) classes.push('pinned');
        if (mine && pin.query === p) classes.push('query');
        setClass(button, classes.join(' '));
        setAttr(button, 'aria-pressed', mine && pin.position === p ? 'true' : null);
      } else {
        const span = slot.tagName === 'SPAN' ? slot : h('span');
        if (span !== slot) slot.replaceWith(span);
        setClass(span, held ? 'tok reserved' : '');
        setAttr(span, 'title', held ? `Reserved for ${r.id}, not written yet.` : null);
      }
    }
    if (held) {
      const cell = last.matches('.cell') ? last : newCell(r, logical);
      if (cell !== last) last.replaceWith(cell);
      updateCell(cell, r.id, logical, block, state.ref[block], mine && Math.floor(pin.position / size) === logical);
    } else if (r.status === 'finished' && r.was[logical] !== undefined) {
      const cell = last.matches('.cell') ? last : newCell(r, logical);
      if (cell !== last) last.replaceWith(cell);
      updateCell(cell, r.id, logical, r.was[logical], 0, mine && Math.floor(pin.position / size) === logical);
      cell.classList.add('former');
      setAttr(cell, 'title', `Given back when ${r.id} finished.`);
    } else {
      const none = last.matches('.nob') ? last : h('span', 'nob');
      if (none !== last) last.replaceWith(none);
      setText(none, r.status === 'running' ? 'no block yet' : '');
    }
  }

  #updateFold(el, r, { first, last, kind }) {
    const held = r.table.length > 0 || r.status === 'finished', n = last - first + 1, [, mini, , ids] = el.children, shown = Math.min(n, 48);
    colour(el, r.index);
    Object.assign(el.dataset, { request: r.id, first, last });
    mini.classList.toggle('dense', n > 24);
    while (mini.children.length > shown + 1) mini.firstChild.remove();
    while (mini.children.length < shown + 1) mini.insertBefore(h('i'), mini.lastChild);
    for (let i = 0; i < shown; i++) setClass(mini.children[i], held ? (kind === 'shared' ? 'sh' : '') : 'ghost');
    const who = kind === 'shared' ? readers(this.state, r.table[first]) : [];
    setText(mini.lastChild, kind === 'shared' ? `shared by ${list(who)}` : !held ? 'text kept' : n <= 4 ? `${fmt(Math.min(r.length, (last + 1) * this.state.blockSize) - first * this.state.blockSize)} tokens` : '');
    const blocks = (r.table.length ? r.table : r.status === 'finished' ? r.was : []).slice(first, last + 1);
    setText(ids, !blocks.length ? '' : blocks.length <= 2 ? blocks.join(', ') : `${blocks[0]} … ${blocks[blocks.length - 1]}`);
    setAttr(el, 'aria-label', `${r.id}, logical blocks ${first} to ${last}${kind === 'shared' ? `, shared by ${list(who)}` : ''}: show their tokens`);
  }
}

const headSignature = r => `${r.status} ${r.length} ${r.table.length} ${r.preemptedAt}`;

function head(r) {
  return colour(h('div', 'seq', [h('span', 'letter', r.id), h('span', 'prompt-of', r.parent ? `fork of ${r.parent}` : r.prompt, { title: r.prompt }), h('span', 'n'), h('span', 'blocks')]), r.index);
}

function updateHead(el, r) {
  const [, , n, blocks] = el.children, back = r.status === 'waiting' && r.preemptedAt !== null;
  setClass(n, back ? 'n bad' : 'n');
  setText(n, back ? `preempted at ${fmt(r.preemptedAt)}` : r.status === 'waiting' ? 'waiting' : `${fmt(r.length)} tokens`);
  setText(blocks, r.table.length === 1 ? '1 block' : r.table.length ? `${fmt(r.table.length)} blocks` : r.status === 'finished' ? 'finished' : 'no blocks');
}

function newRow(r, logical, size) {
  const line = h('div', 'toks');
  for (let k = 0; k < size; k++) line.append(h('span'));
  return colour(h('div', 'lrow', [h('span', 'base', logical * size), line, h('span'), h('span', 'nob')]), r.index);
}

export function newToken(r, position, text) {
  const shown = visible(text);
  return h('button', 'tok', shown.mark ? h('span', 'ws', shown.text) : shown.text, {
    type: 'button', 'data-request': r.id, 'data-position': position, tabindex: -1, title: `${r.id}:${position}  ${spoken(text)}`,
    'aria-label': `${r.id} ${position}: ${spoken(text)}`,
  });
}

export function newCell(r, logical) {
  const cell = h('button', 'cell', [h('span', 'i', logical), h('span', 'to', '→'), h('span', 'p'), h('span', 'ref')], { type: 'button', 'data-request': r.id, 'data-logical': logical, tabindex: -1 });
  return colour(cell, r.index);
}

export function updateCell(cell, id, logical, block, ref, pinned) {
  const [, , physical, count] = cell.children;
  setText(physical, String(block));
  setAttr(cell, 'data-physical', block);
  setText(count, ref > 1 ? `×${ref}` : '');
  count.hidden = ref < 2;
  setAttr(count, 'title', ref > 1 ? `${ref} sequences read this block` : null);
  setClass(cell, pinned ? 'cell pinned' : 'cell');
  setAttr(cell, 'aria-label', `${id} logical block ${logical} is physical block ${block}${ref > 1 ? `, shared by ${ref}` : ''}`);
}

export function newFold() {
  return h('button', 'fold', [h('span', 'base', icon('right')), h('span', 'mini', h('span')), h('span'), h('span', 'ids')], { type: 'button', 'aria-expanded': 'false', tabindex: -1 });
}
