// The pure modules of the Stage, in node: bus, clock, folds, geometry, pin, links, visible text.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { Bus, Mirror } from '../../viz/stage/js/mirror.js';
import { Clock, WATCHABLE } from '../../viz/stage/js/clock.js';
import { layout, blocksShown } from '../../viz/stage/js/folds.js';
import { geometry, fitView, viewAt, zoomTarget, panned, isFit } from '../../viz/stage/js/geometry.js';
import { makeLink, readLink } from '../../viz/stage/js/link.js';
import { visible } from '../../viz/stage/js/dom.js';

const header = { block_size: 4, num_blocks: 8 };
const log = rows => JSON.stringify(rows);
const added = ['RequestAdded', 0, 'A', 'p', [1, 2], ['a', 'b'], 9];
const step = n => ['TokenSampled', n, 'A', n + 1, 5, 't'];

function bus() {
  const seen = { gaps: [], resets: 0, appends: 0 };
  const b = new Bus({ onReset: () => seen.resets++, onAppend: () => seen.appends++, onGap: have => seen.gaps.push(have) });
  b.receive({ kind: 'snapshot', run: 'r', n: 0, header, session: 's', running: true, log: log([added]), notice: null });
  return { b, seen };
}

test('a delta in order is folded, a repeated one is not, a gap asks again', () => {
  const { b, seen } = bus();
  b.receive({ kind: 'delta', run: 'r', n: 1, log: log([step(1)]), running: true });
  b.receive({ kind: 'delta', run: 'r', n: 1, log: log([step(1)]), running: true });
  assert.equal(b.mirror.newest, 1);
  assert.equal(b.mirror.live.request('A').length, 3);
  b.receive({ kind: 'delta', run: 'r', n: 3, log: log([step(3)]), running: true });
  assert.deepEqual(seen.gaps, [1]);
  assert.equal(b.mirror.newest, 1);
});

test('an end is idempotent, and one whose count differs asks again', () => {
  const { b, seen } = bus();
  b.receive({ kind: 'end', run: 'r', n: 0, running: false });
  b.receive({ kind: 'end', run: 'r', n: 0, running: false });
  assert.equal(b.running, false);
  assert.deepEqual(seen.gaps, []);
  b.receive({ kind: 'end', run: 'r', n: 4, running: false, notice: { level: 'bad', text: 'The host is restarting.' } });
  assert.deepEqual(seen.gaps, [0]);
  assert.equal(b.notice.text, 'The host is restarting.');     // nobody may be there to be asked
});

test('a delta of another run asks for a snapshot of it', () => {
  const { b, seen } = bus();
  b.receive({ kind: 'delta', run: 'other', n: 1, log: log([]), running: true });
  assert.deepEqual(seen.gaps, [0]);
});

test('a message without a notice leaves it, null clears it', () => {
  const { b } = bus();
  b.receive({ kind: 'notice', notice: { level: 'bad', text: 'Pool full: x' } });
  b.receive({ kind: 'delta', run: 'r', n: 1, log: log([step(1)]), running: true });
  assert.equal(b.notice.level, 'bad');
  b.receive({ kind: 'delta', run: 'r', n: 2, log: log([step(2)]), running: true, notice: null });
  assert.equal(b.notice, null);
});

// Calls tick every `every` ms until `until`, as often as it asks for it.
function ticks(clock, newest, until, every = 16, from = 0) {
  let t = from;
  for (; t <= until; t += every) if (clock.tick(newest, t) === null) break;
  return t;
}

test('without a pace the clock catches up within a few frames and then rests', () => {
  const c = new Clock();
  c.pace = Infinity;
  let frames = 0;
  while (c.tick(40, frames * 16) !== null) frames++;
  assert.equal(c.step, 40);
  assert.ok(frames <= 8);
});

test('a live run is followed at the chosen pace, like a video that buffers ahead', () => {
  const c = new Clock();
  assert.equal(c.pace, WATCHABLE);
  assert.equal(c.tick(40, 0), 100);          // the first step at once, the next in a tenth of a second
  assert.equal(c.step, 1);
  ticks(c, 40, 1000);
  assert.ok(c.step >= 10 && c.step <= 12, String(c.step));
  c.pace = 50;
  ticks(c, 40, 1500, 16, 1008);
  assert.ok(c.step >= 34 && c.step < 40, String(c.step));
  ticks(c, 40, 5000, 16, 1516);
  assert.deepEqual([c.step, c.mode, c.tick(40, 5016)], [40, 'following', null]);
});

