// What a block or a slot is, in words: for the tip, the lookup panel and the screen reader. Pure.

import { fmt, visible } from './dom.js';

const readers = (state, block) => state.requests.filter(r => r.table.includes(block)).map(r => r.id);
const list = ids => (ids.length < 2 ? ids.join('') : `${ids.slice(0, -1).join(', ')} and ${ids[ids.length - 1]}`);

export function blockKind(state, block) {
  if (state.ref[block]) return null;
  if (!state.hashed[block]) return 'free';
  const owner = state.requests[state.owner[block]];
  return owner ? `cached from ${owner.id}` : 'cached by an earlier run';
}

export function blockCaption(state, block) {
  const kind = blockKind(state, block);
  if (kind) return kind;
  const who = readers(state, block);
  return `${who.join(', ')}[${state.logical[block]}]${who.length > 1 ? ', shared' : ''}`;
}

// { what: 'block 26, slot 428', title, text, token }: `token` is { request, position } where a click can pin one.
export function describeSlot(state, block, offset, mirror) {
  const where = offset < 0 ? `block ${fmt(block)}` : `block ${fmt(block)}, slot ${fmt(block * state.blockSize + offset)}`;
  const kind = blockKind(state, block);
  if (kind === 'free') return { what: `block ${fmt(block)}`, title: '', text: `Block ${block} is free: no sequence maps to it.` };
  if (kind) return { what: `block ${fmt(block)}`, title: 'cached, evictable', text: `${kind[0].toUpperCase()}${kind.slice(1)}. Its bytes stay, and can be hit again, until another sequence takes it.` };
  const owner = state.requests[state.owner[block]], who = readers(state, block);
  if (offset < 0) return { what: where, title: blockCaption(state, block), text: who.length > 1 ? `Read by ${list(who)}: ${state.ref[block]} references.` : `Logical block ${state.logical[block]} of ${owner.id}.` };
  const token = state.tokenAt(block, offset);
  if (!token) return { what: where, title: '', text: `Reserved for ${list(who)}, not written yet.` };
  const written = mirror ? mirror.writtenAt(block * state.blockSize + offset, state.step) : null;
  return {
    what: where, title: `${owner.id}:${token.position} “${visible(state.texts.get(owner.id)[token.position]).text}”`, token,
    text: `Offset ${offset} of logical block ${state.logical[block]}${who.length > 1 ? `, read by ${list(who)}` : ''}${written === null ? '' : `; written at step ${fmt(written)}`}.`,
  };
}
export { readers, list };

// Where a token's button, or a block table's entry, stands in the pool: { block, offset }, offset -1 for all of it; null: nowhere.
export function placeOf(state, { request, position, physical }) {
  if (position === undefined) return { block: Number(physical), offset: -1 };
  const r = state.request(request), at = Number(position);
  return r && at < r.computed && r.table.length ? { block: r.table[Math.floor(at / state.blockSize)], offset: at % state.blockSize } : null;
}
