// Moments of a run, found in its log by what happened, never by a step's number: "the first fork", "a token just sampled".
// A moment is { step, request, position, facts } or null where the run has none. Pure.

const events = (mirror, type, fits = () => true) => mirror.log.filter(event => event[0] === type && fits(event));
const first = (mirror, type, fits) => mirror.log.find(event => event[0] === type && (!fits || fits(event))) ?? null;
const prompt = (mirror, id) => mirror.live.request(id).numPrompt;

// The last step at which as many blocks were in use as ever.
export function fullest(mirror) {
  const { step, used } = mirror.usage;
  let best = -1;
  for (let i = 0; i < used.length; i++) if (used[i] > 0 && (best < 0 || used[i] >= used[best])) best = i;
  if (best < 0) return null;
  return best + 1 < step.length ? Math.max(step[best], step[best + 1] - 1) : mirror.newest;
}

// The newest step up to `limit` at which some sequence holds blocks.
export function lastHeld(mirror, limit) {
  const { step, used } = mirror.usage;
  for (let i = used.length - 1; i >= 0; i--) {
    if (step[i] > limit || !used[i]) continue;
    return Math.min(limit, i + 1 < step.length ? step[i + 1] - 1 : mirror.newest);
  }
  return null;
}

// A token worth following: in the second block of a sequence, at its second place. Sequences that hold blocks come first.
export function goodToken(state) {
  const size = state.blockSize, known = [...state.requests.filter(r => r.table.length), ...state.requests.filter(r => !r.table.length && r.was.length)].filter(r => r.computed > 1);
  const r = known.find(q => q.computed > size + 1) ?? known[0];
  if (!r) return null;
  return { request: r.id, position: r.computed > size + 1 ? size + 1 : Math.min(r.numPrompt, r.computed) - 1 };
}

