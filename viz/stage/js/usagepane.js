// Blocks in use over steps: Plotly's stacked chart below, the scrubber above it as plain elements, because it moves on
// every step while the chart is drawn again four times a second at most.

import { h, fmt, setText, setAttr } from './dom.js';
import { COLOURS } from './state.js';

const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false };
const EVERY_MS = 250, MOST_MS = 1000, BUSY_PART = 6, MAX_POINTS = 1500, LANE_GAP = 9;

export class UsagePane {
  constructor(root, { onSeek }) {
    this.chart = root.querySelector('.chart');
    this.div = root.querySelector('.usage');
    this.slider = root.querySelector('.scrub');
    [this.dim, this.liveLine, this.line, this.label, this.liveLabel] = ['dim', 'liveline', 'line', 'at', 'livelabel'].map(name => this.chart.querySelector(`.s-${name}`));
    this.drawnAt = 0;
    this.xmax = 40;
    this.#input(onSeek);
  }

  // The scrubber can be drawn from now on; the chart comes with `plot`.
  setFigure(figure) {
    this.figure = figure;
    this.plotted = false;
    this.drawn = null;
    this.revision = 0;
    this.measure();
  }

  async plot() {
    const { figure } = this, { width, height } = this.size;
    await window.Plotly.newPlot(this.div, figure.data, { ...figure.layout, width, height }, CONFIG);
    this.plotted = true;
  }

  measure() { this.shown = this.chart.clientWidth > 0; this.size = { width: Math.max(120, this.chart.clientWidth), height: Math.max(60, this.chart.clientHeight) }; }
  // Another view stands in the chart's place; the scrubber stays. `frame` is where that view's axis of steps lies, if it has one.
  cover(covered) { this.covered = covered; this.div.hidden = covered; this.frame = this.drawn = null; }

  spanOf(newest, following) { return Math.max(40, Math.ceil(newest * (following ? 1.025 : 1.04))); }

  get axis() { const m = this.figure.layout.margin; return this.frame ?? { l: m.l, r: m.r, xmax: this.xmax }; }

  // The chart as a figure of its own, on the page's ground.
  exported(skin) {
    const { data, layout } = this.div, title = { text: 'Blocks in use over steps', x: 0.01, font: { size: 15 } };
    return { data, layout: { ...layout, title, paper_bgcolor: skin.bg, plot_bgcolor: skin.bg, margin: { l: 64, r: 20, t: 44, b: 40 }, width: undefined, height: undefined } };
  }

  // `wait` says in how many milliseconds a postponed drawing is due, or 0.
  // `dim`: what lies ahead of the step is lighter; `mark`: a line says where the run is.
  draw(mirror, step, skin, { following: catchingUp, dim, mark }) {
    if (!this.figure || !this.shown) return 0;
    const { width, height } = this.size, following = catchingUp || step >= mirror.newest, now = performance.now();
    const key = [mirror.log.length, width, height, following].join(' ');
    let wait = 0;
    if (this.plotted && !this.covered && (key !== this.drawn || skin !== this.skin)) {
      wait = this.drawnAt + Math.min(MOST_MS, Math.max(EVERY_MS, BUSY_PART * (this.cost ?? 0))) - now;   // not more than a sixth of the time
      if (wait <= 0 || this.skin !== skin || this.drawn === null) {
        wait = 0;
        this.drawn = key; this.drawnAt = now; this.skin = skin;
        this.#react(mirror, width, height, following, skin);
        this.cost = performance.now() - now;
      }
    }
    this.#scrubber(mirror.newest, step, width, { dim, mark });
    return Math.max(0, wait);
  }

