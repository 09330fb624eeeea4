// The legend of a view as text: a swatch in the figure's own pattern, the name, and over steps the value at the shown step.

import { h, svg, fmt, setText } from './dom.js';

const W = 16, H = 10;
const UNITS = ['KiB', 'MiB', 'GiB', 'TiB'];

export function bytesText(n) {
  let value = Math.abs(n), unit = 'B';
  for (const larger of UNITS) { if (value < 1024) break; value /= 1024; unit = larger; }
  const digits = unit === 'B' || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}

// What a trace over steps says at `step`: the pass of step s spans s - 1 to s, and a value holds until the next one. The first
// row is that of step 0, before any pass.
export function valueAt({ x, y }, step) {
  let at = 0;
  for (let i = 0; i < x.length - 1 && step > 0 && x[i] < step; i++) at = i;
  return y[at];
}

export function renderKey(host, data, meta, step, skin) {
  if (host.drawnFor !== data || host.skin !== skin || !host.firstChild) {
    host.drawnFor = data;
    host.skin = skin;
    host.entries = data.filter(trace => trace.name && trace.showlegend !== false).map(trace => ({ trace, value: trace.stackgroup ? h('b') : trace.meta?.value !== undefined ? h('b', '', bytesText(trace.meta.value)) : null }));
    host.replaceChildren(...host.entries.map(({ trace, value }) => h('li', '', [swatch(trace, skin), h('span', '', plain(trace.name)), value ?? ''])));
  }
  if (step === null) return;
  for (const { trace, value } of host.entries) {
    if (!value || !trace.stackgroup) continue;
    const n = valueAt(trace, step);
    setText(value, `${meta.thinned > 1 ? 'about ' : ''}${meta.unit === 'bytes' ? bytesText(n) : fmt(n)}`);
  }
}

// Names come from Python ready for Plotly, so three entities stand in them.
const plain = text => text.replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&#36;/g, '$').replace(/&amp;/g, '&');

function swatch(trace, skin) {
  const look = trace.fillpattern ?? trace.marker?.pattern ?? {}, hollow = 'rgba(0,0,0,0)';
  if (trace.mode === 'markers') return svg('svg', { width: W, height: H, viewBox: '0 0 16 10', 'aria-hidden': 'true' }, svg('path', { d: SYMBOLS[trace.marker.symbol] ?? SYMBOLS['circle-open'], fill: /-open/.test(trace.marker.symbol) ? 'none' : skin.text, stroke: trace.marker.color ?? skin.text, 'stroke-width': 1.6 }));
  const colour = typeof trace.fillcolor === 'string' ? trace.fillcolor : typeof trace.marker?.color === 'string' ? trace.marker.color : hollow;
  const ground = look.shape ? look.bgcolor ?? colour : colour, ink = look.fgcolor ?? skin.text;
  const parts = [svg('rect', { x: 0.5, y: 0.5, width: W - 1, height: H - 1, fill: ground, stroke: trace.marker?.line?.color ?? skin.subdued, 'stroke-width': 1 })];
  if (look.shape === '.') parts.push(svg('path', { d: dots(), fill: ink }));
  else if (look.shape) parts.push(svg('path', { d: LINES[look.shape] ?? '', stroke: ink, 'stroke-width': 1.2, fill: 'none' }));
  return svg('svg', { width: W, height: H, viewBox: `0 0 ${W} ${H}`, 'aria-hidden': 'true' }, parts);
}

const slashes = [2, 6, 10, 14, 18].map(x => `M${Math.min(x, 15)} ${Math.max(1, 1 + x - 15)}L${Math.max(1, x - 8)} ${Math.min(9, x)}`).join('');
const back = [2, 6, 10, 14, 18].map(x => `M${16 - Math.min(x, 15)} ${Math.max(1, 1 + x - 15)}L${16 - Math.max(1, x - 8)} ${Math.min(9, x)}`).join('');
const LINES = { '/': slashes, '\\': back, x: slashes + back, '-': 'M1 3.5H15M1 6.5H15', '|': 'M4 1V9M8 1V9M12 1V9' };
const dots = () => [3, 6, 9, 12].flatMap(x => [3.5, 6.5].map(y => `M${x} ${y}m-0.9 0a0.9 0.9 0 1 0 1.8 0a0.9 0.9 0 1 0-1.8 0`)).join('');
const SYMBOLS = {
  'circle-open': 'M5 5a3 3 0 1 0 6 0a3 3 0 1 0-6 0Z', 'diamond-open': 'M8 1L12 5L8 9L4 5Z', diamond: 'M8 1L12 5L8 9L4 5Z', 'x-thin-open': 'M5 2L11 8M11 2L5 8',
  'triangle-up': 'M8 1L12.5 9H3.5Z', 'triangle-right-open': 'M5 1L12 5L5 9Z', square: 'M4 1.5H12V8.5H4Z', 'y-down-open': 'M4 1L8 5L12 1M8 5V9', 'line-ns-open': 'M8 1V9',
};
