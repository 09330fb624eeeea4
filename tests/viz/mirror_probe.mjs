// Reads { log, num_blocks, block_size, steps } on stdin; prints the mirror's state at each step, in the shape of fold.py.
import { readFileSync } from 'node:fs';
import { Mirror } from '../../viz/stage/js/mirror.js';
import { plain } from './plain_state.mjs';

const { log, num_blocks, block_size, steps, chunk } = JSON.parse(readFileSync(0, 'utf8'));
const mirror = new Mirror(block_size, num_blocks);
mirror.every = 40;
for (let i = 0; i < log.length; i += chunk) mirror.append(log.slice(i, i + chunk));

const usage = mirror.usage;
process.stdout.write(JSON.stringify({ states: steps.map(step => structuredClone(plain(mirror.stateAt(step)))), newest: mirror.newest, checkpoints: mirror.checkpoints.length, story: mirror.story.entries, usage }));