  #react(mirror, width, height, following, skin) {
    const { usage, newest } = mirror, { data, layout } = this.figure, { num_blocks: blocks, glyphs } = layout.meta;
    this.xmax = this.spanOf(newest, following);
    const plotWidth = width - layout.margin.l - layout.margin.r, pixel = step => step / this.xmax * plotWidth;
    const rows = thin(usage.step.length), x = rows.map(i => Math.max(0, usage.step[i] - 1)).concat(newest);
    const traces = data.slice(0, 2 * COLOURS).flatMap((trace, t) => {
      const source = t % 2 ? usage.own : usage.shared, colour = t >> 1, y = rows.map(i => source[i][colour]);
      y.push(y[y.length - 1] ?? 0);
      if (t !== 1 && !y.some(v => v > 0)) return [];      // one always, for the axes of an empty chart
      const fill = { fillcolor: skin.colours[colour] };
      if (t % 2 === 0) fill.fillpattern = { ...trace.fillpattern, fgcolor: skin.cross, bgcolor: skin.colours[colour] };
      return [{ ...trace, ...fill, x, y }];
    });
    const shapes = [], lane = new Map(glyphs.map(kind => [kind, []])), last = new Map();
    for (const entry of mirror.story.entries) {
      const at = lane.get(entry.kind);
      if (!at) continue;
      const px = pixel(entry.step), group = entry.kind === 'alloc' ? 'alloc' : entry.kind === 'evict' ? 'evict' : null;
      if (group && px - (last.get(group) ?? -99) < (group === 'alloc' ? 2 : LANE_GAP)) continue;
      if (group) last.set(group, px);
      at.push(entry.step);
    }
    glyphs.forEach((kind, i) => {
      const trace = data[2 * COLOURS + i], at = lane.get(kind), bad = kind === 'preempt' || kind === 'refused', colour = bad ? skin.error : kind === 'alloc' ? skin.subdued : skin.text;
      if (!at.length && kind !== 'alloc') return;          // one path for hundreds of ticks; its empty trace keeps the lane's axis
      if (kind === 'alloc') { shapes.push({ type: 'path', yref: 'y2', path: at.map(s => `M${s},-0.45L${s},0.45`).join('') || 'M0,0', line: { width: 1, color: colour } }); traces.push({ ...trace, x: [null], y: [null] }); }
      else traces.push({ ...trace, x: at, y: at.map(() => 0), marker: { ...trace.marker, color: colour, line: { ...trace.marker.line, color: colour } } });
    });
    const peak = Math.max(1, ...rows.map(i => usage.used[i])), full = peak > blocks * 0.7, top = full ? blocks : Math.max(8, Math.ceil(peak * 1.2 / 8) * 8);
    const grid = { gridcolor: skin.border, gridwidth: 1 }, step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000].find(t => pixel(t) >= 52) ?? 100000;
    const ticks = [];
    for (let s = 0; s <= this.xmax; s += step) ticks.push(s);
    window.Plotly.react(this.div, traces, {
      ...layout, width, height, datarevision: ++this.revision, shapes, font: { family: skin.mono, size: 11, color: skin.subdued },
      xaxis: { ...layout.xaxis, range: [0, this.xmax], tickvals: ticks, ticktext: ticks.map(fmt) },
      yaxis: { ...layout.yaxis, ...grid, range: [-top * 0.03, top * 1.03], tickvals: [0, top / 2, top] },
    }, CONFIG);
  }

  #scrubber(newest, step, width, { dim, mark }) {
    const m = this.axis, plot = width - m.l - m.r, x = s => m.l + Math.min(1, s / m.xmax) * plot;
    const at = x(step), live = x(newest), past = step < newest;
    move(this.line, at);
    move(this.label, Math.min(at, width - 4 - 4 * String(step).length));
    setText(this.label.firstChild, fmt(step));
    this.dim.hidden = !(past && dim);
    this.liveLine.hidden = this.liveLabel.hidden = !(past && mark);
    if (past) {
      this.dim.style.transform = `translateX(${at + 1}px)`;
      this.dim.style.width = `${Math.max(0, live - at - 1)}px`;
      move(this.liveLine, live);
      setText(this.liveLabel, live - at > 70 ? `run ${fmt(newest)}` : '');
      this.liveLabel.style.right = `${Math.max(0, width - live - 12)}px`;
    }
    setAttr(this.slider, 'aria-valuemax', newest);
    setAttr(this.slider, 'aria-valuenow', step);
    this.newest = newest;
    this.step = step;
  }

  #input(onSeek) {
    let dragging = false;
    const seek = event => {
      if (!this.figure) return;
      const m = this.axis, box = this.chart.getBoundingClientRect(), plot = box.width - m.l - m.r;
      onSeek(Math.max(0, Math.min(this.newest ?? 0, Math.round((event.clientX - box.left - m.l) / plot * m.xmax))));
    };
    this.chart.addEventListener('pointerdown', event => { if (event.button || 'still' in this.chart.dataset) return; dragging = true; this.chart.setPointerCapture(event.pointerId); seek(event); });
    this.chart.addEventListener('pointermove', event => { if (dragging) seek(event); });
    for (const name of ['pointerup', 'pointercancel']) this.chart.addEventListener(name, () => { dragging = false; });
    this.slider.addEventListener('keydown', event => {
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity }[event.key];
      if (by === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      this.step = Math.max(0, Math.min(this.newest ?? 0, (this.step ?? 0) + by));   // at once: the next key may come before the next drawing
      onSeek(this.step);
    });
  }
}

function move(element, x) { element.style.transform = `translateX(${x}px)`; }

function thin(n) {
  const every = Math.max(1, Math.ceil(n / MAX_POINTS)), rows = [];
  for (let i = 0; i < n; i += every) rows.push(i);
  if (n && rows[rows.length - 1] !== n - 1) rows.push(n - 1);
  return rows;
}
