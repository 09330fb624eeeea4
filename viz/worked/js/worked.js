// Mounts the worked lookup: tokens and block table, pool and walk are the Stage's own parts on the example's state;
// six steps, weights and outputs stand beside them. Drawn at most once a frame.

import { h, icon, colour, setText, setAttr } from '../../stage/js/dom.js';
import { TokensPane } from '../../stage/js/tokens.js';
import { PoolPane } from '../../stage/js/poolpane.js';
import { Walk } from '../../stage/js/walk.js';
import { Tip } from '../../stage/js/tip.js';
import { rowKeys, ensureTabStop } from '../../stage/js/keys.js';
import { describeSlot } from '../../stage/js/describe.js';
import { readSkin } from '../../stage/js/skin.js';
import { swatch } from '../../stage/js/painter.js';
import { REQUEST, sceneOf, placeOf } from './scene.js';
import { STEPS, sixSteps, sentences, proofText } from './steps.js';
import { outputTable } from './outputs.js';
import { WeightsChart } from './chart.js';
import './tablink.js';

const HEIGHT = { least: 600, most: 760, below: 20 }, WIDE = 1100, TALL_TABLE = 480;      // px
const LEGEND = [['holds a token', { ref: 1, owner: 0, filled: 8 }], ['reserved, not written yet', { ref: 1, owner: 0, filled: 0 }], ['free', {}]];
const ALL_OPEN = { head: 0, row: 0, fold: 0, available: Infinity };

class Worked {
  constructor({ element, props }) {
    const { example, figures } = props.value;
    this.root = element.querySelector('.wstage');
    this.root.pagewalk = this;                       // for tests and the console
    this.page = element.querySelector('.worked');
    this.x = example;
    this.words = sentences(example);
    this.state = sceneOf(example, this.words.written);
    this.at = { block: example.physical_block, offset: example.block_offset };
    this.step = 1;
    this.hover = null;
    this.skin = readSkin(this.root);
    this.#build(figures);
    this.#listen();
  }

