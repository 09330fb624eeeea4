// The weights chart: Plotly draws Python's figure; the theme's colours and the pane's size are put in here.

import { css } from '../../stage/js/dom.js';

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false, showTips: false };

export class WeightsChart {
  constructor(root, figure) {
    this.box = root.querySelector('.wchart');
    this.div = root.querySelector('.weights');
    this.figure = figure;
    this.drawn = '';
  }

  // The figure's own layout, in this theme and size.
  #layout(skin, width, height) {
    const { layout } = this.figure, { position } = layout.meta, own = note => (note.x === position ? skin.text : skin.subdued);
    return {
      ...layout, width, height, font: { ...layout.font, family: skin.mono, color: skin.subdued },
      annotations: layout.annotations.map(note => ({ ...note, font: { ...note.font, family: skin.mono, color: own(note) } })),
      xaxis: { ...layout.xaxis, linecolor: skin.border },
      shapes: layout.shapes.map(shape => ({ ...shape, line: { ...shape.line, color: skin.border } })),
      hoverlabel: { bgcolor: skin.bg, bordercolor: skin.border, font: { family: skin.mono, size: 11, color: skin.text } },
    };
  }

  draw(shown, skin) {
    this.div.style.visibility = shown ? '' : 'hidden';
    this.div.toggleAttribute('inert', !shown);
    const width = this.box.clientWidth - parseFloat(css(this.box, 'padding-left')) * 2, height = this.box.clientHeight - parseFloat(css(this.box, 'padding-bottom'));
    const key = `${width} ${height} ${skin.dark} ${skin.mono}`;
    if (!shown || width < 40 || height < 40 || key === this.drawn) return;
    this.drawn = key;
    const [trace] = this.figure.data, { position } = this.figure.layout.meta, other = Number(css(this.box, '--pw-bar'));
    const marker = { ...trace.marker, color: trace.x.map((_, p) => (p === position ? skin.ink : skin.colours[0])), opacity: trace.x.map((_, p) => (p === position ? 1 : other)) };
    window.Plotly.react(this.div, [{ ...trace, marker }], this.#layout(skin, width, height), CONFIG);
  }
}
