// The walk: one orthogonal line with rounded corners from the token to its entry, the slot and the lookup's steps.
// It runs only in gaps, never across text. Drawn again whenever something under it moves. The pool's rings are drawn once
// more here: the line's casing would otherwise cut Plotly's.

import { svg, isPhone } from './dom.js';

function rounded(points, radius = 6) {
  let d = `M${points[0][0]} ${points[0][1]}`;
  for (let i = 1; i < points.length - 1; i++) {
    const [ax, ay] = points[i - 1], [x, y] = points[i], [bx, by] = points[i + 1];
    const before = Math.hypot(x - ax, y - ay), after = Math.hypot(bx - x, by - y), k = Math.min(radius, before / 2, after / 2);
    if (!before || !after) continue;
    d += `L${x - (x - ax) / before * k} ${y - (y - ay) / before * k}Q${x} ${y} ${x + (bx - x) / after * k} ${y + (by - y) / after * k}`;
  }
  const end = points[points.length - 1];
  return `${d}L${end[0]} ${end[1]}`;
}

// A block half outside of a zoomed window keeps its ring inside of it.
const clipped = (r, g) => { const x = Math.max(r.x, 1), y = Math.max(r.y, 1); return { x, y, w: Math.min(r.x + r.w, g.w) - x, h: Math.min(r.y + r.h, g.h) - y }; };
const grown = (r, by) => ({ x: r.x - by, y: r.y - by, width: r.w + 2 * by, height: r.h + 2 * by, rx: 2 });

// `numbers`: of the discs at the token, before and after the entry, and at the block ('' for none); the walk enters the
// lookup at the disc `enter` and ends at the disc `last`.
const DISCS = { numbers: ['1', '2', '3', '4'], enter: 5, last: 9 };

export class Walk {
  constructor(root, discs = DISCS) {
    this.root = root;
    this.discs = discs;
    this.svg = root.querySelector('.walk');
    this.drawn = '';
  }

  clear() { if (this.drawn) { this.svg.replaceChildren(); this.drawn = ''; } }

  // Draw the line once with motion: on pin.
  animate() { this.svg.classList.remove('draw'); void this.svg.getBoundingClientRect(); this.svg.classList.add('draw'); }

  // `pool`: the pool pane; `target`: { token, cell, block, offset }, elements or null. A walk that is not yet done has
  // `enter: false` (it stays at the slot) or `last`, the disc it has come to.
  draw(pool, target) {
    const paths = target && pool.g ? this.#paths(pool, target) : null;
    if (!paths) return this.clear();
    const key = JSON.stringify(paths);
    if (key === this.drawn) return;
    this.drawn = key;
    this.svg.classList.remove('draw');        // it moves once, on pin
    const nodes = [];
    for (const { d } of paths.lines) nodes.push(svg('path', { class: 'case', d }));
    if (paths.rings) nodes.push(svg('rect', { class: 'block', ...paths.rings.tile }));
    for (const { d } of paths.lines) nodes.push(svg('path', { class: 'line', d, pathLength: 1 }));
    if (paths.rings) nodes.push(svg('rect', { class: 'slotcase', ...grown(paths.rings.slot, 4) }), svg('rect', { class: 'slot', ...grown(paths.rings.slot, 2) }));
    for (const [x, y, n] of paths.discs) nodes.push(svg('circle', { cx: x, cy: y, r: 9 }), svg('text', { x, y: y + 0.5 }, n));
    this.svg.replaceChildren(...nodes);
  }

  #paths(pool, { token, cell, block, offset, enter = true, last: end = this.discs.last }) {
    const frame = this.root.getBoundingClientRect(), phone = isPhone(this.root), narrow = this.root.clientWidth <= 1056;
    const rel = element => {
      const r = element.getBoundingClientRect(), x = r.left - frame.left - 1, y = r.top - frame.top - 1;
      return { x, y, w: r.width, h: r.height, r: x + r.width, b: y + r.height, cx: x + r.width / 2, cy: y + r.height / 2 };
    };
    const within = (r, box) => r.cy > box.y - 2 && r.cy < box.b + 2;
    const rows = rel(this.root.querySelector('.rows')), body = rel(this.root.querySelector('.lookup .body')), wrap = rel(pool.wrap);
    const tok = token && rel(token), entry = cell && rel(cell), tokIn = tok && within(tok, rows), entryIn = entry && within(entry, rows);
    const g = pool.g, inPool = block !== null && g.level !== 'blocks' && pool.inWindow(block, offset), coarse = block !== null && g.level === 'blocks';
    const disc = n => enter && this.root.querySelector(`[data-disc="${n}"]`), first = disc(this.discs.enter), last = disc(end), { numbers } = this.discs;
    const five = first && rel(first), nine = last && rel(last), fiveIn = five && (phone || within(five, body));
    let rings = null;
    const lines = [], discs = [], add = points => {
      const snapped = points.map(p => p.map(v => Math.round(v * 2) / 2));
      lines.push({ d: rounded(snapped) });
    };

