// The cache after some events: requests, block tables, blocks. Folds one wire event at a time. Pure: no DOM.
// The Python twin is engine.trace.CacheState; a test folds random logs through both.

export const COLOURS = 7;

export class CacheState {
  constructor(blockSize, numBlocks, texts = new Map()) {
    this.blockSize = blockSize;
    this.numBlocks = numBlocks;
    this.step = 0;
    this.requests = [];               // in the order added: the index is the colour, then the colours start again
    this.indexOf = new Map();
    this.texts = texts;               // request id -> token texts; only ever grows, so all states of a run share it
    this.ref = new Int32Array(numBlocks);
    this.filled = new Int32Array(numBlocks);
    this.owner = new Int32Array(numBlocks).fill(-1);
    this.logical = new Int32Array(numBlocks);
    this.hashed = new Uint8Array(numBlocks);
    this.fresh = [];                  // slots written in this step
    this.counts = { used: 0, shared: 0, reserved: 0, cached: 0, free: numBlocks };
    this.own = new Int32Array(COLOURS);      // blocks in use of each colour, read by one sequence
    this.sharedBy = new Int32Array(COLOURS); // and read by two or more
  }

  clone() {
    const copy = new CacheState(this.blockSize, 0, this.texts);
    copy.numBlocks = this.numBlocks;
    copy.step = this.step;
    copy.requests = this.requests.map(r => ({ ...r, table: r.table.slice() }));
    copy.indexOf = new Map(this.indexOf);
    for (const field of ['ref', 'filled', 'owner', 'logical', 'hashed', 'own', 'sharedBy']) copy[field] = this[field].slice();
    copy.fresh = this.fresh.slice();
    copy.counts = { ...this.counts };
    return copy;
  }

  request(id) { return this.requests[this.indexOf.get(id)]; }

  kind(block) {
    if (this.ref[block] > 1) return 'shared';
    if (this.ref[block] === 1) return 'used';
    return this.hashed[block] ? 'cached' : 'free';
  }

  // The token of a slot: { request, position } or null where nobody maps to it or nothing is written yet.
  tokenAt(block, offset) {
    if (!this.ref[block] || offset >= this.filled[block]) return null;
    const request = this.requests[this.owner[block]];
    return request ? { request, position: this.logical[block] * this.blockSize + offset } : null;
  }

  slotOf(request, position) {
    const block = request.table[Math.floor(position / this.blockSize)];
    return block === undefined ? -1 : block * this.blockSize + position % this.blockSize;
  }

  apply(event) {
    const [type, step] = event;
    if (step > this.step) { this.step = step; this.fresh = []; }
    const fold = FOLD[type];
    if (fold) fold(this, event);
  }

  // Every change of a block goes through here, so that the counts are always those of the arrays.
  change(block, edit) {
    this.#count(block, -1);
    edit();
    this.#count(block, 1);
  }

  #count(block, by) {
    const c = this.counts, ref = this.ref[block];
    if (ref) {
      const colour = Math.max(0, this.owner[block]) % COLOURS;
      c.used += by;
      c.reserved += by * (this.blockSize - this.filled[block]);
      if (ref > 1) { c.shared += by; this.sharedBy[colour] += by; } else this.own[colour] += by;
    } else if (this.hashed[block]) c.cached += by;
    else c.free += by;
  }
}

// The table of `r` names the block no more; the first other reader is its owner then.
function drop(s, r, block) {
  if (--s.ref[block] === 0) {
    if (!s.hashed[block]) { s.owner[block] = -1; s.filled[block] = 0; }
  } else if (s.owner[block] === r.index) {
    s.owner[block] = s.requests.findIndex(other => other.table.includes(block));
  }
}

