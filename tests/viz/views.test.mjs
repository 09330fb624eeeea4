// The pure parts of the dock's views, in node: what is asked and when, what a legend says, how a figure is fitted in.
import { test } from 'node:test';
import assert from 'node:assert/strict';
import { VIEWS, questionFor } from '../../viz/stage/js/views.js';
import { bytesText, valueAt } from '../../viz/stage/js/viewkey.js';
import { dressed } from '../../viz/stage/js/viewstyle.js';

const view = name => VIEWS.find(v => v.name === name);
const scene = changes => ({
  session: 's', run: 'r', recording: null, step: 40, newest: 72, log: 300, running: false, following: false, layer: 3, head: 1, dark: false,
  pin: { request: 'A', position: 17, query: 39, chosen: true }, ...changes,
});

test('a view over the whole run is not asked for again when the shown step changes', () => {
  const one = questionFor(view('waste'), scene(), 700), two = questionFor(view('waste'), scene({ step: 12 }), 700);
  assert.equal(one.changes, two.changes);
  assert.equal(one.ask.step, 72);
  assert.notEqual(one.changes, questionFor(view('waste'), scene({ log: 301 }), 700).changes);
});

test('a view of one step is another subject at another step, unless it follows a live run', () => {
  const at = changes => questionFor(view('kernel'), scene(changes), 700);
  assert.notEqual(at({ step: 12 }).subject, at({ step: 13 }).subject);
  const live = { running: true, following: true };
  assert.equal(at({ ...live, step: 12 }).subject, at({ ...live, step: 13 }).subject);
  assert.notEqual(at({ ...live, step: 12 }).changes, at({ ...live, step: 13 }).changes);
});

test('a pinned lookup is asked for with its numbers; another key, layer or head is another subject', () => {
  const one = questionFor(view('attention'), scene(), 700);
  assert.deepEqual(one.ask, { view: 'attention', session: 's', run: 'r', recording: null, mode: 'light', step: 40, request: 'A', position: 17, query: 39, layer: 3, head: 1, width: 700 });
  for (const other of [{ layer: 4 }, { head: 2 }, { pin: { request: 'B', position: 17, query: 39, chosen: true } }, { run: 'q' }, { dark: true }]) assert.notEqual(questionFor(view('attention'), scene(other), 700).subject, one.subject);
});

test('without a run or a token there is a sentence instead of a question', () => {
  assert.match(questionFor(view('waste'), scene({ run: null }), 700).problem, /Press Generate/);
  assert.match(questionFor(view('vectors'), scene({ pin: null }), 700).problem, /No token has a key yet/);
});

test('the value at a step is that of the pass that ended there', () => {
  const trace = { x: [0, 0, 1, 4, 9], y: [0, 2, 3, 5, 5] };         // steps 0, 1, 2 and 5; the run stands at 9
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6, 9].map(step => valueAt(trace, step)), [0, 2, 3, 3, 3, 5, 5, 5]);
});

test('bytes are written as Python writes them', () => {
  assert.deepEqual([0, 999, 1024, 10240, 737280, 94371840, -80].map(bytesText), ['0 B', '999 B', '1.00 KiB', '10.0 KiB', '720 KiB', '90.0 MiB', '80 B']);
});

test('a figure over steps gets the scrubber\'s axis and loses title and legend', () => {
  const figure = { data: [], layout: { title: { text: 'T' }, meta: { axis: 'step' }, margin: { l: 64 }, font: {}, xaxis: { title: { text: 'step' } }, yaxis: { ticktext: ['270 MiB'] } } };
  const { layout } = dressed(figure, { width: 700, height: 120, span: 74, skin: { font: 'f', mono: 'm' } });
  assert.deepEqual(layout.xaxis.range, [0, 74]);
  assert.equal(layout.title, undefined);
  assert.equal(layout.showlegend, false);
  assert.equal(layout.margin.l, 58);                                 // room for the longest label
  assert.equal(figure.layout.title.text, 'T');                       // what is exported keeps both
});
