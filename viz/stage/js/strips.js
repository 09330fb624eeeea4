// The small pictures of the lookup panel: a row of slots, weights as bars, vectors as heat strips.

import { h, svg, colour } from './dom.js';

const axis = (x, y, text, anchor, strong) => svg('text', { x, y, 'text-anchor': anchor, class: strong ? 'axis on' : 'axis' }, text);

export function slotStrip(index, blockSize, filled, offset) {
  const strip = colour(h('div', 'strip'), index);
  for (let i = 0; i < blockSize; i++) strip.append(h('i', `${i >= filled ? 'res' : ''}${i === offset ? ' on' : ''}`));
  return strip;
}

// Softmax weights by position: one bar each, the key's bar in ink. One path for all others, however long the context.
export function bars(weights, width, height, { position, index, blockSize }) {
  const n = weights.length, step = width / n, top = 2, base = height - 14, most = Math.max(...weights, 1e-12), gap = step > 5 ? 0.75 : step > 2 ? 0.4 : 0;
  const tall = w => Math.max(1, (base - top - 2) * w / most), bar = (i, w) => `M${(i * step + gap).toFixed(2)} ${base}v${(-tall(w)).toFixed(2)}h${Math.max(1, step - 2 * gap).toFixed(2)}V${base}Z`;
  const g = colour(svg('svg', { class: 'bars', width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Softmax weights of ${n} positions; position ${position} has ${weights[position].toFixed(4)}` }), index);
  let grid = `M0 ${base + 0.5}H${width}`;
  const every = Math.max(1, Math.ceil(n / blockSize / 12)) * blockSize;
  for (let i = every; i < n; i += every) grid += `M${(i * step).toFixed(1)} ${top}V${base}`;
  g.append(svg('path', { d: grid, class: 'grid' }), svg('path', { d: weights.map((w, i) => (i === position ? '' : bar(i, w))).join(''), class: 'others' }), svg('path', { d: bar(position, weights[position]), class: 'mine' }));
  const x = (position + 0.5) * step, digits = String(position).length * 4;
  if (x - digits > 12) g.append(axis(0, height - 2, '0', 'start'));
  if (x + digits < width - 8 * String(n - 1).length) g.append(axis(width, height - 2, String(n - 1), 'end'));
  g.append(axis(Math.max(digits, Math.min(width - digits, x)), height - 2, String(position), 'middle', true));
  return g;
}

// rows: [[name, vector]]: diverging colours, darker is larger.
export function heat(rows, width, left = 14) {
  const high = 11, pitch = high + 2, g = svg('svg', { class: 'heat', width, height: rows.length * pitch, viewBox: `0 0 ${width} ${rows.length * pitch}`, role: 'img', 'aria-label': rows.map(([name, v]) => `${name}: ${v.length} numbers`).join('; ') });
  rows.forEach(([name, vector], r) => {
    const cell = (width - left) / vector.length, most = Math.max(...vector.map(Math.abs), 1e-12);
    g.append(svg('text', { x: 0, y: r * pitch + 9.5, class: 'axis' }, name));
    vector.forEach((v, i) => g.append(svg('rect', { x: (left + i * cell).toFixed(2), y: r * pitch, width: Math.max(0.5, cell - 0.5).toFixed(2), height: high, class: v < 0 ? 'neg' : 'pos', 'fill-opacity': (0.1 + 0.9 * Math.sqrt(Math.abs(v) / most)).toFixed(2) })));
  });
  return g;
}
