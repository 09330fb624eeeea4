// The browser's copy of a run: the whole log, the newest state, and any past state by checkpoints. Pure: no DOM.

import { CacheState, COLOURS } from './state.js';
import { Story } from './story.js';

const MAX_CHECKPOINTS = 64;

export class Mirror {
  constructor(blockSize, numBlocks) {
    this.log = [];
    this.live = new CacheState(blockSize, numBlocks);
    this.story = new Story();
    this.usage = { step: [], own: [], shared: [], used: [] };   // one row a change: counts hold until the next row
    this.every = 512;                                           // events between checkpoints; doubles when they are many
    this.checkpoints = [{ index: 0, state: this.live.clone() }];
    this.past = null;                                           // { index, state }: the last past state asked for
  }

  get newest() { return this.live.step; }

  append(events) {
    for (const event of events) {
      if (event[1] > this.live.step) {
        this.#record();
        if (this.log.length - this.checkpoints[this.checkpoints.length - 1].index >= this.every) this.#checkpoint();
      }
      this.story.add(event, this.live);
      this.live.apply(event);
      this.log.push(event);
    }
    if (events.length) this.#record();
  }

  // The state after every event of `step` and before. The newest one is the live object itself: read it, keep nothing.
  stateAt(step) {
    if (step >= this.live.step) return this.live;
    let from = this.checkpoints[0];
    for (const c of this.checkpoints) if (c.state.step <= step) from = c; else break;
    if (!this.past || this.past.state.step > step || this.past.index < from.index) this.past = { index: from.index, state: from.state.clone() };
    const p = this.past;
    while (p.index < this.log.length && this.log[p.index][1] <= step) p.state.apply(this.log[p.index++]);
    return p.state;
  }

  // The step that wrote what the slot held at `step`.
  writtenAt(slot, step) {
    const size = this.live.blockSize, block = Math.floor(slot / size);
    for (let i = this.log.length - 1; i >= 0; i--) {
      const event = this.log[i];
      if (event[1] > step) continue;
      if (event[0] === 'SlotsWritten' && event[4].includes(slot)) return event[1];
      if (event[0] === 'BlockCopied' && event[5] === block && slot % size < event[6]) return event[1];
    }
    return null;
  }

  #record() {
    const s = this.live, u = this.usage, last = u.step.length - 1;
    if (last >= 0 && u.step[last] === s.step) {
      u.own[last] = Array.from(s.own); u.shared[last] = Array.from(s.sharedBy); u.used[last] = s.counts.used;
      return;
    }
    if (last >= 0 && u.used[last] === s.counts.used) {
      let same = true;
      for (let c = 0; c < COLOURS && same; c++) same = u.own[last][c] === s.own[c] && u.shared[last][c] === s.sharedBy[c];
      if (same) return;
    }
    u.step.push(s.step); u.own.push(Array.from(s.own)); u.shared.push(Array.from(s.sharedBy)); u.used.push(s.counts.used);
  }

  #checkpoint() {
    this.checkpoints.push({ index: this.log.length, state: this.live.clone() });
    if (this.checkpoints.length > MAX_CHECKPOINTS) {
      this.checkpoints = this.checkpoints.filter((_, i) => i % 2 === 0);
      this.every *= 2;
    }
  }
}

// Folds the messages of the bus; tells `onGap` when one was lost. Works for a message that is seen twice.
export class Bus {
  constructor({ onReset, onAppend, onGap }) {
    Object.assign(this, { onReset, onAppend, onGap, run: null, n: -1, running: false, header: null, session: null, mirror: null, notice: null, loading: null });
  }

  receive(message) {
    if (!message || typeof message !== 'object') return;
    const { kind } = message;
    if (kind !== 'delta' && kind !== 'end') this.loading = message.loading ?? null;
    // Of two messages that arrive together Gradio shows the later one only.
    if (!this.mirror && !['none', 'empty', 'snapshot'].includes(kind)) return this.onGap(this.n);
    if (kind === 'empty' || kind === 'snapshot') {
      if (kind === 'snapshot' && this.run === message.run && this.mirror && message.n === this.n && message.running === this.running) {
        this.#say(message);                                  // the same snapshot again: nothing to fold
        return this.onAppend();
      }
      this.header = message.header;
      this.session = message.session;
      const again = kind === 'snapshot' && this.run === message.run;
      this.run = kind === 'snapshot' ? message.run : null;
      this.n = kind === 'snapshot' ? message.n : -1;
      this.running = Boolean(message.running);
      this.mirror = new Mirror(this.header.block_size, this.header.num_blocks);
      if (kind === 'snapshot') this.mirror.append(JSON.parse(message.log));
      this.#say(message);
      this.onReset(message, again);
    } else if (kind === 'delta') {
      if (message.run !== this.run) return this.onGap(this.n);
      if (message.n <= this.n) return;                       // Gradio sends the last yield of a generator again
      if (message.n !== this.n + 1) return this.onGap(this.n);
      this.n = message.n;
      this.running = Boolean(message.running);
      this.mirror.append(JSON.parse(message.log));
      this.#say(message);
      this.onAppend();
    } else if (kind === 'end') {
      if (message.run === this.run) this.#say(message);      // whatever was lost, and even if nobody answers any more
      if (message.run !== this.run || message.n !== this.n) return this.onGap(this.n);
      this.running = false;
      this.onAppend();
    } else if (kind === 'loading') {
      this.onAppend();
    } else if ('notice' in message) {
      this.#say(message);
      this.onAppend(message);
    }
  }

  #say(message) { if ('notice' in message) this.notice = message.notice ?? null; }
}