test('a step that comes after a rest is shown at once', () => {
  const c = new Clock();
  c.follow(7);
  assert.equal(c.tick(7, 0), null);
  c.tick(8, 900);
  assert.equal(c.step, 8);
});

test('a recording plays from where it opens, and its end is the newest step', () => {
  const c = new Clock();
  c.play(20);
  assert.equal(c.tick(30, 0), 100);
  assert.equal(c.step, 20);
  ticks(c, 30, 520, 100, 100);
  assert.deepEqual([c.step, c.mode], [25, 'playing']);
  ticks(c, 30, 5000, 100, 600);
  assert.deepEqual([c.step, c.mode], [30, 'following']);
  c.toggle(30, false);
  assert.deepEqual([c.step, c.mode], [0, 'playing']);
});

test('pausing what lags behind a run stands still, and playing goes on', () => {
  const c = new Clock();
  c.tick(40, 0);
  c.toggle(40, true);
  assert.equal(c.mode, 'standing');
  assert.equal(c.tick(50, 1000), null);
  c.toggle(50, true);
  assert.equal(c.mode, 'playing');
});

test('a sought past stays while the run goes on, and newest follows again', () => {
  const c = new Clock();
  c.follow(30);
  c.seek(12, 30);
  assert.equal(c.tick(50, 0), null);
  assert.equal(c.step, 12);
  c.follow(50);
  assert.equal(c.mode, 'following');
});

function run(blocks, { pin = null, available = 1000, status = 'running', ref = 1 } = {}) {
  const r = { id: 'A', index: 0, length: blocks * 4, table: Array.from({ length: blocks }, (_, i) => i), status };
  return layout({ blockSize: 4, requests: [r], ref: new Int32Array(64).fill(ref) }, { pin, opened: new Map(), heights: { head: 30, row: 54, fold: 27, available } }).get('A');
}

test('everything is open where it fits, and folds cover every block where not', () => {
  assert.ok(run(5).every(x => x.kind === 'row'));
  const tight = run(40, { available: 300 });
  assert.equal(tight.reduce((n, x) => n + x.last - x.first + 1, 0), 40);
  assert.equal(tight[0].kind, 'row');
  assert.equal(tight[tight.length - 1].kind, 'row');
});

test('pinned and query blocks stay open, shared blocks fold together', () => {
  const rows = run(40, { available: 200, pin: { request: 'A', position: 41, query: 81 } });
  assert.ok(rows.some(x => x.kind === 'row' && x.first === 10));
  assert.ok(rows.some(x => x.kind === 'row' && x.first === 20));
  assert.ok(run(6, { ref: 2, available: 10 }).some(x => x.kind === 'shared'));
  assert.equal(blocksShown({ table: [1], length: 9 }, 4), 3);
});

const grid = { columns: 8, rows: 16, num_blocks: 128, block_size: 16, cell_columns: 8, cell_rows: 2 };

test('every slot is found again at the pixel where it is drawn, at every zoom', () => {
  for (const zoom of [1, 2, 3.7, 8, 12]) {
    const view = viewAt(grid, 416, 490, zoom, { x: 3.5, y: 6.5 }), g = geometry(grid, view, 416, 490);
    for (const block of [0, 7, 26, 51, 127]) for (const offset of [0, 7, 8, 15]) {
      const s = g.slot(block, offset);
      assert.deepEqual(g.at(s.x + s.w / 2, s.y + s.h / 2), { block, offset }, `zoom ${zoom} block ${block} slot ${offset}`);
    }
  }
});

test('levels follow the size of a cell', () => {
  const at = zoom => geometry(grid, viewAt(grid, 416, 490, zoom, { x: 4, y: 8 }), 416, 490);
  assert.equal(at(1).level, 'slots');
  const tokens = at(zoomTarget(grid, 416, 490).x);
  assert.equal(tokens.level, 'tokens');
  assert.ok(tokens.cw >= 40 && tokens.ch >= 20);
  const big = { columns: 120, rows: 137, num_blocks: 16384, block_size: 16, cell_columns: 8, cell_rows: 2 };
  assert.equal(geometry(big, fitView(big), 416, 490).level, 'blocks');
});

