// The pool pane: paints the canvas, hands it to Plotly's image trace, keeps view, rings, captions and labels right.
// The view (zoom and pan) lives in Plotly's axes; whoever changes them, the picture is painted again for the new window.
// The canvas itself is what one sees, under Plotly's transparent figure: encoding it for the trace takes longer than painting
// it, so the trace's own picture, which exports and scripts read, follows at 4 Hz and when somebody asks (`sync`).

import { h, fmt } from './dom.js';
import { geometry, fitView, viewAt, zoomTarget, slotsZoom, panned, isFit, SLOT_CELL } from './geometry.js';
import { paintPool, repaintPool, canRepaint, looksOf } from './painter.js';
import { blockCaption } from './describe.js';

const XLINK = 'http://www.w3.org/1999/xlink';
const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false, doubleClick: false };

const MOST_MARKS = 512;
const SETTLE = {}, SETTLE_MS = 160;      // no view equals SETTLE: the next draw is a full one
const ENCODE_MS = 250;

export class PoolPane {
  constructor(root, { onView }) {
    this.div = root.querySelector('.pool');
    this.wrap = root.querySelector('.poolwrap');
    this.zoomButtons = [...root.querySelectorAll('.zoom button')];
    this.subtitle = root.querySelector('.pool-size');
    this.onView = onView;
    this.canvas = h('canvas', 'picture', '', { 'aria-hidden': 'true' });
    this.wrap.prepend(this.canvas);
    this.encoded = 0;
    this.map = h('div', 'minimap', [h('canvas'), h('i')], { 'aria-hidden': 'true', hidden: '' });
    this.wrap.append(this.map);
    this.grid = null;
    this.view = null;
    this.painted = {};
    this.draws = 0;
    for (const button of this.zoomButtons) button.addEventListener('click', () => this.zoomTo(button.dataset.level));
  }

  // The canvas can be drawn from now on; Plotly's part comes with `plot`.
  setFigure(figure) {
    this.figure = figure;
    this.grid = figure.layout.meta;
    this.view = fitView(this.grid);
    this.plotted = false;
    this.painted = {};
    this.looks = null;
    this.subtitle.textContent = `${fmt(this.grid.num_blocks)} × ${this.grid.block_size} ${this.grid.block_size === 1 ? 'slot' : 'slots'}`;
    this.measure();
  }

  async plot() {
    const { figure } = this, { width, height } = this.size;
    const bare = { tickvals: [], ticktext: [] };     // a thousand labels would be measured here, only to be thinned out
    const layout = { ...figure.layout, xaxis: { ...figure.layout.xaxis, ...bare }, yaxis: { ...figure.layout.yaxis, ...bare }, width, height };
    await window.Plotly.newPlot(this.div, figure.data, layout, CONFIG);
    // `.pool` is the graph div: a test, or a console, may move the axes with Plotly.relayout
    this.div.on('plotly_relayout', change => { if (!this.busy && Object.keys(change).some(k => /axis\d*\.(range|autorange)/.test(k))) this.#adopt(); });
    this.painted = {};
    this.plotted = true;
  }

  // At the head of a frame, before anything is written: asked for later, it would cost a layout of its own.
  measure() { this.shown = this.wrap.clientWidth > 0; this.size = { width: Math.max(120, this.wrap.clientWidth), height: Math.max(120, this.wrap.clientHeight) }; }

  #plot(width, height) {
    const m = this.figure.layout.margin;
    return { w: width - m.l - m.r, h: height - m.t - m.b };
  }

  #adopt() {
    const { xaxis, yaxis } = this.div._fullLayout;
    this.setView({ x0: xaxis.range[0], x1: xaxis.range[1], y0: yaxis.range[1], y1: yaxis.range[0] });
  }

  setView(view) { this.view = view; this.onView(); }
  fit() { this.setView(fitView(this.grid)); }

  get zoom() { return this.grid.columns / (this.view.x1 - this.view.x0); }

  zoomAround(zoom, focus, at) {
    const { w, h } = this.g;
    this.setView(viewAt(this.grid, w, h, zoom, focus, at));
  }

