// The arithmetic of predict mode: which token is asked for, and what an answer says. Pure.

import { fmt } from './dom.js';
import { blockKind } from './describe.js';

export const ROUND = 5;

// A small seeded generator (mulberry32): numbers from 0 up to 1.
export function random(seed) {
  let a = seed >>> 0;
  return () => {
    a = a + 0x6D2B79F5 >>> 0;
    let t = Math.imul(a ^ a >>> 15, a | 1);
    t ^= t + Math.imul(t ^ t >>> 7, t | 61);
    return ((t ^ t >>> 14) >>> 0) / 4294967296;
  };
}

export const isHeld = (state, { request, position }) => { const r = state.request(request); return Boolean(r && r.table.length && position < r.computed); };

// A token with a slot, any of them equally likely; one of `before` only where all were asked. -> { request, position } or null.
export function pickToken(state, draw, before = []) {
  const held = state.requests.filter(r => r.table.length), total = held.reduce((sum, r) => sum + r.computed, 0), asked = new Set(before.map(t => `${t.request}:${t.position}`));
  if (!total) return null;
  for (let attempt = 0; ; attempt++) {
    let k = Math.floor(draw() * total);
    const r = held.find(q => (k < q.computed ? true : (k -= q.computed, false)));
    if (attempt >= 32 || !asked.has(`${r.id}:${k}`)) return { request: r.id, position: k };
  }
}

// -> { right, block, slot, here, sum }: `here` says what is at the place that was picked, `sum` is the way to the right one.
export function judge(state, { request, position }, picked) {
  const r = state.request(request), size = state.blockSize, logical = Math.floor(position / size), offset = position % size, block = r.table[logical], slot = block * size + offset;
  const right = picked.block === block && picked.offset === offset;
  const sum = `${position} // ${size} = ${logical} and ${position} % ${size} = ${offset}; table[${logical}] = ${block}; slot ${block} × ${size} + ${offset} = ${fmt(slot)}.`;
  return { right, block, slot, sum, here: right ? '' : whatIs(state, r, block, offset, picked) };
}

function whatIs(state, r, block, offset, picked) {
  const size = state.blockSize, at = r.table.indexOf(picked.block);
  if (picked.block === block) return picked.offset < 0 ? `Right block; now its slot.` : `Right block, but offset ${picked.offset} instead of ${offset}: that is ${r.id}:${at * size + picked.offset}.`;
  if (at >= 0) return `Block ${picked.block} is logical block ${at} of ${r.id}: it holds ${r.id}:${at * size} to ${r.id}:${at * size + size - 1}.`;
  const kind = blockKind(state, picked.block);
  if (kind === 'free') return `Block ${picked.block} is free: no table names it.`;
  if (kind) return `Block ${picked.block} is ${kind}: no table names it now.`;
  return `Block ${picked.block} is logical block ${state.logical[picked.block]} of ${state.requests[state.owner[picked.block]].id}.`;
}
