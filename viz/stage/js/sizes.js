// Heights that CSS alone cannot know: the panes fill what the window leaves, the rows tell how many fit.

import { isPhone } from './dom.js';

const DOCK = 156, TALL_DOCK = 248, FRAME = 3, BOTTOM = 16, LEAST = 404, MOST = 720;

export function paneHeight(root) {
  if (window.innerWidth <= 1100) return root.style.removeProperty('--pane-h');
  const dock = (root.dataset.view ?? 'blocks') === 'blocks' ? DOCK : TALL_DOCK;      // as views.css has it
  const bars = [...root.querySelectorAll(':scope > .notice, :scope > .quiz')].reduce((sum, bar) => sum + bar.getBoundingClientRect().height, 0);
  const height = window.innerHeight - (root.getBoundingClientRect().top + window.scrollY) - bars - dock - FRAME - BOTTOM;
  const value = `${Math.min(MOST, Math.max(LEAST, Math.floor(height)))}px`;
  if (root.style.getPropertyValue('--pane-h') !== value) root.style.setProperty('--pane-h', value);
}

export function rowHeights(root, rows, blockSize) {
  const phone = isPhone(root), narrow = window.innerWidth <= 1100, line = phone ? 32 : 27, lines = Math.ceil(Math.min(blockSize, blockSize) / (narrow ? 4 : 8));
  return { head: phone ? 36 : 32, row: lines * line + (phone ? 1 : 0), fold: phone ? 33 : 27, available: phone ? 620 : rows.clientHeight - 8 };
}