const FIND = {
  token(mirror) {
    const step = fullest(mirror);
    return step === null ? null : { step, ...goodToken(mirror.stateAt(step)) };
  },

  // A block taken for one generated token; a prompt's block where no other was.
  taken(mirror) {
    const grown = ([, , id, logical]) => logical > 0 && logical * mirror.live.blockSize >= prompt(mirror, id);
    const event = first(mirror, 'BlockAllocated', grown) ?? first(mirror, 'BlockAllocated', ([, , , logical]) => logical > 0);
    return event && { step: event[1], request: event[2], position: event[3] * mirror.live.blockSize };
  },

  // Sampled, and its block is there already: a slot waits for it.
  sampled(mirror) {
    const ended = new Set(events(mirror, 'RequestFinished').map(([, step, id]) => `${step} ${id}`));
    const goes = ([, step, id, position]) => step > 1 && position % mirror.live.blockSize > 0 && !ended.has(`${step} ${id}`);
    const event = first(mirror, 'TokenSampled', goes);
    return event && { step: event[1], request: event[2], position: event[3], facts: { before: event[3] - 1 } };
  },

  // The end of the sequence whose last block is emptiest, at the newest step of those with the most reserved slots. New blocks
  // make slots reserved, so only their steps count.
  waste(mirror) {
    let step = null, most = -1;
    for (const at of new Set(events(mirror, 'BlockAllocated').map(event => event[1]))) {
      const { used, reserved } = mirror.stateAt(at).counts;
      if (used && reserved >= most) { most = reserved; step = at; }
    }
    const state = step === null ? null : mirror.stateAt(step), left = r => state.blockSize - state.filled[r.table[r.table.length - 1]];
    const r = state?.requests.filter(q => q.table.length && q.computed).sort((a, b) => left(b) - left(a))[0];
    return r ? { step, request: r.id, position: r.computed - 1 } : null;
  },

  // One that had to go for another one's sake, if there is such a one.
  preempted(mirror) {
    const event = first(mirror, 'RequestPreempted', ([, , victim, , , needing]) => needing !== victim) ?? first(mirror, 'RequestPreempted');
    if (!event) return null;
    const [, step, victim, tokens, , needing, given] = event;
    return { step, request: victim, position: Math.min(mirror.live.blockSize + 1, tokens - 1), facts: { victim, needing, recompute: tokens, given_back: given } };
  },

  // The step in which a preempted sequence has all its keys again.
  resumed(mirror) {
    for (const [, at, id, tokens] of events(mirror, 'RequestPreempted')) {
      const event = first(mirror, 'SlotsWritten', ([, step, who, start, slots]) => step > at && who === id && start + slots.length >= tokens);
      const again = first(mirror, 'RequestPreempted', ([, step, who]) => who === id && step > at);
      if (!event || (again && again[1] <= event[1])) continue;
      const before = mirror.stateAt(at - 1).request(id).table.slice(), now = mirror.stateAt(event[1]).request(id).table;
      const moved = Math.max(0, before.findIndex((block, i) => now[i] !== block));     // the others were still cached
      return { step: event[1], request: id, position: moved * mirror.live.blockSize, facts: { victim: id, preempted_step: at, recompute: tokens, block_before: before[moved] } };
    }
    return null;
  },

  hit(mirror) { return hit(first(mirror, 'PrefixHit'), mirror, 0); },

  // The first token after the shared blocks: its block is the sequence's own.
  afterhit(mirror) { const event = first(mirror, 'PrefixHit'); return hit(event, mirror, event?.[3]); },

  // The prompt of which the largest part was found.
  mosthit(mirror) {
    const share = ([, , id, tokens]) => tokens / prompt(mirror, id), best = events(mirror, 'PrefixHit').sort((a, b) => share(b) - share(a))[0];
    return hit(best, mirror, best?.[3]);
  },

  fork(mirror) {
    const event = first(mirror, 'RequestForked', ([, , , , blocks]) => blocks.length > 0);
    if (!event) return null;
    const [, step, child, parent, blocks] = event;
    return { step, request: child, position: prompt(mirror, parent) - 1, facts: { child, parent, fork_blocks: blocks.length } };
  },

  copied(mirror) {
    const event = first(mirror, 'BlockCopied');
    if (!event) return null;
    const [, step, id, logical, source, copy, slots] = event;
    return { step, request: id, position: logical * mirror.live.blockSize + slots, facts: { source, copy, copied_slots: slots } };
  },

  // A finished sequence whose full blocks stay behind, cached.
  freed(mirror) {
    const ends = new Set(events(mirror, 'RequestFinished').map(([, step, id]) => `${step} ${id}`));
    const event = first(mirror, 'BlockFreed', ([, step, id, blocks]) => blocks.length > 1 && ends.has(`${step} ${id}`));
    return event && { step: event[1], request: event[2], position: 0, facts: { freed_blocks: event[3].length } };
  },
};

function hit(event, mirror, position) {
  if (!event) return null;
  const [, step, request, tokens, blocks] = event, total = prompt(mirror, request);
  return { step, request, position, facts: { hit_tokens: tokens, hit_blocks: blocks.length, prompt_tokens: total, rest: total - tokens } };
}

// What to do for a run that has the moment.
export const HOW_TO_GET = {
  token: 'Press Generate to have tokens to follow.',
  taken: 'Generate more tokens than a block has slots.',
  sampled: 'Generate a few tokens.',
  waste: 'Press Generate to have blocks in use.',
  preempted: 'Set a small pool (8 blocks) and run two prompts of 64 new tokens to see one.',
  resumed: 'Set a small pool (8 blocks) and run two prompts of 64 new tokens to their end to see one.',
  hit: 'Run two prompts that begin alike, one after the other, to see one.',
  afterhit: 'Run two prompts that begin alike, one after the other, to see one.',
  mosthit: 'Run the same prompt twice to see one.',
  fork: 'Set two sequences a prompt to see one.',
  copied: 'Set two sequences a prompt to see one.',
  freed: 'Let a run of more than one block end to see it.',
};

export function findMoment(name, mirror) {
  const found = mirror?.log.length ? FIND[name](mirror) : null;
  return found && found.request ? { facts: {}, ...found } : null;
}
