// Reads { log, num_blocks, block_size, steps } on stdin; prints the mirror's state at each step, in the shape of fold.py.
import { readFileSync } from 'node:fs';
import { Mirror } from '../../viz/stage/js/mirror.js';

const { log, num_blocks, block_size, steps, chunk } = JSON.parse(readFileSync(0, 'utf8'));
const mirror = new Mirror(block_size, num_blocks);
mirror.every = 40;
for (let i = 0; i < log.length; i += chunk) mirror.append(log.slice(i, i + chunk));

const plain = s => ({
  step: s.step, fresh: s.fresh, counts: s.counts,
  blocks: Array.from(s.ref, (ref, b) => ({ ref, owner: s.owner[b] < 0 ? null : s.requests[s.owner[b]].id, filled: s.filled[b], hashed: Boolean(s.hashed[b]) })),
  requests: Object.fromEntries(s.requests.map(r => [r.id, {
    tokens: s.texts.get(r.id).slice(0, r.length), prompt: r.numPrompt, status: r.status, table: r.table, computed: r.computed, preempted: r.preemptedAt, finish: r.finishReason,
  }])),
});
const usage = mirror.usage;
process.stdout.write(JSON.stringify({ states: steps.map(step => structuredClone(plain(mirror.stateAt(step)))), newest: mirror.newest, checkpoints: mirror.checkpoints.length, story: mirror.story.entries, usage }));
