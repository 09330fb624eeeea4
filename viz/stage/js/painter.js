// Paints blocks on a canvas, at every zoom level. Knows geometry and colours; no Plotly, no events.
// Hue is the sequence, pattern is the state: solid used, diagonal hatch reserved, cross hatch shared, dots cached, hollow free.

import { visible } from './dom.js';
import { COLOURS } from './state.js';

export function context(canvas, w, h, ratio = window.devicePixelRatio || 1) {
  const cw = Math.max(1, Math.round(w * ratio)), ch = Math.max(1, Math.round(h * ratio));
  if (canvas.width !== cw) canvas.width = cw;
  if (canvas.height !== ch) canvas.height = ch;
  const c = canvas.getContext('2d');
  c.setTransform(cw / w, 0, 0, ch / h, 0, 0);
  c.clearRect(0, 0, w, h);
  return c;
}

// What a small block looks like, as a number.
const look = (state, block) => Math.min(state.ref[block], 2) + (state.hashed[block] ? 4 : 0) + 8 * (state.owner[block] + 1);

// A pool of small tiles, painted before under the same geometry: only the blocks that look different now. `looks`: what was
// painted, an Int32Array that is kept up to date. Sixteen thousand tiles a frame would cost more than all the rest.
export function repaintPool(canvas, state, g, skin, looks, fade = -1) {
  const c = canvas.getContext('2d');
  for (let row = g.rows[0]; row <= g.rows[1]; row++) for (let column = g.columns[0]; column <= g.columns[1]; column++) {
    const block = row * g.grid.columns + column;
    if (block >= g.grid.num_blocks) break;
    const now = look(state, block);
    if (looks[block] === now) continue;
    looks[block] = now;
    repaintBlock(c, state, row, column, g, skin, fade);
  }
}

// Edges of tiles lie between pixels, so whole pixels are cleared, and the neighbours painted as far as they reach into them.
function repaintBlock(c, state, row, column, g, skin, fade) {
  const t = g.tile(row * g.grid.columns + column), x = Math.floor(t.x), y = Math.floor(t.y), w = Math.ceil(t.x + t.w) - x, h = Math.ceil(t.y + t.h) - y;
  c.save();
  c.beginPath(); c.rect(x, y, w, h); c.clip();
  c.clearRect(x, y, w, h);
  for (let r = Math.max(0, row - 1); r <= row + 1; r++) for (let k = Math.max(0, column - 1); k <= Math.min(column + 1, g.grid.columns - 1); k++) {
    const block = r * g.grid.columns + k;
    if (block < g.grid.num_blocks) paintBlock(c, state, block, g, skin, fade);
  }
  c.restore();
}

export const canRepaint = g => g.level === 'blocks' && g.tw < 8;   // no hatching, no letters, no badges
export const looksOf = state => Int32Array.from(state.ref, (_, block) => look(state, block));

// `state`: a CacheState (or the same arrays). `options`: fade = index of the sequence that stays while others step back.
export function paintPool(canvas, state, g, skin, options = {}) {
  const c = context(canvas, g.w, g.h, options.ratio);
  const each = paint => {
    for (let row = g.rows[0]; row <= g.rows[1]; row++) for (let column = g.columns[0]; column <= g.columns[1]; column++) {
      const block = row * g.grid.columns + column;
      if (block < g.grid.num_blocks) paint(block);
    }
  };
  const fade = g.tw < 8 ? options.fade ?? -1 : -1;
  each(block => paintBlock(c, state, block, g, skin, fade));
  if (g.cw >= 5 && g.level !== 'blocks') for (const slot of state.fresh) {
    const block = Math.floor(slot / g.grid.block_size);
    if (state.ref[block]) ring(c, g.slot(block, slot % g.grid.block_size), g.cw > 16 ? 2 : 1.5, skin.fresh);   // not where it was given back in the same step
  }
  if (g.level === 'tokens') each(block => paintText(c, state, block, g, skin));
  else if (g.tw >= 20) each(block => {
    if (state.ref[block] > 1) { const t = g.tile(block); badge(c, t.x + t.w - 3, t.y, String(state.ref[block]), skin); }
  });
  return canvas;
}

