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
    this.mode = null;          // which of LEARN_ACTIONS is open
    this.turn = 0;
  }

  // A button or a key by its name. True: it was one of ours. Pressed again, it leaves.
  act(name) {
    if (!LEARN_ACTIONS.includes(name)) return false;
    const again = this.mode === name;
    this.close();
    if (again) return true;
    this.opener = document.activeElement;
    this.mode = name;
    this.#buttons();
    if (name === 'tour') this.tour.start();
    else if (name === 'ask') this.ask.open();
    else this.predict.start();
    this.stage.schedule();
    return true;
  }

  // Leaves whatever is open and puts the focus back where it came from. True: there was something to leave.
  close() {
    if (!this.mode) return false;
    this.mode = null;
    this.turn++;
    const inside = this.stage.root.contains(document.activeElement) || document.activeElement === document.body;
    this.guide.hide();
    this.ask.hide();
    this.tour.stop();
    this.predict.stop();
    this.#buttons();
    if (inside && this.opener?.isConnected) this.opener.focus({ preventScroll: true });
    this.opener = null;
    this.stage.schedule();
    return true;
  }

  #buttons() { for (const name of LEARN_ACTIONS) for (const button of this.stage.root.querySelectorAll(`[data-action="${name}"]`)) button.setAttribute('aria-pressed', String(name === this.mode)); }

  // After every drawing of the Stage.
  frame(state) {
    this.guide.frame();
    this.ask.frame();
    this.predict.frame(state);
    this.coach.frame(() => goodToken(state), this.mode !== null);
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

  // Shows a moment: of the recording `example`, or of the visitor's own run where that has one (and `fromExample` does not insist).
  // -> { found }: the moment, or null where nothing could show it; or null when something else was opened meanwhile.
  async openMoment({ example, moment, level = 'slots', fromExample = false }) {
    const { stage } = this, turn = ++this.turn, recording = stage.bus.header?.recording;
    const own = !recording && !fromExample && findMoment(moment, stage.bus.mirror);
    if (!own && recording?.id !== example) await stage.open({ example, step: 0 });
    if (turn !== this.turn) return null;
    const found = findMoment(moment, stage.bus.mirror);
    if (found) await this.#go(found, level);
    return turn === this.turn ? { found } : null;
  }

  // What is pinned already stays: its numbers are there.
  async #go({ step, request, position }, level) {
    const { stage } = this, { target } = stage.pin;
    if (target?.request !== request || target.position !== position || stage.clock.step !== step) await stage.open({ step, request, position, view: level });
    else if (stage.pool.wrap.dataset.level !== level) stage.pool.zoomTo(level);
  }
}
