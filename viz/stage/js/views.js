// The dock's views: which figure stands in the place of "Blocks in use". Python makes each from the replayed run when asked: on
// choosing, and when what it shows has settled. One question is under way at a time; an answer to another subject is dropped.

import { setText, setAttr } from './dom.js';
import { ViewTabs } from './viewtabs.js';
import { renderKey } from './viewkey.js';
import { dressed } from './viewstyle.js';
import { viewInput } from './viewinput.js';

// needs: what the view depends on: every step of the run, the shown step, or the pinned lookup.
export const VIEWS = [
  { name: 'blocks', label: 'Blocks', hint: 'Blocks in use', needs: 'run' },
  { name: 'allocator', label: 'Pool', hint: 'Blocks of the pool', needs: 'run' },
  { name: 'waste', label: 'Waste', hint: 'Paged or contiguous', needs: 'run' },
  { name: 'timeline', label: 'Requests', hint: 'Life of sequences', needs: 'run' },
  { name: 'memory', label: 'Memory', hint: 'Where memory goes', needs: 'step' },
  { name: 'attention', label: 'Attention', hint: 'One query, all keys', needs: 'pin' },
  { name: 'vectors', label: 'Vectors', hint: 'One lookup\'s numbers', needs: 'pin' },
  { name: 'kernel', label: 'Kernel', hint: 'Programs and pages', needs: 'step' },
];
const SETTLE_MS = 140, STREAM_MS = 1000, QUIET_PART = 20;   // while a run streams: once a second, and a twentieth of the time at most
const REDRAW_MS = 250;
const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false };

// What to ask about a scene, or the sentence that stands in its place. Pure.
// subject: an answer to another one is dropped; changes: which state of the subject an answer is of.
export function questionFor(view, scene, width) {
  const { session, run, recording, step, newest, log, running, following, pin, layer, head, dark } = scene, mode = dark ? 'dark' : 'light';
  if (!run) return { problem: 'Nothing has run yet. Press Generate.' };
  const ask = { view: view.name, session, run, recording, mode, step: view.needs === 'run' ? newest : step }, live = running && following;
  if (view.needs === 'run') return { ask, subject: [view.name, run, mode].join(' '), changes: `${log} ${mode}` };
  if (view.needs === 'step') return { ask, subject: [view.name, run, mode, live ? '' : step].join(' '), changes: `${step} ${mode}` };
  if (!pin) return { problem: 'No token has a key yet at this step. Go on a step, or press Generate.' };
  const { request, position, query, chosen } = pin, what = [view.name, run, mode, request, chosen ? position : '', layer, head];
  return { ask: { ...ask, request, position, query, layer, head, width }, subject: what.join(' '), changes: [position, query, live ? '' : step, width].join(' ') };
}

export class Views {
  constructor(root, { usage, ask, onChange, onPick, onHover }) {
    Object.assign(this, { root, usage, ask, onChange, turn: 0, flying: false, live: false, timer: 0, lastAsk: -Infinity, cost: 0 });
    const find = name => root.querySelector(`.time .${name}`);
    [this.div, this.key, this.say, this.hint, this.chart] = ['viewplot', 'viewkey', 'viewsay', 'hint', 'chart'].map(find);
    this.tabs = new ViewTabs(find('views'), VIEWS, name => this.choose(name));
    viewInput(this.div, { onPick, onHover, announce: text => setText(root.querySelector('.announce'), text) });
    this.view = null;
    this.choose('blocks');
  }

  // Something that a person asked for is not drawn yet; the next look at a run that goes on is not that.
  get busy() { return this.flying || (this.timer > 0 && !(this.live && this.answer)); }

  choose(name) {
    if (this.view?.name === name) return;
    this.view = VIEWS.find(view => view.name === name);
    const blocks = name === 'blocks';
    this.#forget('');
    this.#clear('');
    this.tabs.select(name);
    setText(this.hint, this.view.hint);
    this.root.dataset.view = name;
    this.chart.toggleAttribute('data-still', this.view.needs !== 'run');
    this.usage.cover(!blocks);
    this.say.hidden = this.key.hidden = blocks;
    this.lastAsk = -Infinity;
    this.onChange();
  }

  // Once a frame, with what the page shows. Returns in how many milliseconds a postponed drawing is due, or 0.
  draw(scene) {
    if (this.view.name === 'blocks' || !this.chart.clientWidth) return 0;
    const question = questionFor(this.view, scene, this.chart.clientWidth);
    if (question.problem) { this.#forget(''); this.#clear(question.problem); return 0; }
    if (question.subject !== this.subject) this.#forget(question.subject);
    this.#inquire(question, scene.running && scene.following);
    return this.answer ? this.#show(scene) : 0;
  }

  // What is under way is of no use any more. The old picture stays until there is another.
  #forget(subject) {
    clearTimeout(this.timer);
    Object.assign(this, { subject, have: null, wanted: null, timer: 0, flying: false });
    this.turn++;
  }

  #clear(text) {
    this.answer = this.drawn = null;
    this.div.hidden = true;
    this.key.replaceChildren();
    setText(this.say, text);
  }

  #inquire(question, live) {
    const { changes } = question;
    this.live = live;
    if (changes === this.have || changes === this.wanted || this.flying) return;
    this.wanted = changes;
    clearTimeout(this.timer);
    const pause = live ? Math.max(STREAM_MS, QUIET_PART * this.cost) : 0, first = this.lastAsk === -Infinity;
    const delay = first ? 0 : Math.max(live ? 0 : SETTLE_MS, this.lastAsk + pause - performance.now());
    this.timer = setTimeout(() => this.#send(question), delay);
  }

  async #send({ ask, changes }) {
    const turn = this.turn, began = performance.now();
    Object.assign(this, { flying: true, timer: 0, lastAsk: began });
    let answer;
    try {
      answer = await this.ask(ask);
    } catch {
      answer = { ok: false, reason: 'The server did not answer. Press Generate for a new run, or choose the view again.' };
    }
    if (turn !== this.turn) return;
    Object.assign(this, { flying: false, have: changes, wanted: null, cost: performance.now() - began });
    if (answer?.ok) this.answer = answer;
    else this.#clear(answer?.reason ?? 'This page cannot ask for this view.');
    this.onChange();
  }

  #show({ step, newest, following, skin }) {
    const { answer, chart, usage } = this, { figure } = answer, { meta } = figure.layout, over = meta.axis === 'step', now = performance.now();
    setText(this.say, answer.caption);                   // words first: they decide what room the picture has
    renderKey(this.key, figure.data, meta, over ? step : null, skin);
    const width = Math.max(120, chart.clientWidth), height = Math.max(60, chart.clientHeight), span = over ? usage.spanOf(newest, following) : 0, size = `${width} ${height} ${span}`;
    if (this.drawn?.answer === answer && this.drawn.size === size) return 0;
    const wait = this.drawn?.answer === answer ? Math.max(0, this.drawn.at + REDRAW_MS - now) : 0;   // only the axis or the window grew
    if (wait) return wait;
    if (!window.Plotly) return REDRAW_MS;
    const { data, layout } = dressed(figure, { width, height, span, skin });
    this.div.hidden = false;
    setAttr(this.div, 'aria-label', `${this.view.label}. ${answer.caption}`);
    window.Plotly.react(this.div, data, layout, CONFIG);
    if (over) usage.frame = { l: layout.margin.l, r: layout.margin.r, xmax: span };
    this.drawn = { answer, size, at: now };
    return 0;
  }

  // The figure that stands in the dock, as Python made it.
  get figure() { return this.answer?.figure ?? null; }
}
