// "Save": the figure that a pane shows as PNG, SVG or one HTML file with plotly.js and the data in it. The menu is a button that
// opens a list, the dock's with what the app offers of a run (link, export, import) above; Esc and leaving it close it. What stands
// in a figure is data: it goes into the file as JSON.

import { h, icon, setAttr } from './dom.js';

const FORMATS = [['png', 'PNG picture'], ['svg', 'SVG drawing'], ['html', 'HTML, works offline']];
const SIZE = { width: 1280, height: 640 };

export class SaveMenu {
  // figure(): a promise of { figure: {data, layout}, name }, or of { reason }.
  // actions: [[name, text]] in front of the formats; onAction(name, button), and a true answer leaves the menu open.
  constructor(host, { label, text = 'Save', figure, onProblem, actions = [], onAction }) {
    Object.assign(this, { figure, onProblem, onAction });
    this.button = h('button', 'btn small ghost', [icon('save'), h('span', '', text)], { type: 'button', 'aria-haspopup': 'menu', 'aria-expanded': 'false', 'aria-label': label, title: label });
    const item = (kind, name, words) => h('button', '', words, { type: 'button', role: 'menuitem', [`data-${kind}`]: name, tabindex: -1 });
    this.menu = h('div', 'savemenu', [
      ...actions.map(([name, words]) => item('action', name, words)), actions.length ? h('div', 'rule', '', { role: 'separator' }) : '', ...FORMATS.map(([format, words]) => item('format', format, words)),
    ], { role: 'menu', 'aria-label': label, hidden: '' });
    this.items = [...this.menu.querySelectorAll('[role="menuitem"]')];
    host.classList.add('save');
    host.replaceChildren(this.button, this.menu);
    this.button.addEventListener('click', () => this.#open(this.menu.hidden));
    this.menu.addEventListener('click', event => this.#choose(event.target.closest('[role="menuitem"]')));
    host.addEventListener('keydown', event => this.#key(event));
    host.addEventListener('focusout', event => { if (!host.contains(event.relatedTarget)) this.#open(false); });
  }

  #open(open) {
    this.menu.hidden = !open;
    setAttr(this.button, 'aria-expanded', String(open));
    if (open) this.items[0].focus();
  }

  #choose(item) {
    if (!item) return;
    const { action, format } = item.dataset;
    if (action && this.onAction(action, item)) return;
    this.#open(false);
    this.button.focus();
    if (format) this.save(format);
  }

  #key(event) {
    if (this.menu.hidden) return;
    const { items } = this, at = items.indexOf(document.activeElement), by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) items[(at + by + items.length) % items.length].focus();
    else if (event.key === 'Escape') { this.#open(false); this.button.focus(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async save(format) {
    this.button.disabled = true;
    try {
      const { figure, name, reason } = await this.figure();
      if (!figure) return this.onProblem(reason);
      const size = { width: SIZE.width, height: Math.max(SIZE.height, figure.layout.height ?? 0) };
      if (format === 'html') return await download(await htmlFile(figure, name), `${name}.html`);
      const url = await window.Plotly.toImage({ data: figure.data, layout: { ...figure.layout, ...size } }, { format, ...size, scale: format === 'png' ? 2 : 1 });
      await download(await (await fetch(url)).blob(), `${name}.${format}`);
    } catch {
      this.onProblem('The figure could not be saved. Try again, or another format.');
    } finally {
      this.button.disabled = false;
    }
  }
}

// One file without a server: plotly.js as it is on this page, the figure as JSON. Nothing in it is read as markup.
async function htmlFile(figure, name) {
  const script = [...document.scripts].find(s => /plotly[^/]*\.js(\?|$)/.test(s.src)), code = await (await fetch(script.src)).text();
  const json = JSON.stringify({ data: figure.data, layout: { ...figure.layout, autosize: true, width: undefined } }).replace(/</g, '\\u003c').replace(/\u2028/g, '\\u2028').replace(/\u2029/g, '\\u2029');
  const parts = [
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>', name.replace(/[^\w .-]/g, ''), '</title></head>\n<body style="margin:0">',
    '<div id="figure" style="width:100%;min-height:100vh"></div>\n<p id="caption" style="font:14px system-ui;margin:0 16px 16px"></p>\n',
    '<script>', code.replace(/<\/script/gi, '<\\/script'), '</script>\n<script>const figure = ', json,
    ';\nPlotly.newPlot("figure", figure.data, figure.layout, { responsive: true });\n',
    'document.getElementById("caption").textContent = figure.layout.meta?.caption ?? "";</script>\n</body></html>\n',
  ];
  return new Blob(parts, { type: 'text/html' });
}

function download(blob, name) {
  const url = URL.createObjectURL(blob), link = h('a', '', '', { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
