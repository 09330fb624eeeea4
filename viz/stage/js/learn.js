// What helps a visitor to read the picture: tour, answers, predict mode, the first visit's mark. One of them at a time.

import { Guide } from './guide.js';
import { Tour } from './tour.js';
import { Ask, answerCard } from './ask.js';
import { Predict } from './predict.js';
import { Coach } from './coach.js';
import { findMoment, goodToken } from './moments.js';
import { factsOf, fillAll } from './facts.js';

export const LEARN_ACTIONS = ['tour', 'ask', 'predict'];

export class Learning {
  constructor(stage) {
    this.stage = stage;
    this.guide = new Guide(stage);
    this.tour = new Tour(this);
    this.ask = new Ask(this);
    this.predict = new Predict(this);
    this.coach = new Coach(stage);
    this.turn = 0;
  }

  get busy() { return this.guide.isOpen || this.ask.isOpen || this.predict.isOpen || this.tour.isOpen; }

  // A button or a key by its name. True: it was one of ours. Pressed again, it leaves.
  act(name) {
    if (!LEARN_ACTIONS.includes(name)) return false;
    const again = this[name].isOpen;
    if (this.busy) this.close();
    if (again) return true;
    this.opener = document.activeElement;
    this.#toggle(name, true);
    if (name === 'tour') this.tour.start();
    else if (name === 'ask') this.ask.open();
    else this.predict.start();
    return true;
  }

  // Leaves whatever is open and puts the focus back where it came from. True: there was something to leave.
  close() {
    if (!this.busy) return false;
    this.turn++;
    const inside = this.stage.root.contains(document.activeElement) || document.activeElement === document.body;
    this.guide.hide();
    this.ask.hide();
    this.tour.stop();
    this.predict.stop();
    for (const name of LEARN_ACTIONS) this.#toggle(name, false);
    if (inside && this.opener?.isConnected) this.opener.focus({ preventScroll: true });
    this.opener = null;
    this.stage.schedule();
    return true;
  }

  #toggle(name, on) { for (const button of this.stage.root.querySelectorAll(`[data-action="${name}"]`)) button.setAttribute('aria-pressed', String(on)); }

  // After every drawing of the Stage.
  frame(state) {
    this.guide.frame();
    this.ask.frame();
    this.predict.frame(state);
    this.coach.frame(goodToken(state), this.busy);
  }

  // ---- questions

  questions(focused) { this.guide.hide(); this.ask.open(focused); }

  async answer(question) {
    this.ask.hide();
    const shown = await this.openMoment(question);
    if (shown) this.guide.show(answerCard(this, question, shown));
  }

  // The words of a state as it is now on screen: numbers by name, late ones when they come.
  words(sentences, shown) {
    const { bus, state, pin } = this.stage;
    return fillAll(sentences, factsOf({ header: bus.header, state, pin: pin.target, answer: pin.answer, extra: shown.found?.facts }));
  }

  // ---- the state that shows it

  // Shows a moment: of the run on screen, or of the recording `example` where that run has none (or where `fromExample` asks for it).
  // -> { found }: the moment, or null where nothing could show it; or null when something else was opened meanwhile.
  async openMoment({ example, moment, level = 'slots', fromExample = false }) {
    const { stage } = this, turn = ++this.turn, shown = () => this.example && this.example.run === stage.bus.run ? this.example.name : null;
    let found = findMoment(moment, stage.bus.mirror);
    if (stage.open && shown() !== example && (fromExample || !found)) {
      try { await stage.open({ example }); this.example = { name: example, run: stage.bus.run }; } catch { /* this recording is not to be had: what is on screen must do */ }
      if (turn !== this.turn) return null;
      found = findMoment(moment, stage.bus.mirror);
    }
    if (found) await this.#go(found);
    if (turn !== this.turn) return null;
    if (found && level !== stage.pool.wrap.dataset.level) stage.pool.zoomTo(level);
    await drawn(stage);
    return turn === this.turn ? { found } : null;
  }

  async #go({ step, request, position }) {
    const { stage } = this;
    if (stage.open) return stage.open({ step, request, position });
    const state = stage.bus.mirror.stateAt(step), r = state.request(request);
    stage.seek(step);
    stage.pin.set(request, position, Math.max(position, r.computed - 1));
    stage.animate = true;
    stage.schedule();
    await drawn(stage);
  }
}

async function drawn(stage) {
  do await new Promise(requestAnimationFrame); while (!stage.settled);
}
