// Shows what the lab found: sentences, a table, two Plotly figures in the theme's colours. Texts go in by textContent only.

import { h, css, setText } from '../../stage/js/dom.js';
import { readSkin } from '../../stage/js/skin.js';

const LABEL = 84;        // px beside the longest bar: its time
const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false, showTips: false };

class Lab {
  constructor({ element, props, watch }) {
    this.root = element.querySelector('.lab');
    this.root.pagewalk = this;                       // for tests and the console
    this.part = name => this.root.querySelector(name);
    this.skin = readSkin(this.root);
    const resized = new ResizeObserver(() => this.schedule());
    resized.observe(this.root);
    new IntersectionObserver(() => this.schedule()).observe(this.root);       // first shown when its tab is opened
    new MutationObserver(() => { this.skin = readSkin(this.root); this.schedule(); }).observe(document.body, { attributes: true, attributeFilter: ['class'] });
    document.fonts?.ready.then(() => { this.skin = readSkin(this.root); this.schedule(); });
    watch('value', () => this.receive(props.value));
    this.receive(props.value);
  }

  // running, problem: a sentence; what was found before stays in sight. idle, result: everything.
  receive(view) {
    if (!view?.kind) return;
    this.view = view;
    this.root.dataset.state = view.kind;
    setText(this.part('.labsay'), view.text ?? '');
    if (view.plan) this.#show(view);
    this.schedule();
  }

  #show(view) {
    this.figures = { times: view.times, plan: view.plan };
    setText(this.part('.asked'), view.asked ?? '');
    setText(this.part('.headline'), view.headline);
    setText(this.part('.plan-title'), view.plan_title);
    setText(this.part('.plan-text'), view.plan_text);
    this.part('.times').hidden = !view.times;
    this.part('.times').setAttribute('aria-label', `Times. ${view.headline}`);
    this.part('.plan').setAttribute('aria-label', view.plan_text);
    this.part('.labtable').replaceChildren(...(view.table ? [tableOf(view.table)] : []));
    this.part('.labnotes').replaceChildren(...(view.notes ?? []).map(note => h('li', '', note)));
    this.drawn = '';
  }

  get settled() { return !this.scheduled; }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => { this.scheduled = false; this.#frame(); });
  }

  #frame() {
    if (!this.figures || !this.root.clientWidth) return;
    const width = this.part('.labbody').clientWidth - 2 * parseFloat(css(this.part('.labbody'), 'padding-left'));
    const other = this.part('.plan').clientWidth, key = `${width} ${other} ${this.skin.dark} ${this.skin.mono}`;
    if (key === this.drawn || width < 80) return;
    this.drawn = key;
    const { times, plan } = this.figures, ink = role => (role === 'ours' ? this.skin.ink : css(this.root, '--pw-earlier'));
    if (times) this.#draw(this.part('.times'), times, width, data => ({ ...data, marker: { ...data.marker, color: times.layout.meta.roles.map(ink) } }));
    this.#draw(this.part('.plan'), plan, other, data => data);
  }

  #draw(div, figure, width, recolour) {
    const { skin } = this, { layout } = figure, margin = { ...layout.margin, l: Math.min(layout.margin.l, width * 0.45) };
    const room = width - margin.l - margin.r, { most } = layout.meta, range = most ? { range: [0, most * room / Math.max(room - LABEL, room / 2)] } : {};
    window.Plotly.react(div, figure.data.map(recolour), {
      ...layout, width, margin, font: { ...layout.font, family: skin.mono, color: skin.subdued },
      xaxis: { ...layout.xaxis, ...range, showline: true, linecolor: skin.border, tickcolor: skin.border, nticks: width < 420 ? 4 : layout.xaxis.nticks },
      yaxis: { ...layout.yaxis, tickfont: { ...layout.yaxis.tickfont, family: skin.font, size: 12, color: skin.text } },
      shapes: (layout.shapes ?? []).map(shape => ({ ...shape, line: { ...shape.line, color: skin.text } })),
      annotations: (layout.annotations ?? []).map(note => ({ ...note, font: { ...note.font, family: skin.font, color: skin.subdued } })),
      hoverlabel: { bgcolor: skin.bg, bordercolor: skin.border, font: { family: skin.mono, size: 11, color: skin.text }, align: 'left' },
    }, CONFIG);
  }
}

function tableOf({ columns, rows }) {
  const cells = row => row.cells.map((text, i) => h('td', '', text, { 'data-label': columns[i + 1] }));
  const name = row => h('th', '', [row.name, row.ours ? h('span', 'here', 'the engine’s') : ''], { scope: 'row' });
  return h('table', '', [
    h('caption', 'vh', 'Paths side by side'), h('thead', '', h('tr', '', columns.map(text => h('th', '', text, { scope: 'col' })))),
    h('tbody', '', rows.map(row => h('tr', row.ours ? 'ours' : '', [name(row), ...cells(row)]))),
  ]);
}

window.Pagewalk = Object.assign(window.Pagewalk ?? {}, { mountLab: gradio => new Lab(gradio) });
