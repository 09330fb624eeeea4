// Mounts the Stage: one bus, one mirror, one clock, and the panes that draw from them, at most once a frame.

import { Bus } from './mirror.js';
import { Clock } from './clock.js';
import { Pin } from './pin.js';
import { PoolPane } from './poolpane.js';
import { poolInput } from './poolinput.js';
import { TokensPane } from './tokens.js';
import { LookupPane } from './lookup.js';
import { UsagePane } from './usagepane.js';
import { DockViews } from './dockviews.js';
import { EventsPane } from './events.js';
import { Transport } from './transport.js';
import { Notice } from './notice.js';
import { Legend } from './legend.js';
import { Status } from './status.js';
import { Find, searchTokens } from './find.js';
import { Walk } from './walk.js';
import { Tip } from './tip.js';
import { stageKeys, ensureTabStop } from './keys.js';
import { describeSlot, placeOf } from './describe.js';
import { readSkin } from './skin.js';
import { paneHeight, rowHeights } from './sizes.js';
import { readLink, rememberSession } from './link.js';
import { Opener } from './opener.js';
import { act, Box, openList, pressGenerate, showComparison, showHelp } from './actions.js';
import { Learning, LEARN_ACTIONS } from './learn.js';
import { welcome } from './welcome.js';
import { Charts } from './charts.js';
import { goodToken } from './moments.js';

const LAG = 3;   // steps that a moving picture may be behind before the chart says so
const ANSWER_MS = 40;

