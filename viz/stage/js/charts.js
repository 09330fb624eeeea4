// The figures that always stand: the pool's and the usage chart's. plotly.js is only fetched ahead by <head>; running it takes a
// browser up to a second, which the first picture does not wait for: tokens, tables and the pool's canvas stand without it.

const TAG = 'link[rel=preload][as=script][href*="plotly"]';
const LATEST_MS = 4000;
let running = null;

// Resolves when window.Plotly is there; rejects where the script cannot be loaded (the next call tries again).
function plotly() {
  if (window.Plotly) return Promise.resolve();
  running ??= new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement('script'), { src: document.querySelector(TAG).href, onload: () => done(), onerror: failed }));
  }).catch(error => { running = null; throw error; });
  return running;
}

const afterFrame = () => new Promise(done => { requestAnimationFrame(() => setTimeout(done)); });

export class Charts {
  constructor({ pool, usage, onPlotted, onProblem }) {
    Object.assign(this, { pool, usage, onPlotted, onProblem, shape: null, plotting: 0 });
    setTimeout(() => plotly().catch(() => {}), LATEST_MS);   // the other tabs wait for it too, whatever becomes of this one
  }

  // Not all of it stands yet.
  get pending() { return this.plotting > 0; }
  // Nothing may be drawn: the new shape would stand in the old figure.
  get loading() { return this.pending && Boolean(window.Plotly); }

  // Figures for a pool of another shape than before. A promise where drawing must wait for them, or null.
  show(figures, { num_blocks, block_size }) {
    const shape = `${num_blocks} ${block_size}`;
    if (!figures || shape === this.shape) return null;
    this.shape = shape;
    this.pool.setFigure(figures.pool);
    this.usage.setFigure(figures.usage);
    const plotted = this.#plot();
    return window.Plotly ? plotted : null;
  }

  async #plot() {
    this.plotting++;
    try {
      if (!window.Plotly) await afterFrame();
      await plotly();
      await this.pool.plot();
      await this.usage.plot();
    } catch {
      this.onProblem('The charts could not be loaded. Reload the page to try again.');
    }
    this.plotting--;
    this.onPlotted();
  }
}
