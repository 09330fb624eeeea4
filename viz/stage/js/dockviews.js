// What the dock's views and the save menus need of the Stage: what is shown now, and what picking and hovering a bar does.

import { Views } from './views.js';
import { act } from './actions.js';
import { SaveMenu } from './save.js';

const SHARE = [['link', 'Copy link to this view'], ['export', 'Export this recording'], ['import', 'Import a recording']];

export class DockViews {
  constructor(stage, { setHover }) {
    Object.assign(this, { stage, setHover, picked: null, hovered: null, pin: null });
    const { root } = stage, [poolBox, dockBox] = root.querySelectorAll('.savebox'), onProblem = text => { stage.bus.notice = { level: 'bad', text }; stage.schedule(); };
    this.ask = question => stage.server?.stage_view?.(question);
    this.views = new Views(root, { usage: stage.usage, ask: this.ask, onChange: () => stage.resize(), onPick: what => this.#pick(what), onHover: what => this.#hover(what) });
    new SaveMenu(poolBox, { label: 'Save the pool as a figure', onProblem, figure: () => this.#poolFigure() });
    new SaveMenu(dockBox, {
      label: 'Share this view, or save its figure', text: 'Share', onProblem, figure: () => this.#dockFigure(),
      actions: SHARE.filter(([name]) => stage.props.actions?.includes(name)), onAction: (name, button) => { act(stage, name, button); return name === 'link'; },
    });
  }

  get busy() { return this.views.busy; }

  // Blocks that a view points at: ringed in the pool.
  get marks() { return this.hovered ?? this.picked; }

  // Takes the picked blocks back; says whether there were any.
  clear() { const had = this.picked !== null; this.picked = null; return had; }

  draw(state, view, following) {
    const { bus, clock, skin, layer, headIndex } = this.stage, { mirror } = bus;
    this.pin = subjectPin(state, view);
    return this.views.draw({
      session: bus.session, run: bus.run, recording: bus.header.recording?.id ?? null, step: clock.step, newest: mirror.newest, log: mirror.log.length, running: bus.running, following,
      pin: this.pin, layer, head: headIndex, dark: skin.dark, skin,
    });
  }

  #pick({ blocks, position }) {
    if (position !== null && this.pin) return this.stage.pinToken(this.pin.request, position, this.pin.query);
    this.picked = blocks;
    this.stage.schedule();
  }

  #hover(what) {
    const one = what && what.position !== null;
    this.hovered = what && !one ? what.blocks : null;
    this.setHover(one ? { block: what.blocks[0], offset: what.position % this.stage.state.blockSize } : null);
    this.stage.schedule();
  }

  #name(what) { return `pagewalk-${what}-step-${this.stage.clock.step}`; }

  async #poolFigure() {
    const { bus, clock, skin } = this.stage, answer = await this.ask({ view: 'pool', session: bus.session, run: bus.run, recording: bus.header.recording?.id ?? null, step: clock.step, mode: skin.dark ? 'dark' : 'light' });
    return { name: this.#name('pool'), figure: answer?.figure, reason: answer?.reason ?? 'This page cannot ask for the figure.' };
  }

  async #dockFigure() {
    const { name } = this.views.view, figure = name === 'blocks' ? this.stage.usage.exported(this.stage.skin) : this.views.figure;
    return { name: this.#name(name), figure, reason: 'There is no figure to save yet.' };
  }
}

// The pinned lookup; without one, a token in the middle of the first sequence, as the lookup panel proposes.
function subjectPin(state, view) {
  if (view && view.block !== null) return { request: view.request, position: view.position, query: view.query, chosen: true };
  const r = state.requests.find(q => q.computed > 1);
  return r ? { request: r.id, position: Math.min(17, Math.floor(r.computed / 2)), query: r.computed - 1, chosen: false } : null;
}