test('panning stops at the edges', () => {
  const view = viewAt(grid, 416, 490, 4, { x: 0, y: 0 }), far = panned(grid, view, 99, 99);
  assert.equal(far.x1, 8);
  assert.equal(far.y1, 16);
  assert.ok(isFit(grid, fitView(grid)) && !isFit(grid, view));
});

test('a link restores what it was made from, and refuses nonsense', () => {
  const view = { step: 41, pin: { request: 'A', position: 17 }, layer: 14, head: 1, header: { link: { example: 'fork', seed: 3 } } };
  const url = new URL(makeLink('https://x.test/?example=plain&__theme=dark#top', view));
  assert.equal(url.search, '?example=fork&__theme=dark&seed=3&step=41&tok=A%3A17&layer=14&head=1');
  assert.deepEqual(readLink(url.search), { example: 'fork', seed: 3, step: 41, layer: 14, head: 1, request: 'A', position: 17 });
  assert.equal(new URL(makeLink(url, { ...view, pin: null })).searchParams.get('tok'), null);
  assert.equal(readLink('?tok=<b>:1&step=-4&example=../x'), null);
});

test('a run of its own has no link', () => {
  assert.equal(makeLink('https://x.test/', { step: 4, pin: null, layer: 0, head: 0, header: { link: {} } }), null);
  assert.equal(makeLink('https://x.test/', { step: 4, pin: null, layer: 0, head: 0, header: {} }), null);
});

test('the next and the last event are found from any step', () => {
  const m = new Mirror(4, 8);
  m.append([added, ['BlockAllocated', 1, 'A', 0, 2, 'r'], ['SlotsWritten', 1, 'A', 0, [8, 9]], step(1), step(2), ['BlockAllocated', 3, 'A', 1, 3, 'r'], step(3), step(4)]);
  const { story } = m;
  assert.deepEqual([0, 1, 2, 3].map(at => story.stepOf(at, 1)), [1, 3, 3, null]);
  assert.deepEqual([0, 1, 2, 3, 4].map(at => story.stepOf(at, -1)), [null, 0, 1, 1, 3]);
});

test('a message about loading changes nothing else', () => {
  const { b, seen } = bus();
  b.receive({ kind: 'loading', loading: { name: 'm', seconds: 3, text: '' } });
  assert.deepEqual([b.loading.seconds, b.run, b.mirror.newest, seen.resets], [3, 'r', 0, 1]);
  b.receive({ kind: 'loading', loading: null });
  assert.equal(b.loading, null);
});

test('text that cannot be seen gets a mark, everything else stays itself', () => {
  assert.deepEqual(visible('\n'), { text: '⏎', mark: true });
  assert.deepEqual(visible(' '), { text: '␣', mark: true });
  assert.equal(visible('').mark, true);
  assert.deepEqual(visible({ hex: 'e280' }), { text: 'e2 80', mark: true });
  assert.equal(visible(' <b>').text, '<b>');
  assert.equal(visible('$x^2$').text, '$x^2$');
  assert.deepEqual(visible('\u202e'), { text: 'U+202E', mark: true });
  assert.deepEqual(visible('\u200b'), { text: 'U+200B', mark: true });
  assert.equal(visible('a\u202eb').text, 'aU+202Eb');
});

test('a copied slot was written by the copy, and by whoever writes it later', () => {
  const m = new Mirror(4, 8);
  m.append([
    added, ['BlockAllocated', 1, 'A', 0, 2, 'r'], ['SlotsWritten', 1, 'A', 0, [8, 9]], ['RequestForked', 1, 'B', 'A', [2], 'n = 2'],
    ['TokenSampled', 1, 'A', 2, 5, 't'], ['TokenSampled', 1, 'B', 2, 5, 't'], ['BlockCopied', 2, 'A', 0, 2, 5, 2, 'r'], ['SlotsWritten', 2, 'A', 2, [22]],
    ['SlotsWritten', 3, 'B', 2, [10]],
  ]);
  assert.deepEqual([8, 10, 20, 21, 22, 23].map(slot => m.writtenAt(slot, 3)), [1, 3, 2, 2, 2, null]);
  assert.equal(m.writtenAt(20, 1), null);
  assert.equal(m.live.request('B').parent, 'A');
});
