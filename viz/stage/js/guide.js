// The guide: a ring around the part of the Stage that is spoken of, and a card beside it that never covers it. The tour and the
// answers of "Ask the picture" show themselves with it. It is no modal: everything under it stays usable.

import { h, centre, icon, isPhone, setText } from './dom.js';

const GAP = 12, EDGE = 8, RING = 4;

// Where a target stands: elements (joined into one box), or a place in the pool.
const PLACES = {
  tokens: s => all(s, `.lrow .toks, .fold .mini`), row: s => [own(s)?.closest('.lrow')], token: s => [own(s)],
  cell: s => (pinned(s) ? [s.tokens.cell(pinned(s).request, logical(s))] : []), table: s => all(s, `.cell[data-request="${pinned(s)?.request}"]`),
  seq: s => [...s.root.querySelectorAll('.seq')].filter(el => el.querySelector('.letter').textContent === pinned(s)?.request),
  pool: s => [s.pool.wrap], poolsize: s => [s.pool.subtitle.offsetWidth ? s.pool.subtitle : s.pool.wrap], legend: s => [s.legend.host],
  lookup: s => [s.lookup.body], key: s => all(s, '.lookup [data-field="key"], .lookup .steps .heat'), proof: s => all(s, '.lookup .proof'), events: s => all(s, '.events'),
};
export const TARGETS = [...Object.keys(PLACES), 'slot', 'tile'];
const all = (stage, selector) => [...stage.root.querySelectorAll(selector)];
const pinned = stage => stage.pin.target;
const logical = stage => Math.floor(pinned(stage).position / stage.state.blockSize);
const own = stage => (pinned(stage) ? stage.tokens.token(pinned(stage).request, pinned(stage).position) : null);

export class Guide {
  constructor(stage) {
    this.stage = stage;
    this.ring = h('div', 'ring', [], { 'aria-hidden': 'true', hidden: '' });
    this.title = h('h3', '', '', { id: 'pw-guide-title' });
    this.text = h('p', '', '', { id: 'pw-guide-text' });
    this.note = h('p', 'sub', '');
    this.progress = h('span', 'progress');
    this.acts = h('span', 'acts');
    const close = h('button', 'tbtn', icon('close'), { type: 'button', 'aria-label': 'Close' });
    close.addEventListener('click', () => this.close());
    this.card = h('section', 'guide', [
      h('div', 'guide-head', [this.title, close]), h('div', '', [this.text, this.note], { 'aria-live': 'polite' }), h('div', 'guide-foot', [this.progress, this.acts]),
    ], { role: 'dialog', 'aria-labelledby': 'pw-guide-title', 'aria-describedby': 'pw-guide-text', tabindex: '-1', hidden: '' });
    this.card.addEventListener('keydown', event => this.#key(event));
    document.addEventListener('keydown', event => { if (this.isOpen && event.target === document.body) this.#key(event); });
    stage.root.append(this.ring, this.card);
  }

  get isOpen() { return !this.card.hidden; }

  // { title, target, progress, acts: [{ label, run, primary, off, key }], words() -> parts, note, onClose }: the newest takes the place.
  show(what) {
    const fresh = !this.isOpen;
    this.what = what;
    this.said = null;
    this.scrolled = null;
    this.card.hidden = false;
    setText(this.title, what.title);
    setText(this.progress, what.progress ?? '');
    this.#buttons(what.acts);
    this.frame();
    if (fresh) this.card.focus({ preventScroll: true });
  }

  // Buttons that stay keep their node, and with it the focus.
  #buttons(acts) {
    while (this.acts.children.length > acts.length) this.acts.lastChild.remove();
    acts.forEach((act, i) => {
      const button = this.acts.children[i] ?? this.acts.appendChild(h('button', '', [], { type: 'button' }));
      button.className = `btn small${act.primary ? ' primary' : ''}`;
      if (act.off && button === document.activeElement) this.card.focus({ preventScroll: true });
      button.disabled = Boolean(act.off);
      setText(button, act.label);
      button.onclick = act.run;
    });
  }

  hide() {
    if (!this.isOpen) return;
    this.card.hidden = this.ring.hidden = true;
    this.what = null;
  }

  close() { this.what?.onClose(); }

  #key(event) {
    const act = this.what?.acts.find(a => a.key === event.key);
    if (event.key !== 'Escape' && (!act || act.off)) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === 'Escape') this.close(); else act.run();
  }