export function paintBlock(c, state, block, g, skin, fade = -1) {
  const t = g.tile(block), owner = state.owner[block], colour = owner < 0 ? -1 : owner % COLOURS;
  if (g.level === 'blocks') return paintSmall(c, state, block, t, colour, owner, skin, fade);
  const edge = { x: t.x, y: t.y, w: t.w - (g.cw >= 4 ? 1 : 0), h: t.h - (g.ch >= 4 ? 1 : 0) };
  if (state.ref[block]) {
    const k = Math.max(0, colour), n = state.filled[block], written = cells(g, block, 0, n), reserved = cells(g, block, n, g.grid.block_size);
    c.fillStyle = skin.colours[k];
    for (const r of written) c.fillRect(r.x, r.y, r.w, r.h);
    if (reserved.length) hatch(c, t, reserved, skin.reserved, 4, false);
    if (state.ref[block] > 1) hatch(c, t, written, skin.cross, 7, true, 1.2);
    outline(c, edge, skin.edges[k]);
  } else if (state.hashed[block]) {
    const tone = colour < 0 ? skin.cachedEarlier : skin.cached[colour];
    c.fillStyle = tone.fill;
    c.fillRect(edge.x, edge.y, edge.w, edge.h);
    dots(c, edge, tone.dot, 4, 0.9);
    c.setLineDash([2, 2]);
    outline(c, edge, tone.edge);
    c.setLineDash([]);
  } else {
    c.strokeStyle = skin.free;
    c.lineWidth = 1;
    c.strokeRect(t.x + 0.5, t.y + 0.5, t.w - 1, t.h - 1);
  }
}

// One tile a block: below 6 px a cell there is no room for slots. Letters from 14 px.
function paintSmall(c, state, block, t, colour, owner, skin, fade) {
  const fading = fade >= 0 && owner !== fade, k = Math.max(0, colour);
  if (state.ref[block]) {
    c.fillStyle = fading ? skin.faded[k] : skin.colours[k];
    c.fillRect(t.x, t.y, t.w, t.h);
    if (state.ref[block] > 1 && t.w >= 8) hatch(c, t, [t], skin.cross, 5, true, 1);
    if (t.w >= 10) { c.strokeStyle = skin.edges[k]; c.lineWidth = 1; c.strokeRect(t.x + 0.5, t.y + 0.5, t.w - 1, t.h - 1); }
    if (state.ref[block] === 1 && t.w >= 11.5 && t.h >= 10) {
      c.font = `700 10px ${skin.mono}`; c.textAlign = 'center'; c.textBaseline = 'middle'; c.fillStyle = skin.on[k];
      c.fillText(state.requests[owner].id, t.x + t.w / 2, t.y + t.h / 2 + 0.5);
    }
  } else if (state.hashed[block]) {
    const tone = colour < 0 ? skin.cachedEarlier : skin.cached[colour];
    c.fillStyle = t.w < 8 ? (fading ? skin.fadedCached : tone.small) : tone.fill;
    c.fillRect(t.x, t.y, t.w, t.h);
    if (t.w >= 8) dots(c, t, tone.dot, 4, 0.9);
  } else if (t.w >= 6) {
    c.strokeStyle = skin.free; c.lineWidth = 1; c.strokeRect(t.x + 0.5, t.y + 0.5, t.w - 1, t.h - 1);
  } else {
    c.fillStyle = fade >= 0 ? skin.fadedFree : skin.freeSmall;
    c.fillRect(t.x, t.y, t.w, t.h);
  }
}

function paintText(c, state, block, g, skin) {
  if (!state.ref[block]) return;
  const request = state.requests[state.owner[block]], texts = request && state.texts.get(request.id);
  if (!texts) return;
  const k = request.index % COLOURS, first = state.logical[block] * g.grid.block_size;
  c.textBaseline = 'middle';
  c.textAlign = 'left';
  c.font = `${g.cw >= 44 ? 12 : 11}px ${skin.font}`;
  for (let offset = 0; offset < state.filled[block]; offset++) {
    const text = texts[first + offset];
    if (text === undefined) continue;
    const q = g.slot(block, offset), pad = g.cw < 24 ? 2 : 4, shown = shorten(c, visible(text).text, q.w - 2 * pad + 1);
    c.save();
    c.beginPath(); c.rect(q.x + 2, q.y, q.w - 3, q.h); c.clip();
    if (state.ref[block] > 1) {                                   // quiet ground under text on a cross hatch
      c.fillStyle = skin.colours[k];
      c.fillRect(q.x + 2, q.y + q.h / 2 - 8, Math.min(c.measureText(shown).width + 4, q.w - 3), 16);
    }
    c.fillStyle = skin.on[k];
    c.fillText(shown, q.x + pad, q.y + q.h / 2 + 0.5);
    c.restore();
  }
}

