// Where a block and a slot stand, in pixels of the pool's plot area, for a view in units of blocks. Pure.
//
//   view = { x0, x1, y0, y1 }: columns x0..x1 and rows y0..y1 of the pool fill the plot area of w x h pixels.
//   One block takes a pitch of w / (x1 - x0) by h / (y1 - y0); in it the tile (8 cells a line) and a gap.

const clamp = (v, lo, hi) => Math.max(lo, Math.min(hi, v));
const half = v => Math.floor(v * 2) / 2;

export const TEXT_CELL = 24;   // px wide: token text
export const SLOT_CELL = 6;    // px on the longer side: one cell a slot
const TOKENS_CELL = { w: 44, h: 23 };  // what "Tokens" zooms to
const TOKENS_GAP = { x: 20, y: 30 };

const LEAST_ROWS = 12;         // a pool of few blocks leaves room below instead of spreading them

const tall = grid => Math.max(LEAST_ROWS, grid.rows);

export const fitView = grid => ({ x0: 0, x1: grid.columns, y0: 0, y1: tall(grid) });

export function geometry(grid, view, w, h) {
  const tc = grid.cell_columns, tr = grid.cell_rows, px = w / (view.x1 - view.x0), py = h / (view.y1 - view.y0);
  const text = grid.text_cell ?? TEXT_CELL, roomy = clamp((px - tc * text * 0.75) / (tc * text * 0.25), 0, 1);   // 0 at slots, 1 from text size on
  const minX = px < 14 ? Math.min(0.5, px * 0.12) : px < 32 ? 2 : 5 + roomy * 5, minY = py < 12 ? Math.min(0.5, py * 0.12) : py < 20 ? 2 : 7 + roomy * 19;
  let cw = (px - minX) / tc, ch = (py - minY) / tr;
  const slots = !grid.coarse && Math.max(cw, ch) >= SLOT_CELL;   // coarse: "Blocks" was asked for
  if (slots) { cw = Math.max(1, half(cw)); ch = Math.max(1, Math.min(half(ch), Math.max(cw * 2.2, SLOT_CELL))); }
  const level = cw >= text ? 'tokens' : slots ? 'slots' : 'blocks';
  const tw = tc * cw, th = tr * ch, gx = px - tw, gy = py - th, left = level === 'blocks' ? gx / 2 : Math.min(gx / 2, 2), above = level === 'blocks' ? gy / 2 : Math.max(gy / 2, gy - 1.5);
  const snap = level === 'blocks' && px < 8 ? v => v : Math.round;
  const tile = block => {
    const column = block % grid.columns, row = Math.floor(block / grid.columns);
    return { x: snap((column - view.x0) * px + left), y: snap((row - view.y0) * py + above), w: tw, h: th };
  };
  return {
    grid, view, w, h, px, py, cw, ch, tc, tr, tw, th, gx, gy, level, tile,
    centre: { x: (left + tw / 2) / px, y: (above + th / 2) / py },   // of a tile in its pitch: where the labels stand
    slot(block, offset) {
      const t = tile(block);
      return { x: t.x + (offset % tc) * cw, y: t.y + Math.floor(offset / tc) * ch, w: cw - (cw >= 4 ? 1 : 0), h: ch - (ch >= 4 ? 1 : 0) };
    },
    // { block, offset } under a pixel, or null: offset -1 in the gap around the tile.
    at(x, y) {
      const column = Math.floor(x / px + view.x0), row = Math.floor(y / py + view.y0), block = row * grid.columns + column;
      if (column < 0 || column >= grid.columns || row < 0 || block < 0 || block >= grid.num_blocks) return null;
      const t = tile(block), cx = Math.floor((x - t.x) / cw), cy = Math.floor((y - t.y) / ch), offset = cy * tc + cx;
      const inside = cx >= 0 && cx < tc && cy >= 0 && cy < tr && offset < grid.block_size;
      return { block, offset: inside ? offset : -1 };
    },
    // The blocks that the window shows, as [first row, last row] and [first column, last column].
    rows: [Math.max(0, Math.floor(view.y0)), Math.min(grid.rows - 1, Math.ceil(view.y1) - 1)],
    columns: [Math.max(0, Math.floor(view.x0)), Math.min(grid.columns - 1, Math.ceil(view.x1) - 1)],
    toX: x => view.x0 + x / px, toY: y => view.y0 + y / py,
  };
}

// Zoom is one number: how much wider a column is than when everything fits. Rows follow more slowly, because text needs
// wide cells, not high ones: the two meet at the size that "Tokens" shows.
export function zoomTarget(grid, w, h) {
  const x = (grid.cell_columns * TOKENS_CELL.w + TOKENS_GAP.x) / (w / grid.columns);
  const y = (grid.cell_rows * TOKENS_CELL.h + TOKENS_GAP.y) / (h / tall(grid));
  return { x: Math.max(1, x), y: Math.max(1, y) };
}

// The smallest zoom at which a cell is SLOT_CELL px on its longer side.
export function slotsZoom(grid, w, h) {
  const fitted = geometry(grid, fitView(grid), w, h);
  return fitted.level === 'blocks' ? Math.max((SLOT_CELL * grid.cell_columns + 4) / fitted.px, 1) : 1;
}

export function viewAt(grid, w, h, zoom, focus, at = { x: 0.5, y: 0.5 }) {
  const target = zoomTarget(grid, w, h);
  const zx = clamp(zoom, 1, Math.max(1, target.x * 2)), zy = target.x <= 1 ? zx : zx ** (Math.log(target.y) / Math.log(target.x));
  const wx = grid.columns / zx, wy = Math.min(tall(grid), tall(grid) / zy);
  const x0 = clamp(focus.x - wx * at.x, 0, grid.columns - wx), y0 = clamp(focus.y - wy * at.y, 0, tall(grid) - wy);
  return { x0, x1: x0 + wx, y0, y1: y0 + wy };
}

export function panned(grid, view, dx, dy) {
  const wx = view.x1 - view.x0, wy = view.y1 - view.y0;
  const x0 = clamp(view.x0 + dx, Math.min(0, grid.columns - wx), Math.max(0, grid.columns - wx));
  const y0 = clamp(view.y0 + dy, Math.min(0, tall(grid) - wy), Math.max(0, tall(grid) - wy));
  return { x0, x1: x0 + wx, y0, y1: y0 + wy };
}

export const isFit = (grid, view) => view.x1 - view.x0 >= grid.columns - 1e-6 && view.y1 - view.y0 >= tall(grid) - 1e-6;
