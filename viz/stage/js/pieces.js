// The pieces board: specimens of every part in every state, made by the functions that the Stage uses.

import { h, bold, colour, css } from './dom.js';
import { newToken, newCell, updateCell, newFold } from './tokens.js';
import { geometry } from './geometry.js';
import { paintPool, oneBlock } from './painter.js';
import { glyph } from './glyphs.js';
import { noticeParts } from './notice.js';
import { readSkin } from './skin.js';

const sequence = index => ({ id: 'ABCDEFG'[index], index });
const spec = (node, name, note) => h('div', 'spec', [h('div', 'sbox', node), h('div', '', [bold(name), h('p', '', note ?? '')])]);
const specs = list => h('div', 'specs', list.map(item => spec(...item)));
const card = (title, text, ...children) => h('section', 'bcard', [h('div', 'bhead', [h('h2', '', title), h('p', '', text)]), ...children]);

function token(text, classes = '', index = 0) {
  const button = newToken(sequence(index), 0, text);
  button.className = `tok ${classes}`.trim();
  return colour(button, index);
}

function reserved() { const e = colour(h('span', 'tok reserved'), 0); e.style.width = '48px'; return e; }
function hovered(element) { element.setAttribute('data-hover', ''); return element; }

function cell(logical, block, { ref = 1, pinned = false, index = 0, former = false } = {}) {
  const button = newCell(sequence(index), logical);
  updateCell(button, sequence(index).id, logical, block, ref, pinned);
  if (former) button.classList.add('former');
  return button;
}

function fold(n, kind, index = 0) {
  const mini = newFold().children[1];
  for (let i = 0; i < n; i++) mini.insertBefore(h('i', kind), mini.lastChild);
  const box = h('span', 'fold', mini);
  Object.assign(box.style, { display: 'block', width: '96px', height: 'auto', paddingTop: '6px' });
  return colour(box, index);
}

const GRID = { columns: 1, rows: 1, num_blocks: 1, block_size: 16, cell_columns: 8, cell_rows: 2 };
function tile(block, skin, { pin, hover } = {}) {
  const box = h('div', 'bpool', h('canvas')), g = geometry(GRID, { x0: 0, x1: 1, y0: 0, y1: 1 }, 72, 40);
  paintPool(box.firstChild, oneBlock(block), g, skin);
  const ring = (r, by, width, casing) => { const i = h('i', 'bring'); Object.assign(i.style, { left: `${r.x - by}px`, top: `${r.y - by}px`, width: `${r.w + 2 * by}px`, height: `${r.h + 2 * by}px`, borderWidth: `${width}px`, outlineWidth: `${casing}px` }); box.append(i); };
  if (hover) ring(g.tile(0), 3, 1.5, 0);
  if (pin !== undefined) ring(g.slot(0, pin), 2, 3, 1.5);
  return box;
}

function notice(level, text) { const n = h('div', `notice ${level}`, noticeParts(level, text)); return n; }
function note(title, text) { return h('div', 'tip', [h('div', '', title), text ? h('div', 'sub', text) : '']); }
function type(font, family) { const e = h('span', '', family === '--font-mono' ? '0x7f2e' : 'Token'); e.style.cssText = `font: ${font} var(${family}); white-space: nowrap`; return e; }

