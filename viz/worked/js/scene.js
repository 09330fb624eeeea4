// The example as a cache state, so that the Stage's panes can draw it. Pure.

import { CacheState } from '../../stage/js/state.js';

export const REQUEST = 'A';

export function sceneOf(x, head) {
  const state = new CacheState(x.block_size, x.num_blocks), texts = Array.from({ length: x.context_len + 1 }, (_, p) => String(p));   // the query is sampled, not written
  state.apply(['RequestAdded', 0, REQUEST, head, null, texts, 0]);
  x.block_table.forEach((block, logical) => state.apply(['BlockAllocated', 0, REQUEST, logical, block]));
  state.apply(['SlotsWritten', 0, REQUEST, 0, x.slots]);
  state.request(REQUEST).numPrompt = 0;
  state.fresh = [];                       // nothing is being written while it is looked at
  return state;
}

// Where a position lives: { block, offset, slot }, or null for one that has no slot.
export function placeOf(x, position) {
  const slot = x.slots[position];
  return slot === undefined ? null : { block: Math.floor(slot / x.block_size), offset: slot % x.block_size, slot };
}
