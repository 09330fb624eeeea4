// The six steps in words, every number taken from the example (engine.worked_example, `to_dict`). Pure.

import { fmt } from '../../stage/js/dom.js';

export const STEPS = 6;
const GAP = '     ';
export const four = x => x.toFixed(4).replace('-', '−');
export const tiny = x => (x === 0 ? '0' : x.toExponential(1).replace(/^-/, '−'));
export const and = list => (list.length < 2 ? list.join('') : `${list.slice(0, -1).join(', ')} and ${list[list.length - 1]}`);
const ordinal = n => `${n}${n % 100 > 10 && n % 100 < 14 ? 'th' : ['th', 'st', 'nd', 'rd'][n % 10] ?? 'th'}`;

// Positions by block of the table: { from, to, block }.
export function ranges(x) {
  return x.block_table.map((block, i) => ({ from: i * x.block_size, to: Math.min((i + 1) * x.block_size, x.context_len) - 1, block }));
}

export function sentences(x) {
  return {
    about: `Random keys and values, seed ${x.seed}, so that you can check every number. In your own run the same code fills the Lookup panel.`,
    written: `${x.context_len} tokens written; the ${ordinal(x.context_len + 1)} asks`,
    tokens: `positions 0 to ${x.context_len - 1}, ${x.block_size} to a logical block`,
    table: `[${x.block_table.join(', ')}]`,
    pool: `; slot ${x.slot} = ${x.physical_block} × ${x.block_size} + ${x.block_offset}`,
    asks: `token ${x.context_len} asks for the key of token ${x.key_position}`,
    weights: `softmax of the ${x.context_len} scores`,
    largest: `largest ${four(x.largest_weight)} at ${x.largest_weight_position}`,
    norm: `‖o‖ ${four(x.output_norm)}`,
  };
}

// [{ title, value, how, why, fields }]: `fields` are the numbers of the step by their names in the example.
export function sixSteps(x) {
  const { key_position: p, block_size: size, logical_block: logical, block_offset: offset, physical_block: block, slot } = x;
  const d = x.key.length, parts = ranges(x), last = parts[parts.length - 1], unread = x.block_table.length * size - x.context_len;
  const never = unread === 0 ? 'Every slot of the last block is written.'
    : unread === 1 ? `Slot ${size - 1} of block ${last.block} is reserved and never read: its score is minus infinity.`
    : `Slots ${size - unread} to ${size - 1} of block ${last.block} are reserved and never read: their score is minus infinity.`;
  return [
    { title: 'Find the logical block', value: `${logical}, offset ${offset}`, how: `${p} // ${size} = ${logical}${GAP}${p} % ${size} = ${offset}`,
      why: `Blocks hold ${size} tokens, so a division names the block and the remainder names the place inside it.`, fields: { logical_block: logical, block_offset: offset } },
    { title: 'Look it up in the block table', value: String(block), how: `table[${logical}] = ${block}`,
      why: `The table is the only thing that knows where a block went. Blocks ${and(x.block_table)} lie in no order.`, fields: { physical_block: block } },
    { title: 'Compute the address', value: `slot ${slot}`, how: `${block} × ${size} + ${offset} = ${slot}${GAP}${slot} × ${x.slot_bytes} B = ${fmt(x.byte_offset)}`,
      why: `One key is ${d} floats, ${x.slot_bytes} bytes. This second level of addressing costs one small read a block.`, fields: { slot, byte_offset: x.byte_offset } },
    { title: 'Read the key, score it', value: four(x.score), how: `q·k / √${d} = ${four(x.raw_dot)} / ${four(1 / x.scale)}`,
      why: `The key there has norm ${four(x.key_norm)}. The query is compared with it as in any attention.`, fields: { score: x.score, raw_dot: x.raw_dot, key_norm: x.key_norm } },
    { title: `Repeat for tokens 0 to ${x.context_len - 1}`, value: `${x.scores.length} scores`, how: parts.map(r => `${r.from}–${r.to} in ${r.block}`).join('   '),
      why: never, fields: { context_len: x.context_len } },
    { title: 'Softmax, mix the values', value: `weight ${four(x.weight)}`, how: `largest ${four(x.largest_weight)} at ${x.largest_weight_position}${GAP}‖o‖ ${four(x.output_norm)}`,
      why: `Values come through the same lookups. The result is one vector of ${d} numbers.`, fields: { weight: x.weight, largest_weight: x.largest_weight, output_norm: x.output_norm } },
  ];
}

export function proofText(x) {
  const same = x.max_abs_difference < 1e-5;      // float32, values of order 1
  return {
    same, title: same ? 'Same as contiguous attention' : 'Differs from contiguous attention', value: tiny(x.max_abs_difference).replace(/e([-+])(\d)$/, 'e$10$2'),     // as the Lookup panel says it
    why: `Largest difference over ${x.output_paged.length} outputs, however scattered the blocks are.`,
  };
}