  // After every drawing of the Stage: the words of this state, the ring where its target now is, the card beside it.
  frame() {
    const { what, stage } = this;
    if (!what || !stage.state) return;
    const parts = what.words(), note = what.note?.() ?? '', said = JSON.stringify([parts, note]);
    if (said !== this.said) {
      this.said = said;
      this.text.replaceChildren(...parts.map(p => (p.text !== undefined ? p.text : h('b', 'num', p.value, { 'data-fact': p.name }))));
      setText(this.note, note);
      this.note.hidden = !note;
    }
    if (this.scrolled !== what) this.#scroll(what.target);
    const box = this.#target(what.target);
    this.ring.hidden = !box;
    if (box) Object.assign(this.ring.style, { left: `${box.x - RING}px`, top: `${box.y - RING}px`, width: `${box.w + 2 * RING}px`, height: `${box.h + 2 * RING}px` });
    if (box && this.scrolled !== what) { this.scrolled = what; this.#reveal(box); }
    this.#place(box);
  }

  // In pixels of the Stage, or null where it is out of sight.
  #target(name) {
    const { stage } = this, frame = stage.root.getBoundingClientRect(), view = name === 'slot' || name === 'tile' ? this.#inPool(name) : this.#ofElements(name);
    if (!view) return null;
    const x = Math.max(view.left - frame.left - 1, RING), y = Math.max(view.top - frame.top - 1, RING);
    return { x, y, w: Math.min(view.right - frame.left - 1, frame.width - RING - 3) - x, h: Math.min(view.bottom - frame.top - 1, frame.height - RING - 3) - y };
  }

  #ofElements(name) {
    const boxes = PLACES[name](this.stage).filter(el => el?.isConnected).map(visiblePart).filter(Boolean);
    if (!boxes.length) return null;
    return { left: Math.min(...boxes.map(b => b.left)), top: Math.min(...boxes.map(b => b.top)), right: Math.max(...boxes.map(b => b.right)), bottom: Math.max(...boxes.map(b => b.bottom)) };
  }

  #inPool(name) {
    const { pool, pin, state } = this.stage, view = pin.view(state), g = pool.g;
    if (!g || view?.block === null || view?.block === undefined) return null;
    const o = pool.origin, box = pool.div.getBoundingClientRect(), r = name === 'slot' && g.level !== 'blocks' ? g.slot(view.block, view.offset) : g.tile(view.block);
    const x0 = Math.max(0, r.x), y0 = Math.max(0, r.y), x1 = Math.min(g.w, r.x + r.w), y1 = Math.min(g.h, r.y + r.h);
    return x1 <= x0 || y1 <= y0 ? null : { left: box.left + o.x + x0 - 3, top: box.top + o.y + y0 - 3, right: box.left + o.x + x1 + 3, bottom: box.top + o.y + y1 + 3 };
  }

  // The pinned token and the target come into sight in the panes that scroll.
  #scroll(name) {
    const { stage } = this, token = own(stage), element = PLACES[name]?.(stage)[0], scroller = element?.closest('.rows, .lookup .body');
    if (token) centre(stage.tokens.host, token);
    if (scroller && scroller !== element && !PLACES[name](stage).some(visiblePart)) centre(scroller, element);
  }

  #reveal(box) {
    const top = this.stage.root.getBoundingClientRect().top + box.y, phone = isPhone(this.stage.root), room = window.innerHeight - (phone ? this.card.offsetHeight + EDGE : 0);
    if (top < EDGE || top + Math.min(box.h, room - 2 * EDGE) > room - EDGE) window.scrollBy({ top: top - (box.h > room - 48 ? 16 : (room - box.h) / 2), behavior: 'instant' });
  }

  // Right of the target, left, below, above: the first side where the card covers nothing of it. On a phone it stands at the bottom.
  #place(box) {
    const { card, stage } = this;
    if (isPhone(stage.root)) { card.style.left = card.style.top = ''; return; }
    const frame = stage.root.getBoundingClientRect(), w = card.offsetWidth, height = card.offsetHeight;
    const low = { x: EDGE, y: Math.max(EDGE, EDGE - frame.top) }, high = { x: frame.width - w - EDGE - 2, y: Math.min(frame.height, window.innerHeight - frame.top) - height - EDGE - 2 };
    const clamp = (v, a, b) => Math.max(a, Math.min(b, v)), at = (x, y) => ({ x: clamp(x, low.x, high.x), y: clamp(y, low.y, Math.max(low.y, high.y)) });
    let place = at(high.x, high.y);
    if (box) {
      const middle = { x: box.x + box.w / 2 - w / 2, y: box.y + box.h / 2 - height / 2 }, away = RING + GAP;
      const sides = [at(box.x + box.w + away, middle.y), at(box.x - away - w, middle.y), at(middle.x, box.y + box.h + away), at(middle.x, box.y - away - height)];
      const covers = p => Math.max(0, Math.min(p.x + w, box.x + box.w + RING) - Math.max(p.x, box.x - RING)) * Math.max(0, Math.min(p.y + height, box.y + box.h + RING) - Math.max(p.y, box.y - RING));
      place = sides.reduce((best, p) => (covers(p) < covers(best) ? p : best), sides[0]);
    }
    Object.assign(card.style, { left: `${Math.round(place.x)}px`, top: `${Math.round(place.y)}px` });
  }
}

// The part of an element that its scroller shows.
function visiblePart(element) {
  const b = element.getBoundingClientRect(), scroller = element.closest('.rows, .lookup .body')?.getBoundingClientRect();
  const box = scroller ? { left: b.left, right: b.right, top: Math.max(b.top, scroller.top), bottom: Math.min(b.bottom, scroller.bottom) } : b;
  return box.bottom > box.top + 4 && b.width ? box : null;
}
