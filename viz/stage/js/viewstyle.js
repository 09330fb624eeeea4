// A figure from Python in the dock: its own colours and patterns (it was asked for light or dark), the page's size, no title and
// no legend (the dock has both as text), an axis of steps that lies under the scrubber. Pure.

const TIME = { l: 34, r: 8, t: 14, b: 18 }, STILL = { l: 44, r: 12, t: 20, b: 20 };

export function dressed(figure, { width, height, span, skin }) {
  const { layout } = figure, over = layout.meta.axis === 'step', clear = 'rgba(0,0,0,0)', out = { ...layout, width, height, title: undefined, showlegend: false };
  const margin = over ? TIME : STILL, given = layout.margin ?? {};
  const labels = axis => Math.max(0, ...(axis?.ticktext ?? []).map(text => String(text).length));
  const l = Math.max(margin.l, 10 + 6.8 * Math.max(...Object.keys(layout).filter(k => k.startsWith('yaxis')).map(k => labels(layout[k]))));
  Object.assign(out, { margin: { ...margin, l: Math.min(Math.round(l), Math.max(given.l ?? 0, 120)), pad: 0 }, paper_bgcolor: clear, plot_bgcolor: clear, font: { ...layout.font, family: skin.font, size: 11 }, datarevision: figure });
  for (const name of Object.keys(layout)) if (/^[xy]axis/.test(name)) out[name] = { ...layout[name], title: undefined, fixedrange: true, tickfont: { ...layout[name].tickfont, family: skin.mono } };
  if (over) Object.assign(out, { hovermode: false, xaxis: { ...out.xaxis, range: [0, span], nticks: Math.max(2, Math.floor(width / 90)), tickformat: ',d' } });
  const annotations = (layout.annotations ?? []).filter(a => !(a.yref === 'paper' && a.y === 0));     // captions: the dock says them
  return { data: figure.data, layout: { ...out, annotations } };
}