  zoomBy(factor, px, py) {
    const g = this.g, focus = { x: g.toX(px), y: g.toY(py) };
    this.zoomAround(this.zoom * factor, focus, { x: px / g.w, y: py / g.h });
  }

  panBy(dx, dy) { this.setView(panned(this.grid, this.view, -dx / this.g.px, -dy / this.g.py)); }

  zoomToBlock(block, level) {
    const zoom = level === 'tokens' ? zoomTarget(this.grid, this.g.w, this.g.h).x : slotsZoom(this.grid, this.g.w, this.g.h) * 1.25;
    this.zoomAround(zoom, { x: block % this.grid.columns + 0.5, y: Math.floor(block / this.grid.columns) + 0.5 });
  }

  // The segmented control. Blocks: everything. Slots: everything, or the pinned block with its slots. Tokens: the pinned block.
  zoomTo(level) {
    const block = this.focusBlock?.() ?? 0;
    if (level === 'tokens') this.zoomToBlock(block, 'tokens');
    else if (level === 'slots' && slotsZoom(this.grid, this.g.w, this.g.h) > 1) this.zoomToBlock(block, 'slots');
    else this.fit();
    this.coarse = level === 'blocks';
    this.onView();
  }

  // Bring a block into the window where a zoomed view misses it.
  reveal(block) {
    if (!this.g || isFit(this.grid, this.view)) return;
    const x = block % this.grid.columns, y = Math.floor(block / this.grid.columns), v = this.view;
    if (x < v.x0 - 0.1 || x + 1 > v.x1 + 0.1 || y < v.y0 - 0.1 || y + 1 > v.y1 + 0.1) this.zoomAround(this.zoom, { x: x + 0.5, y: y + 0.5 });
  }

  // `scene`: { state, version, pin: {block, offset} | null, hover, fade, marks: blocks to ring | null }
  draw(scene, skin) {
    if (!this.grid || !this.shown) return;
    if (this.busy) { this.again = [scene, skin]; return; }
    const { width, height } = this.size, { w, h } = this.#plot(width, height), p = this.painted;
    const moved = p.view !== this.view || p.width !== width || p.height !== height || p.coarse !== this.coarse;
    const fresh = moved || p.version !== scene.version || p.state !== scene.state || p.skin !== skin || p.fade !== scene.fade;
    if (moved) this.g = this.#geometry(w, h);
    const rings = JSON.stringify([scene.pin, scene.hover, scene.marks]), labels = moved || p.rings !== rings || p.skin !== skin || (fresh && this.g.level === 'tokens');
    if (fresh) {
      if (!moved && p.skin === skin && p.fade === scene.fade && this.looks?.length === scene.state.ref.length) repaintPool(this.canvas, scene.state, this.g, skin, this.looks, scene.fade);
      else {
        paintPool(this.canvas, scene.state, this.g, skin, { fade: scene.fade });
        this.looks = canRepaint(this.g) ? looksOf(scene.state) : null;
      }
      if (moved) this.#lay();
      this.#encodeLater();
      this.draws++;
    }
    this.painted = { view: this.view, width, height, coarse: this.coarse, version: scene.version, state: scene.state, skin, fade: scene.fade, rings };
    const panning = moved && p.view && p.view !== SETTLE && p.skin === skin && p.width === width && p.height === height && p.coarse === this.coarse;
    if (this.plotted) {
      if (panning) this.#follow(scene, skin);
      else if (moved || p.skin !== skin) this.#plotly(width, height, scene, skin);
      else if (labels && !this.settling) window.Plotly.relayout(this.div, { shapes: this.#shapes(scene, skin), annotations: this.#captions(scene, skin), ...this.#ticks(scene, skin) });
    }
    if (fresh) this.#minimap(scene, skin);
    this.wrap.dataset.level = this.g.level;
    for (const button of this.zoomButtons) button.setAttribute('aria-pressed', String(button.dataset.level === this.g.level));
  }

  #geometry(w, h) {
    const g = geometry(this.grid, this.view, w, h);
    return this.coarse && isFit(this.grid, this.view) && g.level === 'slots' ? geometry({ ...this.grid, coarse: true }, this.view, w, h) : g;
  }

  // Puts the canvas where the plot area is.
  #lay() {
    const { l, t } = this.figure.layout.margin, { style } = this.canvas;
    Object.assign(style, { left: `${l}px`, top: `${t}px`, width: `${this.g.w}px`, height: `${this.g.h}px` });
  }