    if (tokIn && entryIn) {
      const gap = parseFloat(getComputedStyle(token.parentElement).rowGap) || 7, under = tok.b + gap / 2 + 1.5, turn = phone ? entry.x - 7 : entry.x - 14;
      add([[tok.r - 5, tok.b + 1], [tok.r - 5, under], [turn, under], [turn, entry.cy], [entry.x, entry.cy]]);
    }
    if (inPool) {
      const o = pool.origin, box = rel(pool.div), s = g.slot(block, offset), t = clipped(g.tile(block), g);
      const slot = { x: box.x + o.x + s.x, y: box.y + o.y + s.y, w: s.w, h: s.h }, tile = { x: box.x + o.x + t.x, y: box.y + o.y + t.y, w: t.w - 1, h: t.h - 1 };
      const up = Math.floor(offset / g.tc) < g.tr / 2, wide = g.gy > 16;
      const lane = up ? tile.y - (wide ? g.gy - 6 : g.gy / 2 + 0.5) : tile.y + tile.h + (wide ? 4 : g.gy / 2 + 0.5), lip = up ? slot.y - 3 : slot.y + slot.h + 3;
      const half = Math.max(2.5, Math.min(slot.w / 2 - 1, 5)), sx = Math.max(wrap.x + o.x + 8, Math.min(wrap.r - 8, slot.x + slot.w / 2));
      if (!phone) {
        const gutter = wrap.x + 2 - 12;
        if (entryIn) add([[entry.r, entry.cy], [gutter, entry.cy], [gutter, lane], [sx - half, lane], [sx - half, lip]]);
        if (fiveIn) {
          const g2 = wrap.r + (narrow ? 8 : 12), top = rel(this.root.querySelector('.pane.lookup')).y;
          add(narrow ? [[sx + half, lip], [sx + half, lane], [g2, lane], [g2, top], [8, top], [8, five.cy], [five.x, five.cy]] : [[sx + half, lip], [sx + half, lane], [g2, lane], [g2, five.cy], [five.x, five.cy]]);
        }
      } else {
        const rail = frame.width - 10;
        if (entryIn) add([[entry.r, entry.cy], [rail, entry.cy], [rail, lane], [sx + half, lane], [sx + half, lip]]);
        if (fiveIn) add([[sx - half, lip], [sx - half, lane], [5, lane], [5, five.cy], [five.cx, five.cy]]);
      }
      rings = { tile: { x: tile.x - 2, y: tile.y - 2, width: tile.w + 4, height: tile.h + 4, rx: 2 }, slot };
      discs.push([tile.x - 1, up ? tile.y + tile.h + 2 : tile.y - 2, numbers[3]]);
    } else if (coarse && entryIn && !phone) {
      const o = pool.origin, box = rel(pool.div), t = g.tile(block), y = box.y + o.y + t.y - 3, x = box.x + o.x + t.x + t.w / 2, gutter = wrap.x + 2 - 12;
      if (g.gy >= 2) add([[entry.r, entry.cy], [gutter, entry.cy], [gutter, y], [x, y]]);
    }
    if (five && nine && fiveIn) {
      const bottom = phone ? nine.y : Math.min(nine.y, body.b - 4);
      if (bottom > five.b) add([[five.cx, five.b], [five.cx, bottom]]);
    }
    if (tokIn) discs.unshift([tok.x - 4, tok.y - 3, numbers[0]]);
    if (entryIn) { discs.push([entry.x - 3, entry.cy, numbers[1]]); discs.push([entry.r + 4, entry.cy, numbers[2]]); }
    return { lines, discs: discs.filter(([, , n]) => n), rings };
  }
}
