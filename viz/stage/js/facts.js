// The live numbers of what is on screen, by name, and sentences with {names} in them. A sentence whose number is not known is
// left out: nothing is ever made up. Pure.

import { fmt, visible } from './dom.js';

const LATE = '····';      // Python has not answered yet
const GATHERS = 'gathers keys and values through the table into contiguous tensors, then calls ordinary attention';
const BACKENDS = { torch: GATHERS, reference: GATHERS, triton: 'reads the pages where they lie, through the table' };
const percent = part => (Number.isFinite(part) ? `${part >= 0.0995 ? (100 * part).toFixed(0) : Number((100 * part).toPrecision(2))} %` : undefined);
const short = list => (list.length <= 8 ? list.join(', ') : `${list.slice(0, 6).join(', ')}, …, ${list[list.length - 1]}`);

export function bytes(n) {
  if (!Number.isFinite(n)) return undefined;
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return `${i ? Number(n.toPrecision(3)) : fmt(n)} ${units[i]}`;
}

// `header` of the run, `state` on screen; `pin` { request, position } or null; `answer` to the pinned lookup or null.
export function factsOf({ header = {}, state, pin = null, answer = null, extra = {} }) {
  const size = state.blockSize, blocks = state.numBlocks, { counts } = state, h = header;
  const held = state.requests.filter(r => r.table.length), slots = counts.used * size, layerBytes = 2 * size * h.slot_bytes;
  const facts = {
    step: state.step, block_size: size, num_blocks: blocks, num_slots: blocks * size, max_waste: size - 1,
    used: counts.used, free: counts.free, cached: counts.cached, shared: counts.shared, reserved: counts.reserved, fresh: state.fresh.length,
    used_percent: percent(counts.used / blocks), used_slots: slots, waste_percent: slots ? percent(counts.reserved / slots) : undefined,
    contiguous_slots: held.reduce((sum, r) => sum + r.numPrompt + r.maxTokens, 0), sequences: held.length,
    num_layers: h.num_layers, num_heads: h.num_heads, num_kv_heads: h.num_kv_heads, head_dim: h.head_dim, group: h.num_heads / h.num_kv_heads,
    dtype: h.dtype, itemsize: h.slot_bytes / (h.num_kv_heads * h.head_dim), slot_bytes: h.slot_bytes, layer_bytes: layerBytes,
    key_bytes: size * h.slot_bytes, table_share: percent(8 / layerBytes), bytes_per_block: h.bytes_per_block, block_size_bytes: bytes(h.bytes_per_block),
    pool_bytes: bytes(h.bytes_per_block * blocks), backend: h.backend, device: h.device, backend_does: BACKENDS[h.backend],
    ...tokenFacts(state, h, pin), ...extra,
  };
  if (extra.copied_slots !== undefined) facts.copied_bytes = bytes(2 * h.num_layers * extra.copied_slots * h.slot_bytes);
  if (!answer && facts.slot !== undefined) facts.score = facts.weight = facts.difference = LATE;
  if (answer?.ok) Object.assign(facts, { score: answer.score.toFixed(4), weight: answer.weight < 1e-4 ? answer.weight.toExponential(1) : answer.weight.toFixed(4), difference: answer.max_abs_difference.toExponential(1).replace(/e([-+])(\d)$/, 'e$10$2') });
  return facts;
}

function tokenFacts(state, header, pin) {
  const r = pin && state.request(pin.request);
  if (!r || pin.position >= r.length) return {};
  const size = state.blockSize, { position } = pin, logical = Math.floor(position / size), offset = position % size;
  const table = r.table.length ? r.table : r.was, block = table[logical], other = table[logical + 1] === undefined ? logical - 1 : logical + 1;
  const facts = {
    id: r.id, position, token: visible(state.texts.get(r.id)[position]).text, logical, offset, length: r.length, computed: r.computed, prompt_length: r.numPrompt,
    table: table.length ? `[${short(table)}]` : undefined, table_length: table.length || undefined, other_logical: table[other] === undefined ? undefined : other, other_block: table[other],
  };
  if (block === undefined) return facts;
  const slot = block * size + offset;
  return { ...facts, block, slot, first_slot: block * size, last_slot: block * size + size - 1, byte_offset: header.slot_bytes ? slot * header.slot_bytes : undefined, readers: state.requests.filter(q => q.table.includes(block)).map(q => q.id).join(' and ') || undefined };
}

// "Block {block} is …" -> [{ text: 'Block ' }, { value: '12', name: 'block' }, { text: ' is …' }], or null where a number is missing.
export function fill(sentence, facts) {
  const parts = [];
  for (const piece of sentence.split(/(\{\w+\})/)) {
    const name = /^\{(\w+)\}$/.exec(piece)?.[1];
    if (!name) { if (piece) parts.push({ text: piece }); continue; }
    const value = facts[name];
    if (value === undefined || value === null || Number.isNaN(value)) return null;
    parts.push({ value: typeof value === 'number' ? fmt(value) : String(value), name });
  }
  return parts;
}

// Sentences -> parts, one space between; those that cannot be filled are left out.
export function fillAll(sentences, facts) {
  const filled = sentences.map(s => fill(s, facts)).filter(Boolean);
  return filled.flatMap((parts, i) => (i ? [{ text: ' ' }, ...parts] : parts));
}

export const names = sentence => [...sentence.matchAll(/\{(\w+)\}/g)].map(m => m[1]);
