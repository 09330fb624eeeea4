// What happened and why, a line each: the events list and the lane under the chart. Pure.

import { fmt } from './dom.js';

const count = (n, word) => `${fmt(n)} ${word}${n === 1 ? '' : 's'}`;
const few = ids => (ids.length <= 4 ? ids.join(', ') : `${ids.slice(0, 3).join(', ')} … ${ids[ids.length - 1]}`);
const noStop = text => String(text ?? '').replace(/\.\s*$/, '');

// An entry of many blocks is put in words when it is shown: a large pool has thousands of blocks in one entry.
const SEVERAL = {
  what: { enumerable: true, get() { return `${this.request} takes blocks ${few(this.blocks)}`; } },
  why: { enumerable: true, get() { return `${count(this.blocks.length, 'block')} from logical block ${this.logical} on: ${this.reason}`; } },
};

export class Story {
  constructor() { this.entries = []; }

  // Call before the state folds the event: a request that still waits resumes with this one.
  add(event, state) {
    const [type, step] = event, tell = TELL[type];
    if (!tell) return;
    const id = event[2], request = typeof id === 'string' ? state.request(id) : undefined;
    if ((type === 'BlockAllocated' || type === 'BlockTouched') && request && request.status === 'waiting' && request.preemptedAt !== null) {
      this.#push({ step, kind: 'resume', request: id, what: `${id} resumed`, why: `${count(request.length, 'token')} to recompute, less what is still cached` });
    }
    const last = this.entries[this.entries.length - 1];
    if (type === 'BlockAllocated' && last && last.kind === 'alloc' && last.step === step && last.request === id) {   // without words: there may be thousands
      if (last.blocks.length === 1) Object.defineProperties(last, SEVERAL);
      last.blocks.push(event[4]);
      return;
    }
    const entry = tell(event, state);
    if (entry) this.#push({ step, ...entry });
  }

  #push(entry) { this.entries.push(entry); }

  // The step of the next event after `step` (by = 1), or of the one before it (by = -1); null where there is none.
  stepOf(step, by) {
    const at = by > 0 ? this.upTo(step) : this.upTo(step - 1) - 1;
    return this.entries[at]?.step ?? null;
  }

  // Index after the last entry of `step`.
  upTo(step) {
    let lo = 0, hi = this.entries.length;
    while (lo < hi) { const mid = (lo + hi) >> 1; if (this.entries[mid].step <= step) lo = mid + 1; else hi = mid; }
    return lo;
  }
}

const TELL = {
  RequestAdded: ([, , id, , , texts, max]) => ({ kind: 'add', request: id, what: `${id} joins`, why: `${count(texts.length, 'prompt token')}, up to ${fmt(max)} new` }),
  RequestRefused: ([, , , reason]) => ({ kind: 'refused', bad: true, what: 'Refused', why: noStop(reason) }),
  PrefixHit: ([, , id, , blocks, reason]) => ({ kind: 'hit', request: id, what: `${id} reuses ${blocks.length === 1 ? 'block' : 'blocks'} ${few(blocks)}`, why: noStop(reason) }),
  BlockAllocated: ([, , id, logical, block, reason]) => ({
    kind: 'alloc', request: id, blocks: [block], logical, reason: noStop(reason), what: `${id} takes block ${block}`, why: noStop(reason),
  }),
  PrefixMiss: ([, , id, , reason, numShared = 0, evicted = null]) => numShared || evicted !== null ? { kind: 'miss', request: id, what: `${id} finds no further block`, why: noStop(reason) } : null,
  BlockCopied: ([, , id, , source, block, , reason]) => ({ kind: 'copy', request: id, what: `${id} copies block ${source} to ${block}`, why: noStop(reason) }),
  RequestForked: ([, , id, parent, blocks, reason]) => ({ kind: 'fork', request: id, what: blocks.length ? `${id} forked from ${parent}` : `${id} waits to fork from ${parent}`, why: noStop(reason) }),
  BlockRemoved: ([, , , blocks, reason]) => ({ kind: 'evict', what: `${blocks.length === 1 ? 'Block' : 'Blocks'} ${few(blocks)} evicted`, why: noStop(reason) }),
  AllBlocksCleared: () => ({ kind: 'evict', what: 'Prefix cache cleared', why: 'every cached block is free again' }),
  RequestPreempted: ([, , id, , reason]) => ({ kind: 'preempt', bad: true, request: id, what: `${id} preempted`, why: noStop(reason) }),
  RequestFinished: ([, , id, finish, reason]) => ({ kind: 'finish', request: id, what: `${id} finished`, why: noStop(reason) || finish }),
};
