// The first visit's coach mark: points at the token that the lookup suggests, until a token was followed once.

import { h } from './dom.js';

const KEY = 'pagewalk-followed', EVERY_MS = 200;      // reading where a token stands costs a layout: not in every frame of a run

export class Coach {
  constructor(stage) {
    this.stage = stage;
    this.done = remembered();
    this.mark = h('div', 'coach', 'Click a token to follow it', { role: 'note', hidden: '' });
    stage.root.append(this.mark);
  }

  // `suggest()`: { request, position } or null; `busy`: something else speaks.
  frame(suggest, busy) {
    const { stage } = this, touched = 'touched' in stage.root.dataset, free = !busy && !stage.pin.target && !stage.pin.note;
    if (this.done) return;
    if (touched) { this.done = true; remember(); }
    else if (free && this.#early()) return;
    const suggested = free && !this.done ? suggest() : null, idle = Boolean(suggested);
    if (idle) this.#open(suggested);
    const token = idle ? stage.tokens.token(suggested.request, suggested.position) : null, box = token && place(stage, token);
    if (this.token !== token) { this.token?.removeAttribute('data-coach'); token?.setAttribute('data-coach', ''); this.token = token; }
    this.mark.hidden = !box;
    if (!box) return;
    const most = stage.root.clientWidth - this.mark.offsetWidth - 8, left = Math.max(4, Math.min(most, box.left - 8));
    Object.assign(this.mark.style, { left: `${left}px`, top: `${box.bottom + 9}px` });
    this.mark.style.setProperty('--tip', `${Math.round(box.left - left + 10)}px`);
  }

  // True where it was placed a moment ago; it is placed again soon.
  #early() {
    const now = performance.now();
    if (now - (this.at ?? -EVERY_MS) >= EVERY_MS) { this.at = now; return false; }
    this.later ??= setTimeout(() => { this.later = null; this.stage.schedule(); }, EVERY_MS);
    return true;
  }

  // A fold would hide it: its row is opened, once.
  #open({ request, position }) {
    const logical = Math.floor(position / this.stage.state.blockSize), key = `${this.stage.bus.run} ${request} ${logical}`;
    if (this.opened === key || this.stage.tokens.token(request, position)) return;
    this.opened = key;
    this.stage.tokens.open(request, logical, logical);
    this.stage.schedule();
  }
}

// In pixels of the Stage, or null where the scroller hides it.
function place(stage, token) {
  const frame = stage.root.getBoundingClientRect(), box = token.getBoundingClientRect(), rows = stage.tokens.host.getBoundingClientRect();
  return box.top < rows.top - 2 || box.bottom > rows.bottom ? null : { left: box.left - frame.left - 1, bottom: box.bottom - frame.top - 1 };
}

function remembered() { try { return localStorage.getItem(KEY) !== null; } catch { return false; } }
function remember() { try { localStorage.setItem(KEY, '1'); } catch { /* storage is switched off: the mark comes again next time */ } }