function shorten(c, text, width) {
  if (c.measureText(text).width <= width) return text;
  let n = Math.min(text.length - 1, Math.max(1, Math.floor(width / 4)));
  while (n > 1 && c.measureText(`${text.slice(0, n)}…`).width > width) n--;
  return `${text.slice(0, n)}…`;
}

function cells(g, block, from, to) {
  const list = [];
  for (let offset = from; offset < to; offset++) list.push(g.slot(block, offset));
  return list;
}

const outline = (c, r, colour) => { c.strokeStyle = colour; c.lineWidth = 1; c.strokeRect(r.x - 0.5, r.y - 0.5, r.w + 1, r.h + 1); };

function ring(c, q, width, colour) {
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.strokeRect(q.x + width / 2 + 0.5, q.y + width / 2 + 0.5, q.w - width - 1, q.h - width - 1);
}

export function hatch(c, box, rects, colour, gap, both, width = 1) {
  c.save();
  c.beginPath();
  for (const r of rects) c.rect(r.x, r.y, r.w, r.h);
  c.clip();
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.beginPath();
  for (let d = -box.h; d < box.w + box.h; d += gap) {
    c.moveTo(box.x + d, box.y + box.h); c.lineTo(box.x + d + box.h, box.y);
    if (both) { c.moveTo(box.x + d, box.y); c.lineTo(box.x + d + box.h, box.y + box.h); }
  }
  c.stroke();
  c.restore();
}

function dots(c, box, colour, gap, radius) {
  c.save();
  c.beginPath(); c.rect(box.x, box.y, box.w, box.h); c.clip();
  c.fillStyle = colour;
  c.beginPath();
  let row = 0;
  for (let y = box.y + gap / 2; y < box.y + box.h; y += gap, row++) {
    for (let x = box.x + gap / 2 + (row % 2 ? gap / 2 : 0); x < box.x + box.w + radius; x += gap) { c.moveTo(x + radius, y); c.arc(x, y, radius, 0, 7); }
  }
  c.fill();
  c.restore();
}

function badge(c, x, y, text, skin, size = 13) {
  c.font = `700 11px ${skin.mono}`;
  const w = Math.max(size + 4, c.measureText(text).width + 6);
  c.fillStyle = skin.bg; c.beginPath(); c.roundRect(x - w / 2 - 1, y - size / 2 - 1, w + 2, size + 2, 4); c.fill();
  c.fillStyle = skin.ink; c.beginPath(); c.roundRect(x - w / 2, y - size / 2, w, size, 3); c.fill();
  c.fillStyle = skin.bg; c.textAlign = 'center'; c.textBaseline = 'middle'; c.fillText(text, x, y + 0.5);
}

// A little block for the legend and the pieces board: { ref, owner, filled, hashed } on 8 slots.
export function swatch(block, skin, cell = { w: 4, h: 6 }) {
  const canvas = document.createElement('canvas'), w = 4 * cell.w + 1, h = 2 * cell.h + 1, c = context(canvas, w, h, Math.max(2, window.devicePixelRatio || 1));
  const tile = () => ({ x: 0.5, y: 0.5, w: 4 * cell.w, h: 2 * cell.h });
  const g = { level: 'slots', cw: cell.w, ch: cell.h, grid: { block_size: 8 }, tile, slot: (_, i) => ({ x: 0.5 + (i % 4) * cell.w, y: 0.5 + Math.floor(i / 4) * cell.h, w: cell.w - 1, h: cell.h - 1 }) };
  paintBlock(c, oneBlock(block), 0, g, skin);
  Object.assign(canvas.style, { width: `${w}px`, height: `${h}px` });
  return canvas;
}

export const oneBlock = ({ ref = 0, owner = -1, filled = 0, hashed = 0, fresh = [] }) =>
  ({ ref: [ref], owner: [owner], filled: [filled], hashed: [hashed], logical: [0], fresh, requests: [], texts: new Map() });