function build(root) {
  const skin = readSkin(root), grid = h('div', 'pgrid'), focused = token('history');
  focused.style.cssText = 'outline: 2px solid var(--color-accent); outline-offset: 2px; border-radius: 4px';
  const query = token('French', 'query');
  query.style.minWidth = '64px';
  const swatch = ([variable, name]) => { const i = h('i', 'swatch'); i.style.background = `var(${variable})`; return [i, name, css(root, variable)]; };
  grid.append(
    card('Token', '20 px cell, 3 px bar in the sequence colour', specs([
      [token('capital', 'prompt'), 'prompt', 'subdued text'], [token('history'), 'generated', 'body text'], [hovered(token('history')), 'hover', '1.5 px ink'],
      [token('history', 'pinned'), 'pinned', '3 px ink, bold'], [query, 'query', 'inset ring, letter q'], [token('From', 'unwritten'), 'sampled', 'italic, dashed bar: no slot yet'],
      [reserved(), 'reserved', 'hatched bar, no text'], [token('t', 'ghost', 1), 'no block', 'hollow bar'], [token('\n'), 'newline', 'also ␣ for a space'],
      [focused, 'keyboard focus', '2 px accent, 2 px off'], [token({ hex: 'e280' }), 'bytes', 'no text alone'], [token(''), 'empty', 'a mark, never nothing'],
    ])),
    card('Block table and folds', 'logical → physical; one entry beside each block of tokens', specs([
      [cell(1, 12), 'entry', 'index, arrow, id'], [hovered(cell(1, 12)), 'hover', 'secondary fill'], [cell(1, 12, { pinned: true }), 'pinned', '3 px ink'],
      [cell(0, 31, { ref: 2, index: 1 }), 'shared', 'count of readers'], [fold(4, ''), 'fold', 'rows that do not fit'], [fold(2, 'sh', 1), 'fold, shared', 'cross hatch'],
      [fold(4, 'ghost'), 'fold, no blocks', 'hollow'], [cell(1, 12, { former: true }), 'given back', 'the request has finished'],
    ])),
    card('Block and slot', 'always 8 cells wide; each state is a pattern as well as a tone', specs([
      [tile({}, skin), 'free', '1 px outline, hollow'], [tile({ ref: 1, owner: 0, filled: 16 }, skin), 'used', 'solid, darker edge'],
      [tile({ ref: 1, owner: 0, filled: 10 }, skin), 'reserved slots', 'diagonal hatch, 4 px'], [tile({ ref: 1, owner: 0, filled: 10, fresh: [9] }, skin), 'just written', 'white ring inside, one step long'],
      [tile({ ref: 2, owner: 1, filled: 16 }, skin), 'shared', 'cross hatch 7 px, reference count'], [tile({ hashed: 1, owner: 1, filled: 16 }, skin), 'cached', 'dots, dashed edge'],
      [tile({ hashed: 1, owner: -1, filled: 16 }, skin), 'cached, older run', 'grey dots'], [tile({ ref: 1, owner: 2, filled: 16 }, skin, { hover: true }), 'hover', '1.5 px ink around the block'],
      [tile({ ref: 1, owner: 0, filled: 16 }, skin, { pin: 1 }), 'pinned slot', '3 px ink, 1.5 px halo'],
    ])),
    card('Events', 'shape first, colour only for trouble', specs([
      ['alloc', 'allocate', 'a tick in the lane'], ['finish', 'finish', 'blocks go back'], ['hit', 'prefix hit', 'cached blocks are reused'], ['add', 'join', 'a new sequence'],
      ['miss', 'prefix miss', 'what kept a block from being reused'], ['copy', 'copy on write', 'a part-filled block that others read'], ['fork', 'fork', 'a second sequence from one prompt'],
      ['evict', 'evict', 'a cached block is reused'], ['refused', 'refused', ''], ['preempt', 'preempt', ''], ['resume', 'resume', 'recompute'],
    ].map(([kind, name, text]) => [glyph(kind), name, text]))),
    card('Colour', 'values of the theme now showing', specs([
      ['--body-background-fill', 'body'], ['--background-fill-primary', 'primary'], ['--background-fill-secondary', 'secondary'], ['--border-color-primary', 'border'],
      ['--body-text-color', 'text'], ['--body-text-color-subdued', 'subdued'], ['--color-accent', 'accent'], ['--color-accent-soft', 'accent soft'], ['--pw-ink', 'ink'],
      ['--error-text-color', 'error'], ...[1, 2, 3, 4, 5, 6, 7].map(i => [`--pw-seq-${i}`, `sequence ${sequence(i - 1).id}`]),
    ].map(swatch))),
    card('Type', 'words in the system UI font; numbers and ids in mono, tabular', specs([
      ['600 20px/28px', '20 title'], ['600 15px/24px', '15 heading'], ['600 13px/20px', '13 pane title'], ['13px/20px', '13 body'], ['12px/16px', '12 labels, tokens'], ['11px/16px', '11 axes, the least'],
      ['700 13px/20px', '13 result', 1], ['12px/16px', '12 arithmetic', 1], ['11px/16px', '11 axes, ids', 1],
    ].map(([font, name, mono]) => [type(font, mono ? '--font-mono' : '--font'), name]))),
  );
  const messages = card('Messages', 'what happened, the numbers, what to do',
    notice('bad', 'Pool full: 256 of 256 blocks in use; sequence B was preempted at step 83. Add blocks or shorten a prompt.'),
    notice('bad', 'Not a recording: expected version 1, got 3.'), notice('info', 'Waiting for a GPU: place 2 in the queue.'),
    h('div', 'msgs', [
      note([bold('block 41'), ' is free: no sequence maps to it.']), note([bold('slot 174'), ' is reserved for A, not written yet.']),
      note([bold('A:76'), ' was sampled in this step and has no slot yet.'], 'It gets one when it is read in the next step.'),
      note([bold('slot 812'), ' belongs to A:1009 now.'], 'The bytes shown are those captured at step 41.'), note('No tokens yet. Pick an example or press Generate.'), note('No GPU: running the reference path on CPU.'),
    ]));
  messages.classList.add('wide');
  grid.append(messages);
  root.replaceChildren(h('div', 'btitle', [h('h1', '', 'Pieces'), h('p', '', 'Every part of the Stage in every state it can have. Build these first; the page is their arrangement.')]), grid);
}

window.Pagewalk = Object.assign(window.Pagewalk ?? {}, {
  pieces(element) {
    const root = element.querySelector('.board'), draw = () => build(root);
    draw();
    document.fonts?.ready.then(draw);
    new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ['class'] });
    root.dataset.ready = '';
  },
});
