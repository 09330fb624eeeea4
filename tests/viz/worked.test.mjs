// The worked lookup's pure modules, in node. The example here is a made-up one: no text may come from anywhere else.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { sixSteps, sentences, ranges, proofText, four, tiny } from '../../viz/worked/js/steps.js';
import { sceneOf, placeOf } from '../../viz/worked/js/scene.js';
import { wantedTab } from '../../viz/worked/js/tablink.js';

const example = {
  seed: 3, block_table: [5, 1], block_size: 4, num_blocks: 6, context_len: 7, key_position: 5, logical_block: 1, block_offset: 1, physical_block: 1,
  slot: 5, slots: [20, 21, 22, 23, 4, 5, 6], slot_bytes: 12, byte_offset: 60, key: [1, 2, 3], key_norm: 3.7417, raw_dot: -2, scale: 0.5, score: -1,
  weight: 0.25, scores: [1, 2, 3, 4, 5, 6, 7], largest_weight: 0.5, largest_weight_position: 2, output_paged: [1, 2, 3], output_dense: [1, 2, 3], output_norm: 9,
  max_abs_difference: 2e-8,
};

test('every number of a step is the example\'s', () => {
  const steps = sixSteps(example), text = step => [step.title, step.value, step.how, step.why].join(' | ');
  assert.equal(steps.length, 6);
  assert.match(text(steps[0]), /1, offset 1 \| 5 \/\/ 4 = 1 {5}5 % 4 = 1 \| Blocks hold 4 tokens/);
  assert.match(text(steps[1]), /\| 1 \| table\[1\] = 1 \|.*Blocks 5 and 1 lie in no order/);
  assert.match(text(steps[2]), /slot 5 \| 1 × 4 \+ 1 = 5 {5}5 × 12 B = 60 \| One key is 3 floats, 12 bytes/);
  assert.match(text(steps[3]), /−1\.0000 \| q·k \/ √3 = −2\.0000 \/ 2\.0000 \| The key there has norm 3\.7417/);
  assert.match(text(steps[4]), /tokens 0 to 6 \| 7 scores \| 0–3 in 5 {3}4–6 in 1 \| Slot 3 of block 1 is reserved/);
  assert.match(text(steps[5]), /weight 0\.2500 \| largest 0\.5000 at 2 {5}‖o‖ 9\.0000 \|.*one vector of 3 numbers/);
});

test('several unread slots are named by their ends', () => {
  assert.match(sixSteps({ ...example, context_len: 6 })[4].why, /Slots 2 to 3 of block 1 are reserved/);
});

test('a full last block has nothing reserved', () => {
  assert.match(sixSteps({ ...example, context_len: 8 })[4].why, /Every slot of the last block is written/);
  assert.deepEqual(ranges({ ...example, context_len: 8 }), [{ from: 0, to: 3, block: 5 }, { from: 4, to: 7, block: 1 }]);
});

test('the sentences count in words of the example', () => {
  assert.equal(sentences(example).written, '7 tokens written; the 8th asks');
  assert.match(sentences({ ...example, context_len: 10 }).written, /the 11th asks/);
  assert.match(sentences({ ...example, context_len: 20 }).written, /the 21st asks/);
  assert.match(sentences(example).about, /seed 3,/);
});

test('outputs that differ are not called the same', () => {
  assert.equal(proofText(example).title, 'Same as contiguous attention');
  assert.equal(proofText(example).value, '2.0e-08');
  assert.equal(proofText({ ...example, max_abs_difference: 1e-3 }).title, 'Differs from contiguous attention');
});

test('the scene is the cache that the example describes', () => {
  const state = sceneOf(example, 'x');
  assert.deepEqual([5, 1, 0].map(block => state.ref[block]), [1, 1, 0]);
  assert.deepEqual([5, 1].map(block => state.filled[block]), [4, 3]);
  assert.equal(state.request('A').length, 8);
  assert.equal(state.request('A').computed, 7);
  assert.deepEqual(placeOf(example, 4), { block: 1, offset: 0, slot: 4 });
  assert.equal(placeOf(example, 7), null);
});

test('numbers are written with a real minus', () => {
  assert.equal(four(-0.5), '−0.5000');
  assert.equal(tiny(-1.5e-7), '−1.5e-7');
  assert.equal(tiny(0), '0');
});

test('a link names a tab, and nothing else', () => {
  assert.equal(wantedTab('?tab=worked'), 'worked');
  assert.equal(wantedTab('?tab=%22%5D'), null);
  assert.equal(wantedTab('?step=3'), null);
});