class Stage {
  constructor({ element, props, watch, trigger, server, upload }) {
    this.root = element.querySelector('.stage');
    this.root.pagewalk = this;                         // for tests and the console
    Object.assign(this, { props, trigger, server, upload, frames: 0, scheduled: false, hover: null });
    this.clock = new Clock();
    this.opener = new Opener(this);
    this.box = new Box(this.root);
    this.skin = readSkin(this.root);
    this.#panes();
    this.bus = new Bus({ onReset: (message, again) => this.#reset(message, again), onAppend: message => { if (message?.refused) this.opener.refused(); this.schedule(); }, onGap: have => this.#resync(have) });
    this.#listen();
    watch('value', () => this.bus.receive(props.value));
    this.bus.receive(props.value);
  }

  #panes() {
    const { root } = this, seek = step => this.seek(step);
    this.pool = new PoolPane(root, { onView: () => this.schedule() });
    this.pool.focusBlock = () => this.#focusBlock();
    this.tokens = new TokensPane(root);
    this.lookup = new LookupPane(root, { onChoose: () => this.schedule(), onAct: name => (name === 'follow' ? this.#follow() : this.learn.act(name)) });
    this.usage = new UsagePane(root, { onSeek: seek });
    this.charts = new Charts({ pool: this.pool, usage: this.usage, onPlotted: () => this.resize(), onProblem: text => this.say('bad', text) });
    this.events = new EventsPane(root, { onSeek: seek });
    this.transport = new Transport(root, {
      onButton: name => this.#transport(name), onAction: (name, button) => this.learn.act(name) || act(this, name, button),
      onPace: pace => { this.clock.pace = pace; this.schedule(); }, actions: LEARN_ACTIONS,
    });
    this.notice = new Notice(root, {
      onNewest: () => this.newest(), onSeek: seek, onOthers: () => openList('examples'), onOwn: pressGenerate,
      onOpen: example => this.open({ example }), onCompare: () => showComparison(this),
    });
    this.legend = new Legend(root);
    this.status = new Status();
    this.walk = new Walk(root);
    this.tip = new Tip(root);
    this.pin = new Pin({ ask: question => this.server?.stage_lookup?.(question), onAnswer: () => { this.#lookNow(); this.schedule(); } });
    this.find = new Find(root, { search: text => searchTokens(this.state, text), onFound: hit => { this.pinToken(hit.request, hit.position); this.#scrollTo(hit); } });
    this.dock = new DockViews(this, { setHover: hit => this.#setHover(hit) });
    poolInput(this.pool, { onPick: hit => this.pick(hit), onHover: (hit, spoken) => this.#hoverSlot(hit, spoken), isEmpty: () => !this.state });
    this.learn = new Learning(this);
  }

  #listen() {
    const { root } = this, rows = this.tokens.host;
    rows.addEventListener('click', event => this.#clickRows(event));
    rows.addEventListener('pointerover', event => this.#hoverRows(event));
    rows.addEventListener('pointerleave', () => this.#setHover(null));
    rows.addEventListener('scroll', () => this.schedule(), { passive: true });
    this.lookup.body.addEventListener('scroll', () => this.schedule(), { passive: true });
    const resized = new ResizeObserver(() => this.resize());
    for (const element of [root, root.parentElement, this.pool.wrap, this.usage.chart, rows]) resized.observe(element);
    new IntersectionObserver(() => this.resize()).observe(root);       // first shown in another tab
    window.addEventListener('resize', () => this.resize());
    new MutationObserver(() => this.#theme()).observe(document.body, { attributes: true, attributeFilter: ['class'] });
    document.fonts?.ready.then(() => this.#theme());
    stageKeys(root, {
      step: by => this.seek(this.clock.step + by), event: by => this.#event(by), play: () => this.#transport('play'), clear: () => this.clear(),
      find: () => this.find.open(), help: () => showHelp(this), learn: name => this.learn.act(name),
    });
  }

  async #reset(message, again) {
    const { mirror, header } = this.bus;
    if (!again) { this.clock.reset(mirror.newest); this.pin.clear(); this.dock.clear(); this.tokens.reset(); this.hover = null; }
    if (message.session) rememberSession(message.session);
    this.lookup.invalidate();
    this.tokens.subtitle.textContent = `in reading order, ${header.block_size} to a logical block`;
    this.lookup.setModel(header);
    const charts = this.charts.show(message.figures ?? header.figures, header);
    if (charts) await charts;
    this.usage.drawn = null;
    if (message.kind === 'snapshot' && !again) this.#begin(header);
    this.resize();
  }

  // A recording plays from where it opens; the first view of a page is the one that its link names.
  #begin(header) {
    const link = this.linked ? null : readLink();
    this.linked = true;
    const { opening } = header.recording ?? {};
    if (header.recording) this.opener.restore({ request: opening.request, position: opening.position }, true);
    if (link && (link.example ?? null) === (header.recording?.id ?? null)) {
      this.opener.restore(link, false);
      if (link.seed !== null && link.seed !== header.link?.seed) this.say('info', `The link is of a run with seed ${link.seed}; this is the recording with seed ${header.link?.seed}. Generate runs it with seed ${link.seed}.`);
    }
    this.opener.arrived(header);
  }

  // See Opener.open.
  open(view) { return this.opener.open(view); }

  #resync(have) {
    clearTimeout(this.gap);
    this.gaps = (this.gaps ?? 0) + 1;
    this.gap = setTimeout(() => this.trigger('resync', { run: this.bus.run, have }), 150);
  }

  #theme() { this.skin = readSkin(this.root); this.schedule(); }

  resize() { if (this.root.clientWidth) { paneHeight(this.root); this.schedule(); } }

  // Everything that the bus brought and a person did is drawn.
  get settled() { return !this.scheduled && !this.charts.pending && !this.pacing && !this.dock.busy; }

  schedule() {
    clearTimeout(this.pacing);
    this.pacing = null;
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(now => { this.scheduled = false; this.#frame(now); });
  }

  #frame(now) {
    const { bus, clock, root } = this, { mirror } = bus;
    if (!mirror || this.charts.loading || !root.clientWidth) return;
    this.frames++;
    this.pool.measure();
    this.usage.measure();
    const wait = clock.tick(mirror.newest, now), step = clock.step, state = mirror.stateAt(step), following = clock.mode === 'following', { recording } = bus.header;
    const ahead = mirror.newest - step, moving = clock.mode === 'playing' || (following && (bus.running || ahead > 0));
    this.state = state;
    const view = this.pin.view(state), pinned = view ? { request: view.request, position: view.position, query: view.query ?? null } : null;
    if (this.notice.render({ message: bus.notice, recording, state, step, newest: mirror.newest, running: bus.running, following })) paneHeight(root);
    root.toggleAttribute('data-past', ahead > 0 && !following && !recording);
    root.toggleAttribute('data-empty', !state.requests.length);
    this.tokens.render(state, pinned, rowHeights(root, this.tokens.host, state.blockSize));
    ensureTabStop(this.tokens.host);
    const place = view && view.block !== null && (view.held || this.#still(state, view)) ? { block: view.block, offset: view.offset } : null;
    const spot = place ?? (this.pin.note ? { block: this.pin.note.block, offset: Math.max(0, this.pin.note.offset) } : null);
    this.pool.draw({ state, version: `${bus.run} ${step} ${state === mirror.live ? mirror.log.length : ''}`, pin: spot, hover: this.hover, fade: view ? state.indexOf.get(view.request) : -1, marks: this.dock.marks }, this.skin);
    this.legend.render(state.counts, this.skin);
    this.#lookup(state, view, following);
    this.events.render(mirror.story, step);
    const due = this.pin.waits ? ANSWER_MS : this.usage.draw(mirror, step, this.skin, { following, dim: recording || !following || ahead > LAG, mark: !recording && !following }) || this.dock.draw(state, view, following);
    if (due) { clearTimeout(this.later); this.later = setTimeout(() => this.schedule(), due); }
    this.transport.render({ step, newest: mirror.newest, moving, follow: following });
    this.status.render({ header: bus.header, running: bus.running, step, newest: mirror.newest, state, mirror, loading: bus.loading, moving });
    this.#walk(view, place);
    if (this.animate && place) { this.animate = false; this.walk.animate(); }
    this.learn.frame(state);
    if (wait !== null) this.#again(wait);
  }

  // The next step of a moving picture: in the next frame, or when it is due.
  #again(wait) {
    if (wait < 24) return this.schedule();
    clearTimeout(this.pacing);
    this.pacing = setTimeout(() => this.schedule(), wait - 8);
  }

  // A freed block still holds the bytes until another sequence takes it.
  #still(state, view) {
    const owner = state.owner[view.block];
    return state.requests[owner]?.id === view.request && state.logical[view.block] === Math.floor(view.position / state.blockSize);
  }

  #lookup(state, view, following) {
    const { bus, lookup } = this;
    this.layer = Number(lookup.layer.value);
    this.headIndex = Number(lookup.head.value);
    if (this.pin.note) return lookup.message(this.pin.note);
    if (!view) return lookup.empty(welcome(state));
    if (view.reason) return lookup.message({ title: `${view.request}:${view.position}`, text: view.reason });
    const place = `${view.held} ${state.owner[view.block]} ${state.ref[view.block] > 0}`;
    this.pin.lookup(view, { session: bus.session, recording: bus.header.recording?.id, run: bus.run, step: bus.mirror.live.request(view.request)?.preemptedAt == null ? null : state.step, layer: this.layer, head: this.headIndex, place: following ? place : '' }, following ? 0 : 120);
    lookup.lookup(state, view, this.pin.answer);
  }

  // The lookup without the rest of the picture: a question must not wait for a frame, nor its answer.
  #lookNow() {
    const { bus, clock, state } = this, view = bus.mirror && !this.charts.loading && state && this.pin.view(state);
    if (view) this.#lookup(state, view, clock.mode === 'following');
  }

  #walk(view, place) {
    if (!view || view.block === null || this.pin.note) return this.walk.clear();
    const logical = Math.floor(view.position / this.state.blockSize);
    this.walk.draw(this.pool, { token: this.tokens.token(view.request, view.position), cell: this.tokens.cell(view.request, logical), block: place ? place.block : null, offset: view.offset });
  }

  // ---- what a person does

  pinToken(request, position, query) {
    const r = this.state?.request(request);
    if (!r) return;
    this.pin.set(request, position, query ?? Math.max(position, r.computed - 1));
    const view = this.pin.view(this.state);
    if (view?.block !== null && view?.block !== undefined) this.pool.reveal(view.block);
    this.#lookNow();
    this.animate = true;
    this.root.dataset.touched = '';
    this.#afterAnswer();
  }

  // Numbers take the server some milliseconds: a frame that waits for them saves one, and they need not wait for its end.
  #afterAnswer() {
    if (this.scheduled) return;
    clearTimeout(this.pacing);
    this.pacing = setTimeout(() => this.schedule(), ANSWER_MS);
  }

  pick({ block, offset }) {
    const { state, pool } = this;
    if (!state) return;
    const small = pool.g.level === 'blocks';
    if (!small && this.learn.predict.guess({ block, offset })) return;
    if (small) { if (pool.coarse) pool.coarse = false; else pool.zoomToBlock(block, 'slots'); }
    const slot = small && offset < 0 ? 0 : small ? 0 : offset, about = describeSlot(state, block, slot);
    if (this.learn.predict.asks) return this.schedule();
    if (about.token) return this.pinToken(about.token.request.id, about.token.position);
    this.pin.say({ title: about.what.replace(/^b/, 'B'), text: about.text, block, offset: slot });
    this.schedule();
  }

  clear() {
    if (this.find.isOpen) return this.find.close();
    if (this.box.isOpen) return this.box.show(null);
    if (this.dock.clear()) return this.schedule();
    if (this.learn.close()) return;
    if (this.pin.target || this.pin.note) this.pin.clear();
    else this.tokens.opened.clear();
    this.schedule();
  }

  seek(step) { if (!this.bus.mirror) return; this.clock.seek(step, this.bus.mirror.newest); this.schedule(); }
  newest() { this.clock.follow(this.bus.mirror.newest); this.schedule(); }

  #transport(name) {
    const { clock, bus } = this;
    if (!bus.mirror) return;
    if (name === 'first') this.seek(0);
    else if (name === 'prev') this.seek(clock.step - 1);
    else if (name === 'next') this.seek(clock.step + 1);
    else if (name === 'last') this.newest();
    else if (name === 'before') this.#event(-1);
    else if (name === 'after') this.#event(1);
    else { clock.toggle(bus.mirror.newest, bus.running); this.schedule(); }
  }

  #event(by) {
    const step = this.bus.mirror?.story.stepOf(this.clock.step, by) ?? null;
    if (step !== null) this.seek(step);
  }

  say(level, text) { this.bus.notice = { level, text }; this.schedule(); }

  #clickRows(event) {
    const token = event.target.closest('.tok[data-position]'), cell = event.target.closest('.cell'), fold = event.target.closest('.fold'), head = event.target.closest('.seq');
    if (token) this.pinToken(token.dataset.request, Number(token.dataset.position));
    else if (cell) this.pinToken(cell.dataset.request, Number(cell.dataset.logical) * this.state.blockSize);
    else if (fold) { this.tokens.open(fold.dataset.request, Number(fold.dataset.first), Number(fold.dataset.last)); this.schedule(); }
    else if (head) { this.tokens.close(head.querySelector('.letter').textContent); this.schedule(); }
  }

  #hoverRows(event) {
    const button = event.target.closest('.tok[data-position], .cell');
    this.#setHover(this.state && button ? placeOf(this.state, button.dataset) : null);
  }

  #hoverSlot(hit, spoken) {
    const { state, pool } = this;
    if (!hit || !state) { this.tip.hide(); return this.#setHover(null); }
    const about = this.learn.predict.veil(hit) ?? describeSlot(state, hit.block, pool.g.level === 'blocks' ? -1 : hit.offset, this.bus.mirror);
    this.tip.show(pool, hit, about, pool.g.level === 'blocks');
    if (spoken) this.tip.announce(about);
    this.#setHover(hit, about.token);
  }

  #setHover(hit, token) {
    const key = JSON.stringify(hit);
    if (key === JSON.stringify(this.hover)) return;
    this.hover = hit;
    for (const old of this.root.querySelectorAll('[data-hover]')) old.removeAttribute('data-hover');
    if (hit && !this.learn.predict.asks) {
      for (const cell of this.tokens.host.querySelectorAll(`.cell[data-physical="${hit.block}"]`)) cell.setAttribute('data-hover', '');
      if (token) this.tokens.token(token.request.id, token.position)?.setAttribute('data-hover', '');
    }
    this.schedule();
  }

  #scrollTo({ request, position }) { requestAnimationFrame(() => this.tokens.token(request, position)?.scrollIntoView({ block: 'nearest' })); }

  #follow() { const token = goodToken(this.state); if (token) this.pinToken(token.request, token.position); }

  #focusBlock() {
    const { state } = this, view = state && this.pin.view(state);
    if (view?.block !== null && view?.block !== undefined) return view.block;
    if (this.pin.note) return this.pin.note.block;
    if (!state) return 0;
    if (state.fresh.length) return Math.floor(state.fresh[0] / state.blockSize);
    return Math.max(0, state.ref.findIndex(n => n > 0));
  }
}

window.Pagewalk = Object.assign(window.Pagewalk ?? {}, { mount: gradio => new Stage(gradio) });
