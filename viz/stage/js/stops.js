// The guided tour, as data: where to look, what moves the view, and two short sentences with live numbers (js/facts.js).

export const STOPS = [
  {
    id: 'tokens', example: 'shared-prompt', moment: 'token', target: 'tokens', title: 'Text, in reading order',
    text: ['Sequence {id} has {length} tokens at step {step}, drawn {block_size} to a logical block.', 'A solid bar means that the key and the value of a token are stored: {computed} of them are.'],
  },
  {
    id: 'table', example: 'shared-prompt', moment: 'token', target: 'cell', title: 'The block table',
    text: ['Logical block {logical} of {id} is physical block {block}.', 'The {table_length} entries {table} serve all {num_layers} layers.'],
  },
  {
    id: 'pool', example: 'shared-prompt', moment: 'token', target: 'pool', title: 'One pool for everyone',
    text: ['{used} of {num_blocks} blocks are in use by {sequences} sequences, wherever there was room.', 'Neighbours in the text need not be neighbours here.'],
  },
  {
    id: 'slot', example: 'shared-prompt', moment: 'token', level: 'tokens', target: 'slot', title: 'A slot is one token’s place',
    text: ['{id}:{position} “{token}” is at offset {offset} of block {block}.', 'Its slot is {block} × {block_size} + {offset} = {slot}, the same in every layer.'],
  },
  {
    id: 'proof', example: 'shared-prompt', moment: 'token', target: 'lookup', title: 'Down to the bytes, and checked',
    text: ['Slot {slot} is byte {byte_offset} of each layer’s keys; the key there gets a score, and the score a softmax weight.', 'Here the weight is {weight}, and the whole head equals dense attention to within {difference}.'],
  },
  {
    id: 'taken', example: 'shared-prompt', moment: 'taken', target: 'row', title: 'A block when, and only when, needed',
    text: ['At step {step} token {position} of {id} began logical block {logical}: {position} % {block_size} = 0, so block {block} was taken.', 'Hatched slots are reserved and not written yet: {reserved} in the whole pool.'],
  },
  {
    id: 'shared', example: 'shared-prompt', moment: 'hit', target: 'tile', title: 'The same words, stored once',
    text: ['{id} begins like a prompt before it: {hit_tokens} of its {prompt_tokens} tokens were found in {hit_blocks} blocks, the first in block {block}.', 'Cross hatch and a count mark a block that several tables name.'],
  },
  {
    id: 'full', example: 'preemption', moment: 'preempted', target: 'events', title: 'When the pool is full',
    text: ['At step {step} {needing} needed a block and none was free, so {victim}, the youngest, gave {given_back} back and waits.', 'Its text stays; its {recompute} tokens are computed again later.'],
  },
];