const FOLD = {
  RequestAdded(s, [, step, id, prompt, , texts, maxTokens]) {
    if (!s.texts.has(id)) s.texts.set(id, texts.slice());
    s.indexOf.set(id, s.requests.length);
    s.requests.push({
      id, index: s.requests.length, prompt, length: texts.length, numPrompt: texts.length, maxTokens, status: 'waiting', table: [], was: [],
      computed: 0, finishReason: null, preemptedAt: null, addedAt: step, parent: null,
    });
  },
  RequestForked(s, [, step, id, parentId, blocks]) {        // without blocks the child waits, to compute the prompt itself
    const parent = s.request(parentId), length = parent.numPrompt;
    if (!s.texts.has(id)) s.texts.set(id, s.texts.get(parentId).slice(0, length));
    s.indexOf.set(id, s.requests.length);
    s.requests.push({
      ...parent, id, index: s.requests.length, length, status: blocks.length ? 'running' : 'waiting', table: blocks.slice(), was: [],
      computed: blocks.length ? parent.computed : 0, finishReason: null, preemptedAt: null, addedAt: step, parent: parentId,
    });
    for (const block of blocks) s.change(block, () => { s.ref[block]++; });
  },
  PrefixHit(s, [, , id, numTokens]) { s.request(id).computed = numTokens; },
  BlockAllocated(s, [, , id, logical, block]) {
    const r = s.request(id);
    r.table.push(block);
    r.status = 'running';
    s.change(block, () => { s.ref[block] = 1; s.owner[block] = r.index; s.logical[block] = logical; s.filled[block] = 0; s.hashed[block] = 0; });
  },
  BlockTouched(s, [, , id, logical, block]) {
    const r = s.request(id);
    r.table.push(block);
    r.status = 'running';
    s.change(block, () => {
      if (s.ref[block]++ === 0) { s.owner[block] = r.index; s.logical[block] = logical; }
    });
  },
  BlockCopied(s, [, , id, logical, source, block, numSlots]) {
    const r = s.request(id);
    r.table[logical] = block;
    s.change(block, () => { s.ref[block] = 1; s.owner[block] = r.index; s.logical[block] = logical; s.filled[block] = numSlots; s.hashed[block] = 0; });
    s.change(source, () => drop(s, r, source));
  },
  BlockStored(s, [, , , , , , blocks]) {
    for (const block of blocks) s.change(block, () => {
      s.hashed[block] = 1;
      if (!s.ref[block]) { s.filled[block] = s.blockSize; s.owner[block] = -1; }   // cached by an earlier run
    });
  },
  BlockRemoved(s, [, , , blocks]) {
    for (const block of blocks) s.change(block, () => { s.hashed[block] = 0; s.owner[block] = -1; s.filled[block] = 0; });
  },
  AllBlocksCleared(s) {
    for (let block = 0; block < s.numBlocks; block++) {
      if (s.hashed[block]) s.change(block, () => { s.hashed[block] = 0; if (!s.ref[block]) { s.owner[block] = -1; s.filled[block] = 0; } });
    }
  },
  BlockFreed(s, [, , id, blocks]) {
    const r = s.request(id);
    r.was = r.table;                  // what it held, for looking back at a finished request
    r.table = [];
    for (const block of blocks) s.change(block, () => drop(s, r, block));
  },
  SlotsWritten(s, [, , id, start, slots]) {
    s.request(id).computed = start + slots.length;
    const size = s.blockSize;
    for (let i = 0; i < slots.length; i++) {                 // a prompt fills whole blocks: one change a block, not one a slot
      const block = Math.floor(slots[i] / size);
      let filled = slots[i] % size + 1;
      while (i + 1 < slots.length && slots[i + 1] === slots[i] + 1 && filled < size) { i++; filled++; }
      if (filled > s.filled[block]) s.change(block, () => { s.filled[block] = filled; });
    }
    s.fresh = s.fresh.length ? s.fresh.concat(slots) : slots.slice();
  },
  TokenSampled(s, [, , id, position, , text]) {
    s.texts.get(id)[position] = text;
    s.request(id).length = position + 1;
  },
  RequestPreempted(s, [, step, id]) {
    const r = s.request(id);
    r.status = 'waiting';
    r.computed = 0;
    r.preemptedAt = step;
  },
  RequestFinished(s, [, , id, reason]) {
    const r = s.request(id);
    r.status = 'finished';
    r.finishReason = reason;
  },
};
