// Opens recordings and restores views: what a link, the tour, the examples and the notice's buttons ask for.

const PATIENCE_MS = 20_000;

export class Opener {
  constructor(stage) { this.stage = stage; this.waiting = null; }

  // `view`: { example, step, request, position, query, layer, head, view }, each optional; `view` is a zoom level of the pool.
  // Without a step the recording plays. Resolves to true once everything is drawn; to false where the example cannot be
  // opened (the notice says why) or another one was asked for meanwhile.
  async open(view) {
    const { stage } = this, shown = stage.bus.header?.recording?.id;
    if (view.example && view.example !== shown && !(await this.#fetch(view.example))) return false;
    if (!stage.bus.mirror) return false;
    this.restore(view, true);
    await this.#drawn();
    return true;
  }

  #fetch(example) {
    this.waiting?.done(false);
    return new Promise(resolve => {
      const waiting = this.waiting = { example, done: shown => { clearTimeout(timer); if (this.waiting === waiting) this.waiting = null; resolve(shown); } };
      const timer = setTimeout(() => waiting.done(false), PATIENCE_MS);
      this.stage.trigger('open_recording', { example });
    });
  }

  // The Stage shows a run or a recording anew, or the server refused to.
  arrived(header) { if (this.waiting && header?.recording?.id === this.waiting.example) this.waiting.done(true); }
  refused() { this.waiting?.done(false); }

  // Goes to the view. `plays`: without a step it starts from the beginning.
  restore({ step, request, position, query, layer, head, view }, plays) {
    const { stage } = this, { mirror, header } = stage.bus, { clock, lookup } = stage;
    if (layer !== undefined && layer !== null) choose(lookup.layer, layer);
    if (head !== undefined && head !== null) choose(lookup.head, head);
    if (step !== undefined && step !== null) clock.seek(step, mirror.newest);
    else if (plays && matchMedia('(prefers-reduced-motion: reduce)').matches) clock.seek(mirror.newest, mirror.newest);
    else if (plays) clock.play(header.recording?.opening?.step ?? 0);
    stage.state = mirror.stateAt(clock.step);
    if (request) stage.pinToken(request, position, query);
    else if (plays || step !== undefined) stage.pin.clear();
    if (view && ['blocks', 'slots', 'tokens'].includes(view)) stage.pool.zoomTo(view);
    stage.schedule();
  }

  // Resolves when what was asked for is on the screen; a hidden page draws nothing and is not waited for.
  #drawn() {
    const { stage } = this, began = performance.now();
    return new Promise(resolve => {
      const look = () => {
        const playing = stage.clock.mode === 'playing';
        if ((playing ? !stage.charts.loading : stage.settled) || document.hidden || performance.now() - began > 2000) resolve();
        else setTimeout(look, 16);
      };
      setTimeout(look, 0);
    });
  }
}

function choose(select, value) { if ([...select.options].some(option => option.value === String(value))) select.value = String(value); }
