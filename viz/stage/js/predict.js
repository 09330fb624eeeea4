// Predict: a token is named, the visitor clicks its slot in the pool and is told whether it lives there, and why.

import { h, bold, centre, icon, setText, visible } from './dom.js';
import { ROUND, isHeld, judge, pickToken, random } from './quiz.js';
import { lastHeld } from './moments.js';

export class Predict {
  constructor(learn) {
    this.learn = learn;
    this.stage = learn.stage;
    this.seed = Date.now();                       // a test sets its own
    this.text = h('p', '', '', { role: 'status' });
    this.score = h('span', 'score');
    this.show = this.#button('Show the walk', () => this.reveal());
    this.go = this.#button('Next token', () => this.next());
    const leave = h('button', 'tbtn', icon('close'), { type: 'button', 'aria-label': 'Leave predict mode' });
    leave.addEventListener('click', () => learn.close());
    this.bar = h('section', 'quiz', [h('b', 'mode', 'Predict'), this.text, h('span', 'acts', [this.score, this.show, this.go, leave])], { 'aria-label': 'Predict', hidden: '' });
    this.stage.root.insertBefore(this.bar, this.stage.root.querySelector('.panes'));
  }

  #button(label, run) {
    const button = h('button', 'btn small', label, { type: 'button' });
    button.addEventListener('click', run);
    return button;
  }

  get isOpen() { return !this.bar.hidden; }
  get asks() { return this.isOpen && this.phase === 'ask'; }

  start() {
    const { stage } = this, { mirror, running } = stage.bus, shown = stage.state;
    this.bar.hidden = false;
    this.draw = random(this.seed);
    this.round = [];
    this.right = 0;
    stage.resize();
    const step = lastHeld(mirror, running ? Math.min(shown.step, mirror.newest - 1) : shown.step) ?? lastHeld(mirror, mirror.newest);
    if (step === null) return this.#say('empty', ['No tokens yet. Pick an example or press Generate, then come back.']);
    stage.seek(step);                             // stand still: a token that is asked for must keep its place
    this.next();
    stage.pool.div.focus({ preventScroll: true });
  }

  stop() {
    if (!this.isOpen) return;
    this.bar.hidden = true;
    this.phase = null;
    this.token = null;
    this.#shut();
    this.#mark();
    this.stage.resize();
  }

  next() {
    const { stage } = this, state = stage.bus.mirror.stateAt(stage.clock.step);
    if (this.round.length >= ROUND) { this.round = []; this.right = 0; }
    this.token = pickToken(state, this.draw, this.round);
    if (!this.token) return this.#say('empty', ['No sequence holds a block at this step. Go to another step, then press Next token.']);
    const { request, position } = this.token, logical = Math.floor(position / state.blockSize);
    stage.pin.clear();
    this.#shut();
    this.row = stage.tokens.opened.get(request)?.has(logical) ? null : { request, logical };
    stage.tokens.open(request, logical, logical);
    this.fresh = true;
    this.#say('ask', ['Where is ', this.#name(state), '? Read its table entry, then click its slot in the pool.']);
    stage.schedule();
  }

  // Folds the row again that was opened for the last token.
  #shut() { if (this.row) this.stage.tokens.opened.get(this.row.request)?.delete(this.row.logical); this.row = null; }

  #name(state) {
    const { request, position } = this.token;
    return bold(`${request}:${position} “${visible(state.texts.get(request)[position]).text}”`);
  }

  // While a token is asked for, nothing may tell who lives where: the tip names the place alone.
  veil(hit) {
    if (!this.asks) return null;
    const { stage } = this, size = stage.state.blockSize;
    return { what: hit.offset < 0 || stage.pool.g.level === 'blocks' ? `block ${hit.block}` : `block ${hit.block}, slot ${hit.block * size + hit.offset}`, title: '', text: 'Is it here?' };
  }

  // A pick in the pool. True: it was an answer.
  guess(picked) {
    if (!this.asks || picked.offset < 0) return this.asks;
    const { stage } = this, verdict = judge(stage.state, this.token, picked);
    this.round.push(this.token);
    if (verdict.right) this.right++;
    if (verdict.right) { this.#say('right', [bold('Right. '), verdict.sum]); this.#pin(); }
    else this.#say('wrong', [bold('Not there. '), `${verdict.here} `, this.#name(stage.state), `: ${verdict.sum}`]);
    return true;
  }

  reveal() {
    if (this.phase === 'ask') {
      const { block, sum } = judge(this.stage.state, this.token, { block: -1, offset: -1 });
      this.round.push(this.token);
      this.#say('wrong', [this.#name(this.stage.state), ` is in block ${block}: ${sum}`]);
    }
    this.#pin();
  }

  #pin() { this.show.hidden = true; this.stage.pinToken(this.token.request, this.token.position); }

  #say(phase, words) {
    this.phase = phase;
    this.bar.dataset.phase = phase;
    this.text.replaceChildren(...words);
    const done = this.round.length, over = done >= ROUND && phase !== 'ask';
    setText(this.score, over ? `Round over: ${this.right} of ${ROUND} right` : done ? `${this.right} of ${done} right` : '');
    setText(this.go, over ? 'New round' : phase === 'ask' ? 'Another token' : 'Next token');
    this.go.classList.toggle('primary', phase === 'right' || phase === 'wrong');
    this.show.hidden = phase !== 'ask' && phase !== 'wrong';
    setText(this.show, phase === 'ask' ? 'Show me' : 'Show the walk');
    this.stage.resize();
  }

  frame(state) {
    if (!this.isOpen) return;
    if (this.asks && !isHeld(state, this.token)) this.next();          // the visitor went to a step where it has no slot
    const { target } = this.stage.pin;
    if (this.asks && target && target.request === this.token.request && target.position === this.token.position) this.reveal();      // the walk is on screen
    this.#mark();
  }

  // Rows are built anew as one scrolls in time; the asked token keeps its mark.
  #mark() {
    const element = this.asks ? this.stage.tokens.token(this.token.request, this.token.position) : null;
    if (this.marked !== element) { this.marked?.removeAttribute('data-asked'); element?.setAttribute('data-asked', ''); this.marked = element; }
    if (element && this.fresh) { this.fresh = false; centre(this.stage.tokens.host, element); }
  }
}
