// The colours of the canvas and of Plotly, read from the page's CSS variables (so light and dark have one source).

import { css } from './dom.js';

export function mix(a, b, part) {
  const channels = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)), other = channels(b);
  return `#${channels(a).map((v, i) => Math.round(v * (1 - part) + other[i] * part).toString(16).padStart(2, '0')).join('')}`;
}

export function readSkin(element) {
  const v = name => css(element, name), dark = document.body.classList.contains('dark');
  const bg = v('--background-fill-primary'), colours = [1, 2, 3, 4, 5, 6, 7].map(i => v(`--pw-seq-${i}`)), earlier = v('--pw-earlier');
  const edges = colours.map(c => mix(c, dark ? '#ffffff' : '#000000', dark ? 0.26 : 0.38));
  const cached = (c, e) => ({ fill: mix(c, bg, 0.88), dot: mix(e, bg, 0.12), edge: mix(e, bg, 0.45), small: mix(c, bg, 0.6) });
  const free = v('--pw-free');
  return {
    dark, bg, colours, edges, free, freeSmall: mix(free, bg, 0.72),
    faded: colours.map(c => mix(c, bg, 0.78)), fadedCached: mix(earlier, bg, 0.88), fadedFree: mix(free, bg, 0.88),
    on: colours.map((_, i) => (i === 0 ? '#FFFFFF' : '#0B0D12')),
    cached: colours.map((c, i) => cached(c, edges[i])), cachedEarlier: cached(earlier, earlier),
    reserved: v('--pw-reserved'), cross: v('--pw-cross'), fresh: v('--pw-fresh'), ink: v('--pw-ink'), casing: v('--pw-casing'),
    text: v('--body-text-color'), subdued: v('--body-text-color-subdued'), border: v('--border-color-primary'), accent: v('--color-accent'),
    error: v('--error-text-color'), font: v('--font'), mono: v('--font-mono'),
  };
}