  async #build(figures) {
    const { root, words } = this, say = (selector, text) => setText(this.page.querySelector(selector), text);
    say('.wabout', words.about);
    say('.tokens-size', words.tokens);
    say('.weights-of', words.weights);
    say('.pool-about', words.pool);
    say('.asks', words.asks);
    this.tokens = new TokensPane(root);
    this.pool = new PoolPane(root, { onView: () => this.schedule() });
    this.walk = new Walk(root, { numbers: ['1', '2', '', '3'], enter: 4, last: 'end' });
    this.tip = new Tip(root);
    this.chart = new WeightsChart(root, figures.weights);
    this.#tokens();
    this.#steps();
    setAttr(this.pool.div, 'aria-label', `Pool of ${this.x.num_blocks} blocks. ${this.x.block_table.map((block, i) => `Block ${block} holds logical block ${i}`).join('. ')}. All others are free.`);
    setAttr(root.querySelector('.wchart'), 'aria-label', `${words.weights}: ${words.largest}, ${sixSteps(this.x)[5].value} for token ${this.x.key_position}`);
    this.loading = true;
    this.pool.setFigure(figures.pool);
    await this.pool.plot();
    this.loading = false;
    this.schedule();
  }

  #tokens() {
    const { tokens, x } = this, pin = { request: REQUEST, position: x.key_position, query: x.context_len };
    tokens.render(this.state, pin, ALL_OPEN);
    tokens.host.querySelector('.seq .blocks').textContent = this.words.table;
    for (const token of tokens.host.querySelectorAll('.tok[data-position]')) {
      const position = Number(token.dataset.position), place = placeOf(x, position);
      const text = place ? `position ${position}: block ${place.block}, slot ${place.slot}` : `position ${position}: the query, not in the cache yet`;
      setAttr(token, 'aria-label', text);
      setAttr(token, 'title', text);
      token.removeAttribute('aria-pressed');
    }
    for (const cell of tokens.host.querySelectorAll('.cell')) {
      const { logical, physical } = cell.dataset;
      setAttr(cell, 'aria-label', `${logical}→${physical}: logical block ${logical} is physical block ${physical}`);      // begins as it reads
    }
    ensureTabStop(tokens.host);
  }

  #steps() {
    const proof = proofText(this.x), row = ({ title, value, how, why, fields }, i) => h('li', '', [
      h('span', 'disc', i + 1, { 'data-disc': i + 1 }), h('h3', '', h('button', 'go', title, { type: 'button' })), h('span', 'val', value), h('span', 'how', how), h('p', '', why),
    ], Object.fromEntries([['data-step', i + 1], ...Object.entries(fields).map(([name, number]) => [`data-${name.replaceAll('_', '-')}`, number])]));
    this.list = sixSteps(this.x).map(row);
    this.root.querySelector('.six').replaceChildren(...this.list);
    this.proof = h('div', 'proof', [h('span', 'tick', proof.same ? icon('check') : '', { 'data-disc': 'end' }), h('b', '', proof.title), h('span', 'val', proof.value), h('p', '', proof.why)],
      { 'data-field': 'max_abs_difference', 'data-value': this.x.max_abs_difference });
    this.root.querySelector('.wproof').replaceChildren(this.proof);
  }

  #listen() {
    const { root } = this, rows = root.querySelector('.rows'), back = root.querySelector('.back'), next = root.querySelector('.next');
    back.addEventListener('click', () => this.go(this.step - 1));
    next.addEventListener('click', () => this.go(this.step + 1));
    this.list.forEach((li, i) => li.addEventListener('click', () => this.go(i + 1)));
    rowKeys(rows);
    for (const [on, off] of [['pointerover', 'pointerleave'], ['focusin', 'focusout']]) {
      rows.addEventListener(on, event => this.#overRows(event));
      rows.addEventListener(off, () => this.#setHover(null));
    }
    this.pool.div.addEventListener('pointermove', event => this.#overPool(event));
    this.pool.div.addEventListener('pointerleave', () => this.#setHover(null));
    document.addEventListener('keydown', event => this.#key(event));
    const resized = new ResizeObserver(() => this.resize());
    for (const element of [root, root.querySelector('.wchart'), this.pool.wrap]) resized.observe(element);
    new IntersectionObserver(() => this.resize()).observe(root);       // first shown when its tab is opened
    root.querySelector('.lookup .body').addEventListener('scroll', () => this.schedule(), { passive: true });
    window.addEventListener('resize', () => this.resize());
    new MutationObserver(() => this.#theme()).observe(document.body, { attributes: true, attributeFilter: ['class'] });
    document.fonts?.ready.then(() => this.#theme());
  }

  // Arrows, Home and End step wherever the page is focused (after a click that is the tab's own button), except where they
  // mean something else.
  #key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !this.root.isConnected || !this.root.offsetParent) return;
    const { target } = event, to = { ArrowRight: this.step + 1, ArrowLeft: this.step - 1, Home: 1, End: STEPS }[event.key];
    if (to === undefined || (target !== document.body && !this.page.contains(target) && !target.closest?.('[role="tab"]')) || target.closest?.('input, textarea, select')) return;
    event.preventDefault();
    this.go(to);
  }

  go(step) {
    const to = Math.max(1, Math.min(STEPS, step));
    if (to === this.step) return;
    this.step = to;
    this.animate = true;
    this.#reveal(this.list[to - 1]);
    this.root.querySelector('.announce').textContent = `Step ${to} of ${STEPS}: ${sixSteps(this.x)[to - 1].title}, ${sixSteps(this.x)[to - 1].value}`;
    this.schedule();
  }

  // On a short window the list scrolls; the page itself stays where it is.
  #reveal(li) {
    const body = this.root.querySelector('.lookup .body'), last = li === this.list[STEPS - 1] ? body.scrollHeight : li.offsetTop + li.offsetHeight - this.list[0].offsetTop;
    if (last > body.scrollTop + body.clientHeight) body.scrollTop = last - body.clientHeight;
    else body.scrollTop = Math.min(body.scrollTop, li.offsetTop - this.list[0].offsetTop);
  }

  #theme() { this.skin = readSkin(this.root); this.schedule(); }

  resize() {
    if (!this.root.clientWidth) return;
    const top = this.root.getBoundingClientRect().top + window.scrollY, { least, most, below } = HEIGHT;
    if (window.innerWidth > WIDE) this.root.style.setProperty('--pane-h', `${Math.max(least, Math.min(most, Math.floor(window.innerHeight - top - below)))}px`);
    else this.root.style.removeProperty('--pane-h');
    this.schedule();
  }

  // All that was asked for is drawn.
  get settled() { return !this.scheduled && !this.loading && this.drawn === this.step; }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => { this.scheduled = false; this.#frame(); });
  }

  #frame() {
    if (this.loading || !this.root.clientWidth) return;
    const { root, step, skin, at } = this;
    this.pool.measure();
    this.list.forEach((li, i) => { li.classList.toggle('later', i + 1 > step); setAttr(li, 'aria-current', i + 1 === step ? 'step' : null); });
    this.proof.style.visibility = step < STEPS ? 'hidden' : '';
    setText(root.querySelector('.wnav .at'), `Step ${step} of ${STEPS}`);
    root.querySelector('.back').disabled = step === 1;
    root.querySelector('.next').disabled = step === STEPS;
    setText(root.querySelector('.largest'), step >= 5 ? this.words.largest : '');
    setText(root.querySelector('.norm'), step >= STEPS ? this.words.norm : '');
    root.querySelector('.wchart .wait').hidden = step >= 5;
    this.chart.draw(step >= 5, skin);
    this.#outputs();
    if (this.legend !== skin) { this.legend = skin; root.querySelector('.legend').replaceChildren(...LEGEND.map(([text, block]) => h('span', '', [swatch(block, skin), text]))); }
    this.tokens.cell(REQUEST, this.x.logical_block).classList.toggle('pinned', step >= 2);
    const seen = this.hover ?? (step === 2 ? { block: at.block, offset: -1 } : null);
    this.pool.draw({ state: this.state, version: 'worked', pin: step >= 3 ? at : null, hover: seen, fade: -1 }, skin);
    this.#walk();
    this.drawn = step;
  }

  #outputs() {
    const host = this.root.querySelector('.outputs'), tall = host.clientWidth < TALL_TABLE, key = `${this.step >= STEPS} ${tall}`;
    if (key === this.outputs) return;
    this.outputs = key;
    host.replaceChildren(this.step >= STEPS ? colour(outputTable(this.x, tall), 0) : h('p', 'sub wait', `Step ${STEPS} fills this one.`));
  }

  #walk() {
    const { step, x, tokens, at } = this;
    this.walk.draw(this.pool, {
      token: tokens.token(REQUEST, x.key_position), cell: step >= 2 ? tokens.cell(REQUEST, x.logical_block) : null,
      block: step >= 3 ? at.block : null, offset: at.offset, enter: step >= 4, last: step >= STEPS ? 'end' : step,
    });
    if (this.animate) { this.animate = false; this.walk.animate(); }
  }

  // ---- where a token lives: the same place in the tokens, the table and the pool

  #overRows(event) {
    const token = event.target.closest('.tok[data-position]'), cell = event.target.closest('.cell');
    if (token) return this.#setHover(placeOf(this.x, Number(token.dataset.position)), Number(token.dataset.position));
    this.#setHover(cell ? { block: Number(cell.dataset.physical), offset: -1 } : null);
  }

  #overPool(event) {
    const { pool, state } = this, box = pool.div.getBoundingClientRect(), hit = pool.g?.at(event.clientX - box.left, event.clientY - box.top);
    if (!hit || hit.offset < 0) { this.tip.hide(); return this.#setHover(null); }
    const about = describeSlot(state, hit.block, hit.offset);
    this.#setHover(hit, about.token?.position);
    this.tip.show(pool, hit, about, false);
  }

  #setHover(hit, position) {
    if (!hit) this.tip.hide();
    if (JSON.stringify(hit) === JSON.stringify(this.hover)) return;
    this.hover = hit;
    for (const old of this.root.querySelectorAll('[data-hover]')) old.removeAttribute('data-hover');
    if (hit) {
      this.tokens.host.querySelector(`.cell[data-physical="${hit.block}"]`)?.setAttribute('data-hover', '');
      if (position !== undefined) this.tokens.token(REQUEST, position)?.setAttribute('data-hover', '');
    }
    this.schedule();
  }
}

window.Pagewalk = Object.assign(window.Pagewalk ?? {}, { mountWorked: gradio => new Worked(gradio) });
