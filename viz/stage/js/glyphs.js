// The shapes of events, 12 x 12: shape first, colour only for trouble.

import { svg } from './dom.js';

const line = (d, width) => ({ d, fill: 'none', stroke: 'currentColor', 'stroke-width': width });
const SHAPES = {
  add: line('M6 2V10M2 6H10', 1.6),
  alloc: line('M6 1.5V10.5', 2),
  finish: line('M2.5 6a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0Z', 1.6),
  hit: line('M6 1.5L10.5 6L6 10.5L1.5 6Z', 1.6),
  miss: line('M6 1.5L10.5 6L6 10.5L1.5 6ZM2 10L10 2', 1.2),
  copy: { d: 'M6 1L11 6L6 11L1 6Z', fill: 'currentColor' },
  fork: line('M2 1.5V4.5C2 6.5 4 6 6 6.5C8 6 10 6.5 10 4.5V1.5M6 6.5V11', 1.6),
  evict: line('M2.5 2.5L9.5 9.5M9.5 2.5L2.5 9.5', 1.8),
  refused: { d: 'M1.5 1.5H10.5V10.5H1.5Z', fill: 'currentColor' },
  preempt: { d: 'M6 1L11.5 10.5H.5Z', fill: 'currentColor' },
  resume: line('M2 1.5L10.5 6L2 10.5Z', 1.6),
};
export const glyph = kind => svg('svg', { viewBox: '0 0 12 12', class: `glyph ${kind}`, 'aria-hidden': 'true' }, svg('path', SHAPES[kind]));
