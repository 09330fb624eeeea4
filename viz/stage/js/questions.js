// "Ask the picture": what learners ask, as data. `example` and `moment` say which state answers it (js/moments.js finds the step),
// `target` where to look, `answer` is 2 to 4 sentences; {names} are live numbers of that state (js/facts.js).

export const GROUPS = ['Addresses', 'Time', 'Size and waste', 'A full pool', 'Sharing', 'Attention'];

export const QUESTIONS = [
  {
    id: 'where', group: 'Addresses', example: 'plain', moment: 'token', target: 'slot',
    question: 'Where is token p: which block, which slot?',
    answer: [
      'Divide the position by the block size: {position} // {block_size} = {logical} is the logical block, {position} % {block_size} = {offset} the offset in it.',
      'The block table of {id} maps logical block {logical} to physical block {block}, so the slot is {block} × {block_size} + {offset} = {slot}.',
      'In every layer the key and the value of “{token}” are at that slot.',
    ],
  },
  {
    id: 'table-or-mapping', group: 'Addresses', example: 'plain', moment: 'token', target: 'table',
    question: 'Block table or slot mapping: which one is used?',
    answer: [
      'Both, for two jobs.',
      'The slot mapping is for writing: one slot for each token that this step computes, {fresh} in step {step}, says where its key and value go.',
      'The block table is for reading: one entry a block, {table_length} for {id}, leads attention to every earlier position.',
      'A slot is the table spelled out: table[p // {block_size}] × {block_size} + p % {block_size}.',
    ],
  },
  {
    id: 'contiguous', group: 'Addresses', example: 'plain', moment: 'token', target: 'tile', words: 'adjacent side by side memory layout',
    question: 'Are keys and values contiguous in a block?',
    answer: [
      'Inside a block yes, from block to block no.',
      'In one layer the {block_size} keys of block {block} are slots {first_slot} to {last_slot}, {key_bytes} bytes side by side; the values lie likewise in a tensor of their own.',
      'Logical block {other_logical} of the same text is block {other_block}: wherever the pool had room.',
    ],
  },
  {
    id: 'one-table', group: 'Addresses', example: 'plain', moment: 'token', target: 'table', words: 'layers',
    question: 'One block table, or one for each layer?',
    answer: [
      'One: the table of {id} has {table_length} entries and serves all {num_layers} layers.',
      'Every layer has its own keys and values, so slot {slot} exists {num_layers} times; change the layer in the lookup, and block and slot stay while the address and the vectors change.',
      'vLLM keeps one table for each group of layers that cache alike, which for most models is one.',
    ],
  },
  {
    id: 'when-taken', group: 'Time', example: 'plain', moment: 'taken', target: 'cell', words: 'allocate allocation',
    question: 'When exactly is a new block taken?',
    answer: [
      'In the step that writes the first position in it, just before the forward pass, and never earlier.',
      '{position} % {block_size} = 0, so in step {step} the scheduler took block {block} as logical block {logical} of {id}.',
      'A prompt takes at once the blocks of all the tokens that its step computes.',
    ],
  },
  {
    id: 'sampled', group: 'Time', example: 'plain', moment: 'sampled', target: 'token', words: 'kv new token',
    question: 'Does the token just sampled have a key and a value yet?',
    answer: [
      'No: “{token}” was chosen at the end of step {step}, from what the model said after {id}:{before}.',
      'Its key and value are computed when the next step reads it as input, and then go to slot {slot}, which is reserved and still empty.',
      '{id} has {length} tokens and {computed} slots written: the newest token is always one ahead.',
    ],
  },
  {
    id: 'why-16', group: 'Size and waste', example: 'block-size-16', moment: 'waste', target: 'row', words: 'block size',
    question: 'Why 16 slots a block?',
    answer: [
      'It is a compromise.',
      'Small blocks waste less, at most {max_waste} slots a sequence here, and let a prompt reuse more of its beginning; large ones keep tables short: {table_length} entries for the {computed} tokens of {id} instead of {computed}.',
      'The PagedAttention paper found 16 large enough to keep a GPU busy and small enough to waste little; vLLM starts from 16 too.',
    ],
  },
  {
    id: 'bigger-block', group: 'Size and waste', example: 'block-size-64', moment: 'waste', target: 'pool', words: 'faster speed large block size',
    question: 'Why is a bigger block not faster?',
    answer: [
      'For a new token attention reads the same keys and values whatever the block size, and that reading is its cost.',
      'All that a bigger block saves is table entries: 8 bytes each, {table_share} of the {layer_bytes} bytes of keys and values that one leads to in one layer.',
      'One slot alone is {slot_bytes} bytes of keys in a row: whole cache lines already.',
      'What grows is the empty end of every last block: {reserved} slots now.',
    ],
  },
  {
    id: 'waste', group: 'Size and waste', example: 'plain', moment: 'waste', target: 'row', words: 'fragmentation reserved internal external',
    question: 'Where is the waste?',
    answer: [
      'Only at the end of each sequence: {reserved} of the {used_slots} slots in use are reserved and not written yet, {waste_percent}.',
      'A contiguous cache sets aside prompt and max_tokens of every running sequence in advance, {contiguous_slots} slots here.',
      'Between blocks nothing is lost: all have one size, so any free block fits.',
    ],
  },
  {
    id: 'small-model', group: 'Size and waste', example: 'plain', moment: 'token', target: 'legend', words: '125M opt gpu memory full gpu_memory_utilization',
    question: 'Why does a 125M model fill the whole GPU?',
    answer: [
      'Because the pool is allocated before the first request comes.',
      'vLLM takes about nine tenths of the GPU’s memory (gpu_memory_utilization) and makes blocks of all that the weights and one trial pass leave: a small model leaves more.',
      'Here you choose: {num_blocks} blocks of {block_size_bytes} are {pool_bytes}, taken at the start although only {used} blocks are in use.',
    ],
  },
  {
    id: 'usage-of-what', group: 'Size and waste', example: 'plain', moment: 'token', target: 'legend', words: 'percent kv cache usage metric',
    question: '“15 % KV cache usage”: 15 % of what?',
    answer: [
      'Of the blocks in the pool, not of the GPU’s memory.',
      'Now {used} of {num_blocks} blocks are in use, which is {used_percent}; a block counts as soon as a table names it, however few of its slots are written.',
      'Cached blocks that no sequence maps to, {cached} now, count as free: anyone may take them.',
    ],
  },
  {
    id: 'how-many-blocks', group: 'Size and waste', example: 'plain', moment: 'token', target: 'poolsize', words: 'num_blocks formula num_gpu_blocks',
    question: 'How is the number of blocks computed?',
    answer: [
      'The memory left for the cache, divided by the bytes of one block: 2 (keys and values) × {num_layers} layers × {block_size} slots × {num_kv_heads} KV heads × {head_dim} × {itemsize} bytes = {bytes_per_block}.',
      'vLLM measures that memory at the start: its share of the GPU, less the weights and the peak of a trial pass.',
      'Here it is a setting, {num_blocks}, so that a pool can be made small enough to run dry.',
    ],
  },
  {
    id: 'kv-heads', group: 'Size and waste', example: 'plain', moment: 'token', target: 'key', words: 'gqa query heads formula bytes',
    question: 'Heads or KV heads in the formula?',
    answer: [
      'KV heads: only keys and values are stored, and {num_heads} query heads share {num_kv_heads} KV heads here.',
      'A block takes 2 × {num_layers} × {block_size} × {num_kv_heads} × {head_dim} × {itemsize} = {bytes_per_block} bytes; counted with query heads it would be {group} times too much.',
      'In the lookup, {group} neighbouring heads show the same key.',
    ],
  },
  {
    id: 'at-100', group: 'A full pool', example: 'preemption', moment: 'preempted', target: 'seq', words: 'full preemption victim who oom out of memory',
    question: 'What happens at 100 %: who is preempted, and why?',
    answer: [
      'When a sequence needs a block and none is free or cached, the youngest running sequence gives all of its blocks back and waits at the head of the queue.',
      'In step {step} {needing} needed a block: {victim} was preempted and {given_back} blocks came back.',
      'It keeps its text; its {recompute} tokens are computed again when there is room, less what is still cached.',
      'First come, first served: the oldest always moves on, so that every run ends; vLLM’s default is the same.',
    ],
  },
  {
    id: 'text-after', group: 'A full pool', example: 'preemption', moment: 'resumed', target: 'seq', words: 'preemption recompute change output',
    question: 'Does preemption change my text?',
    answer: [
      'No: prompt and generated tokens are kept, only their keys and values are computed again.',
      '{victim} was preempted in step {preempted_step} with {recompute} tokens; in step {step} all of them have slots again, logical block {logical} then in block {block_before} and now in block {block}.',
      'In float32 with greedy sampling our tests demand the same text, token by token.',
      'In bfloat16 another batch can round differently, so a near tie between two tokens may fall otherwise.',
    ],
  },
  {
    id: 'prefix-or-paging', group: 'Sharing', example: 'shared-prompt', moment: 'hit', target: 'row', words: 'prefix caching paging same',
    question: 'Is prefix caching the same as paging?',
    answer: [
      'No: paging is the table that says where each block is; prefix caching lets a second table name the same block.',
      'Full blocks keep a hash of their tokens, and {id} found {hit_tokens} of its {prompt_tokens} prompt tokens in {hit_blocks} blocks, the first in block {block}: neither copied nor computed again.',
      'Paging works without it (a switch in the settings); sharing without copying would not work without paging.',
    ],
  },
  {
    id: 'only-full', group: 'Sharing', example: 'shared-prompt', moment: 'afterhit', target: 'row', words: 'full blocks partial',
    question: 'Why are only full blocks shared?',
    answer: [
      'A full block never changes again, so a hash of its tokens and of the block before it can name it; a part-filled one gets another token in the next step.',
      '{id} shares {hit_blocks} full blocks, and its token {position} starts a block of its own, block {block}.',
      'A fork is the exception: parent and child share a part-filled block too, until one of them writes into it.',
    ],
  },
  {
    id: 'all-cached', group: 'Sharing', example: 'eviction', moment: 'mosthit', target: 'token', words: 'compute one token last',
    question: 'All of the prompt is cached: why compute anything?',
    answer: [
      'The next token is chosen from the scores that a forward pass makes at the last prompt token, and those are not in the cache.',
      'So at least one token is always computed: of {prompt_tokens} prompt tokens {id} found {hit_tokens} and computed {rest}.',
      'Hits come in whole blocks of {block_size}, so a prompt that ends with a block has that whole block computed again, in vLLM as well.',
    ],
  },
  {
    id: 'copy-on-write', group: 'Sharing', example: 'fork', moment: 'copied', target: 'cell', words: 'cow copy',
    question: 'When does copy-on-write copy?',
    answer: [
      'When a sequence is about to write into a part-filled block that another one still reads: a reference count above 1.',
      'In step {step} {id} copied the {copied_slots} written slots of block {source} to block {copy}, {copied_bytes} in all layers, then wrote token {position} there.',
      'The last reader left writes in place, and full blocks are never written, so they are never copied.',
    ],
  },
  {
    id: 'at-a-fork', group: 'Sharing', example: 'fork', moment: 'fork', target: 'seq', words: 'n parallel sampling',
    question: 'What is copied at a fork?',
    answer: [
      'Only the block table; no key and no value moves.',
      'In step {step} {child} got {parent}’s list of {fork_blocks} block ids, and the reference count of each block went up by one.',
      'Who first writes into a shared part-filled block copies that one block; if the prompt ends exactly with a block, nothing is ever copied.',
    ],
  },
  {
    id: 'collision', group: 'Sharing', example: 'shared-prompt', moment: 'hit', target: 'cell', words: 'hash collision wrong answer sha256',
    question: 'A hash collision: do I get a wrong answer?',
    answer: [
      'Not here: the hash only finds candidates.',
      'A hit also compares the tokens and demands the same block before it; {id} reads block {block} because all of its {block_size} tokens, and everything before them, are the same.',
      'vLLM compares hashes alone, SHA-256 by default, where an accidental collision is not to be expected.',
    ],
  },
  {
    id: 'erase', group: 'Sharing', example: 'eviction', moment: 'freed', target: 'tile', words: 'free erase delete memory cached evict',
    question: 'Does freeing a block erase it?',
    answer: [
      'No: its reference count falls, and at 0 it joins the end of the free queue with its bytes, and if it was full with its hash.',
      '{id} gave {freed_blocks} blocks back in step {step}; block {block} still holds “{token}”.',
      'The pool has {cached} such cached blocks now: a prompt that begins alike can have them back, until another sequence takes them, the longest unused first.',
    ],
  },
  {
    id: 'bit-identical', group: 'Attention', example: 'plain', moment: 'token', target: 'proof', words: 'same exact equal dense numerics',
    question: 'Is paged output bit for bit the same?',
    answer: [
      'Paging moves bytes and changes none: gathered through the table and then computed as usual, the result equals contiguous attention bit for bit, whatever the order of the blocks.',
      'A fast kernel adds the same products up in another order than the dense one, so the last bits may differ.',
      'For this head the largest difference is {difference}.',
    ],
  },
  {
    id: 'cache-or-attention', group: 'Attention', example: 'plain', moment: 'token', target: 'pool', words: 'kernel gather difference',
    question: 'Paged cache or paged attention?',
    answer: [
      'Two things: the paged cache is the bookkeeping, a pool, a table for each sequence, blocks taken when needed.',
      'Paged attention is a kernel that reads keys and values through the table where they lie.',
      'One can have the first alone, at the price of a contiguous copy in every step.',
      'This run’s backend ({backend}) {backend_does}.',
    ],
  },
];
