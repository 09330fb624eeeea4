// Mouse, touch and keys on the pool: wheel and pinch zoom, drag pans, double click fits, click picks, arrows move a cursor.

export function poolInput(pane, { onPick, onHover, isEmpty }) {
  const { div } = pane, pointers = new Map();
  let moved = false, pinch = 0;
  const at = event => {
    const box = div.getBoundingClientRect(), o = pane.origin;
    return { x: event.clientX - box.left - o.x, y: event.clientY - box.top - o.y };
  };
  const spread = () => { const [a, b] = [...pointers.values()]; return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY); };

  div.addEventListener('wheel', event => {
    if (!pane.g || event.ctrlKey) return;
    event.preventDefault();
    const { x, y } = at(event);
    pane.coarse = false;
    pane.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.06 : 0.002)), x, y);
  }, { passive: false });

  div.addEventListener('pointerdown', event => {
    if (event.button) return;
    pointers.set(event.pointerId, event);
    moved = pointers.size > 1;
    if (pointers.size === 2) pinch = spread();
  });
  div.addEventListener('pointermove', event => {
    const before = pointers.get(event.pointerId);
    if (!before) { if (event.pointerType !== 'touch') hover(event); return; }
    const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
    if (pointers.size === 2) {
      pointers.set(event.pointerId, event);
      const now = spread(), middle = [...pointers.values()].reduce((m, p) => { const q = at(p); return { x: m.x + q.x / 2, y: m.y + q.y / 2 }; }, { x: 0, y: 0 });
      if (pinch) pane.zoomBy(now / pinch, middle.x, middle.y);
      pinch = now;
    } else if (moved || Math.hypot(dx, dy) > 4) {
      if (!moved) { moved = true; div.setPointerCapture(event.pointerId); }
      pointers.set(event.pointerId, event);
      pane.panBy(dx, dy);
    }
  });
  const up = event => { pointers.delete(event.pointerId); if (event.pointerType === 'touch') onHover(null); };
  div.addEventListener('pointerup', up);
  div.addEventListener('pointercancel', up);
  div.addEventListener('pointerleave', () => onHover(null));
  div.addEventListener('click', event => {
    if (moved) { moved = false; return; }
    const { x, y } = at(event), hit = pane.g?.at(x, y);
    if (hit) onPick(hit, event.clientX, event.clientY);
  });
  div.addEventListener('dblclick', () => { pane.coarse = false; pane.fit(); });

  function hover(event) {
    const { x, y } = at(event), hit = pane.g?.at(x, y);
    onHover(hit && (hit.offset >= 0 || pane.g.level === 'blocks') ? hit : null);
  }

  let cursor = null;
  div.addEventListener('keydown', event => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || isEmpty() || !pane.g) return;
    if (step) {
      event.preventDefault();
      event.stopPropagation();
      cursor = cursor ? move(pane, cursor, step) : { block: pane.focusBlock?.() ?? 0, offset: pane.g.level === 'blocks' ? -1 : 0 };
      pane.reveal(cursor.block);
      onHover(cursor, true);
    } else if (event.key === 'Enter' && cursor) {
      event.preventDefault();
      onPick(cursor);
    } else if (event.key === '+' || event.key === '=') pane.zoomBy(1.5, pane.g.w / 2, pane.g.h / 2);
    else if (event.key === '-') pane.zoomBy(1 / 1.5, pane.g.w / 2, pane.g.h / 2);
    else if (event.key === '0') pane.fit();
  });
  div.addEventListener('blur', () => { cursor = null; onHover(null); });
}

// One slot on (one block on, where slots do not show), across the edges of blocks.
function move({ grid, g }, { block, offset }, [dx, dy]) {
  const { columns, num_blocks: n, block_size: size } = grid, { tc } = g;
  if (offset < 0) {
    const next = block + dx + dy * columns;
    return next >= 0 && next < n ? { block: next, offset } : { block, offset };
  }
  const inRow = offset % tc + dx, next = offset + dx + dy * tc;
  if (inRow < 0) return block % columns ? { block: block - 1, offset: Math.min(size - 1, offset + tc - 1) } : { block, offset };
  if (inRow >= tc || (dx && next >= size)) return (block + 1) % columns && block + 1 < n ? { block: block + 1, offset: offset - offset % tc } : { block, offset };
  if (next < 0) return block >= columns ? { block: block - columns, offset: Math.min(size - 1, offset % tc + Math.floor((size - 1) / tc) * tc) } : { block, offset };
  if (next >= size) return block + columns < n ? { block: block + columns, offset: offset % tc } : { block, offset };
  return { block, offset: next };
}
