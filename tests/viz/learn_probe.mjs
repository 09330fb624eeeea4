// stdin: { name: { log, header } }: runs. stdout: for each run what every question and every stop says of it, and how predict
// mode judges each slot.
import { readFileSync } from 'node:fs';
import { Mirror } from '../../viz/stage/js/mirror.js';
import { findMoment, lastHeld, fullest } from '../../viz/stage/js/moments.js';
import { factsOf, fill } from '../../viz/stage/js/facts.js';
import { GROUPS, QUESTIONS } from '../../viz/stage/js/questions.js';
import { STOPS } from '../../viz/stage/js/stops.js';
import { TARGETS } from '../../viz/stage/js/guide.js';
import { judge, pickToken, random } from '../../viz/stage/js/quiz.js';

const answer = { ok: true, score: 0.25, weight: 0.125, max_abs_difference: 1.2e-7 };
const say = parts => parts && parts.map(p => p.text ?? p.value).join('');

function tell(mirror, header, { moment }, sentences) {
  const found = findMoment(moment, mirror);
  if (!found) return { found, sentences: sentences.map(s => say(fill(s, factsOf({ header, state: mirror.live })))) };
  const { step, request, position, facts: extra } = found, state = mirror.stateAt(step);
  const facts = factsOf({ header, state, pin: { request, position }, answer, extra });
  return { found: { step, request, position }, facts, sentences: sentences.map(s => say(fill(s, facts))) };
}

function quiz(mirror) {
  const step = lastHeld(mirror, mirror.newest), state = mirror.stateAt(step), draw = random(7), asked = [], judged = [];
  for (let i = 0; i < 12; i++) {
    const token = pickToken(state, draw, asked);
    asked.push(token);
    const right = [];
    for (let slot = 0; slot < state.numBlocks * state.blockSize; slot++) if (judge(state, token, { block: Math.floor(slot / state.blockSize), offset: slot % state.blockSize }).right) right.push(slot);
    judged.push({ ...token, right, sum: judge(state, token, { block: -1, offset: -1 }).sum });
  }
  return { step, judged };
}

const runs = JSON.parse(readFileSync(0, 'utf8')), out = { groups: GROUPS, targets: TARGETS, questions: QUESTIONS, stops: STOPS, runs: {} };
for (const [name, { log, header }] of Object.entries(runs)) {
  const mirror = new Mirror(header.block_size, header.num_blocks);
  mirror.append(log);
  out.runs[name] = {
    questions: Object.fromEntries(QUESTIONS.map(q => [q.id, tell(mirror, header, q, q.answer)])),
    stops: Object.fromEntries(STOPS.map(s => [s.id, tell(mirror, header, s, s.text)])), quiz: quiz(mirror), fullest: fullest(mirror),
  };
}
process.stdout.write(JSON.stringify(out));
