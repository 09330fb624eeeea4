// Mouse and keys on a view of one step: hovering shows what a bar is and rings its blocks in the pool, a click pins, arrows go
// from bar to bar and Enter pins. A bar says what it stands for in its customdata: [block or words, position or list of blocks].

const HOVER_MS = 120;       // Plotly draws a hover label some 50 ms after it is asked
const KEYS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

export function viewInput(div, { onPick, onHover, announce }) {
  let cursor = -1, timer = 0;
  div.tabIndex = 0;
  div.setAttribute('role', 'application');

  const meaning = point => {
    const data = point?.customdata;
    if (!Array.isArray(data)) return null;
    return Array.isArray(data[1]) ? { blocks: data[1], position: null } : typeof data[1] === 'number' ? { blocks: [data[0]], position: data[1] } : null;
  };
  const listen = () => {
    if (!div.on || div.listening) return;
    div.listening = true;
    div.on('plotly_hover', ({ points }) => onHover(meaning(points[0])));
    div.on('plotly_unhover', () => onHover(null));
    div.on('plotly_click', ({ points }) => { const what = meaning(points[0]); if (what) onPick(what); });
  };
  div.addEventListener('pointerover', listen);
  div.addEventListener('focus', listen);
  div.addEventListener('pointerleave', () => onHover(null));      // Plotly says nothing where it was drawn anew under the pointer

  // Every bar of the figure, from left to right.
  const bars = () => (div.data ?? []).flatMap((trace, curveNumber) => (trace.type === 'bar' && trace.hoverinfo !== 'skip' ? trace.x.map((x, pointNumber) => ({ at: (trace.base?.[pointNumber] ?? 0) + (trace.orientation === 'h' ? 0 : x), row: trace.orientation === 'h' ? trace.y[pointNumber] : 0, curveNumber, pointNumber, customdata: trace.customdata?.[pointNumber] })) : []))
    .sort((a, b) => a.row - b.row || a.at - b.at);

  div.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const list = bars(), by = KEYS[event.key];
    if (by !== undefined && list.length) {
      event.preventDefault();
      event.stopPropagation();
      cursor = Math.max(0, Math.min(list.length - 1, cursor < 0 ? (by < 0 ? list.length - 1 : 0) : cursor + by));
      const { curveNumber, pointNumber } = list[cursor];
      window.Plotly.Fx.hover(div, [{ curveNumber, pointNumber }]);
      clearTimeout(timer);
      timer = setTimeout(() => announce([...div.querySelectorAll('.hoverlayer text')].map(t => t.textContent).filter(Boolean).join(' ')), HOVER_MS);
      onHover(meaning(list[cursor]));
    } else if (event.key === 'Enter' && list[cursor]) {
      event.preventDefault();
      const what = meaning(list[cursor]);
      if (what) onPick(what);
    }
  });
  div.addEventListener('blur', () => { cursor = -1; onHover(null); });
}