  #encodeLater() {
    if (this.encoding) return;
    this.encoding = setTimeout(() => this.sync(), Math.max(0, ENCODE_MS - (performance.now() - this.encoded)));
  }

  // The trace's picture is the canvas of now.
  sync() {
    clearTimeout(this.encoding);
    this.encoding = 0;
    this.encoded = performance.now();
    this.url = this.canvas.toDataURL();
    this.#swap();
  }

  // Window, size or colours changed: one Plotly.update.
  #plotly(width, height, scene, skin) {
    const v = this.view, { canvas } = this, dx = (v.x1 - v.x0) / canvas.width, dy = (v.y1 - v.y0) / canvas.height;
    const layout = {
      width, height, 'xaxis.range': [v.x0, v.x1], 'yaxis.range': [v.y1, v.y0], 'xaxis.autorange': false, 'yaxis.autorange': false,
      'font.family': skin.mono, 'font.color': skin.subdued, shapes: this.#shapes(scene, skin), annotations: this.#captions(scene, skin), ...this.#ticks(scene, skin),
    };
    this.busy = true;
    const done = window.Plotly.update(this.div, { x0: [v.x0 + dx / 2], dx: [dx], y0: [v.y0 + dy / 2], dy: [dy] }, layout, [0]);
    done.catch(() => {}).then(() => {
      this.busy = false;
      this.#swap();                        // Plotly has put back the picture that it knew when the update began
      if (this.again) { const args = this.again; this.again = null; this.draw(...args); }
    });
  }

  // While the window moves: ranges and rings only, 10 ms instead of 60. Labels, captions and the trace's own numbers
  // follow when it has come to rest.
  #follow(scene, skin) {
    const v = this.view;
    this.busy = true;
    window.Plotly.relayout(this.div, { 'xaxis.range': [v.x0, v.x1], 'yaxis.range': [v.y1, v.y0], shapes: this.#shapes(scene, skin) }).catch(() => {}).then(() => {
      this.busy = false;
      const node = this.div.querySelector('.imagelayer image');
      if (node) for (const [name, value] of Object.entries({ x: 0, y: 0, width: this.g.w, height: this.g.h })) node.setAttribute(name, value);
      if (this.again) { const args = this.again; this.again = null; this.draw(...args); }
    });
    clearTimeout(this.settle);
    this.settling = true;
    this.settle = setTimeout(() => { this.settling = false; this.painted.view = SETTLE; this.onView(); }, SETTLE_MS);
  }

  // The same window, a new picture: swap the href of the <image> that Plotly made (a restyle costs ten times as much).
  #swap() {
    const node = this.div.querySelector('.imagelayer image');
    if (!node || !this.url) return;
    if (node.getAttributeNS(XLINK, 'href') !== this.url) node.setAttributeNS(XLINK, 'href', this.url);
    this.div.data[0].source = this.div._fullData[0].source = this.url;
  }

  #rect(r, grow, line, extra) {
    const g = this.g;
    return { type: 'rect', x0: g.toX(r.x - grow), x1: g.toX(r.x + r.w + grow), y0: g.toY(r.y - grow), y1: g.toY(r.y + r.h + grow), line, ...extra };
  }

  #shapes({ pin, hover, marks }, skin) {
    const g = this.g, shapes = [];
    const tile = block => { const t = g.tile(block); return { x: t.x, y: t.y, w: t.w - 1, h: t.h - 1 }; };
    for (const block of (marks ?? []).slice(0, MOST_MARKS)) shapes.push(this.#rect(tile(block), 2, { color: skin.ink, width: 1.5 }));
    if (hover && !(pin && hover.block === pin.block && hover.offset === pin.offset)) {
      const slot = g.level !== 'blocks' && hover.offset >= 0;
      shapes.push(this.#rect(slot ? g.slot(hover.block, hover.offset) : tile(hover.block), slot ? 1.5 : 2, { color: skin.ink, width: slot ? 2 : 1.5 }));
    }
    if (pin) {
      shapes.push(this.#rect(tile(pin.block), 2, { color: skin.ink, width: g.level === 'blocks' ? 3 : 1.5 }));
      if (g.level !== 'blocks') {
        const slot = g.slot(pin.block, pin.offset);
        shapes.push(this.#rect(slot, 4, { color: skin.casing, width: 2 }), this.#rect(slot, 2, { color: skin.ink, width: 3 }));
      }
    }
    return shapes;
  }

  // Captions over the blocks at token size. They hold digits and request letters only: Plotly reads its text as markup.
  #captions({ state, pin }, skin) {
    const g = this.g, list = [];
    if (g.level !== 'tokens' || !state) return list;
    for (let row = g.rows[0]; row <= g.rows[1]; row++) for (let column = g.columns[0]; column <= g.columns[1]; column++) {
      const block = row * this.grid.columns + column;
      if (block >= this.grid.num_blocks) continue;
      const t = g.tile(block), right = pin && pin.block === block && pin.offset % g.tc < 4;   // out of the walk's way
      if (t.y < 10 || t.y > g.h || t.x + t.w < 40 || t.x > g.w - 40) continue;
      const x = right ? t.x + t.w : Math.max(t.x, 0), anchor = right ? 'right' : 'left';
      list.push({ text: `block ${block}  ${blockCaption(state, block)}`, x: g.toX(x), y: g.toY(t.y - 2), xanchor: anchor, yanchor: 'bottom', showarrow: false, borderpad: 0, font: { family: skin.mono, size: 11, color: skin.subdued } });
    }
    return list;
  }

  #ticks({ pin }, skin) {
    const g = this.g, { columns } = this.grid, on = pin ? { column: pin.block % columns, row: Math.floor(pin.block / columns) } : {};
    const label = (text, strong) => (strong ? `<b><span style="color:${skin.text}">${text}</span></b>` : text);
    const ticks = ([from, to], step, chosen, middle, text) => {
      const shown = [];
      for (let i = from; i <= to; i++) if (i === chosen || (i % step === 0 && (step === 1 || !(Math.abs(i - chosen) < step * 0.6)))) shown.push(i);
      return [shown.map(i => i + middle), shown.map(i => label(text(i), i === chosen))];
    };
    const stepX = nice((18 + 7 * String(columns).length) / g.px), stepY = nice((g.py < 22 && g.py >= 11 ? 22 : 15) / g.py);
    const [xv, xt] = ticks(g.columns, stepX, on.column, g.centre.x, i => `+${i}`), [yv, yt] = ticks(g.rows, stepY, on.row, g.centre.y, i => fmt(i * columns));
    return { 'xaxis.tickvals': xv, 'xaxis.ticktext': xt, 'xaxis.tickangle': 0, 'yaxis.tickvals': yv, 'yaxis.ticktext': yt };
  }

  #minimap(scene, skin) {
    const fit = isFit(this.grid, this.view), now = performance.now();
    this.map.hidden = fit;
    if (fit) return;
    const [canvas, frame] = this.map.children, g = geometry(this.grid, fitView(this.grid), 112, 88), v = this.view;
    if (now - (this.mapped ?? 0) > 250 || this.mapSkin !== skin) { this.mapped = now; this.mapSkin = skin; paintPool(canvas, scene.state, g, skin, { ratio: 2 }); }
    Object.assign(frame.style, { left: `${4 + v.x0 * g.px}px`, top: `${4 + v.y0 * g.py}px`, width: `${(v.x1 - v.x0) * g.px}px`, height: `${(v.y1 - v.y0) * g.py}px` });
  }

  // Position of the plot area inside `.pool`, for the pointer and the walk.
  get origin() { const m = this.figure.layout.margin; return { x: m.l, y: m.t }; }

  // Does the window show the whole slot?
  inWindow(block, offset) {
    const s = this.g.slot(block, offset);
    return s.x > -1 && s.x + s.w < this.g.w + 1 && s.y > -1 && s.y + s.h < this.g.h + 1;
  }
}

function nice(least) {
  for (const step of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]) if (step >= least) return step;
  return 2048;
}
export { SLOT_CELL };
