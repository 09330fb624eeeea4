// The lookup panel. Picture first: what the mirror knows is shown at once; late numbers show dots until Python answers.

import { h, bold, fmt, icon, visible, isPhone } from './dom.js';
import { slotStrip, bars, heat } from './strips.js';

const LATE = '····';

export class LookupPane {
  constructor(root, { onChoose, onAct }) {
    this.root = root;
    this.pane = root.querySelector('.pane.lookup');
    this.body = root.querySelector('.lookup .body');
    this.choosers = root.querySelector('.lookup .choosers');
    this.layer = this.#chooser('Layer', onChoose);
    this.head = this.#chooser('Head', onChoose);
    this.signature = '';
    this.body.addEventListener('click', event => { const act = event.target.closest('[data-act]'); if (act) onAct(act.dataset.act); });
  }

  #chooser(name, onChoose) {
    const select = h('select', '', [], { 'aria-label': name });
    this.choosers.append(h('label', 'pick', [`${name} `, select, icon('down')]));
    select.addEventListener('change', onChoose);
    return select;
  }

  // Layers and heads of the model, or those that a recording ships; what was chosen stays chosen where it can. The first
  // choice is a middle layer.
  setModel(header) {
    const all = n => Array.from({ length: n }, (_, i) => i), { layers, heads } = header.recording ?? {};
    for (const [select, there] of [[this.layer, layers ?? all(header.num_layers ?? 1)], [this.head, heads ?? all(header.num_heads ?? 1)]]) {
      const names = there.join(' ');
      if (select.dataset.there === names) continue;
      const kept = select.length > 1 && there.includes(Number(select.value));
      const value = kept ? Number(select.value) : there[select === this.layer ? Math.floor(there.length / 2) : 0];
      select.replaceChildren(...there.map(i => h('option', '', i, { value: i })));
      select.value = String(value);
      select.dataset.there = names;
    }
    this.header = header;
  }

  // A chooser shows only where there is something to look up.
  show(signature, build) {
    if (signature === this.signature) return false;
    this.signature = signature;
    const top = this.body.scrollTop;
    this.body.replaceChildren(...build());
    this.body.scrollTop = top;
    return true;
  }

  invalidate() { this.signature = ''; }

  empty(what) { this.choosers.hidden = true; return this.show(`empty ${JSON.stringify(what)}`, () => [emptyBox(what)]); }

  message(what) { this.choosers.hidden = true; return this.show(`message ${JSON.stringify(what)}`, () => [h('div', 'emptyl', [h('h3', '', what.title), h('p', '', what.text)])]); }

  // `pin`: { request, position, query }; `answer`: what Python said, or null; `state` fills the first five steps.
  lookup(state, pin, answer) {
    this.choosers.hidden = false;
    const r = state.request(pin.request), size = state.blockSize, logical = Math.floor(pin.position / size), offset = pin.position % size;
    const block = answer?.ok ? answer.physical_block : r.table[logical], filled = r.table[logical] === block ? state.filled[block] : size;
    const width = Math.max(160, Math.floor(this.body.clientWidth - (isPhone(this.root) ? 24 : 32) - 26));
    const signature = [pin.request, pin.position, pin.query, block, filled, width, this.body.clientHeight, answer ? answer.stamp : 'late'].join(' ');
    return this.show(signature, () => this.#build({ r, pin, size, logical, offset, block, filled, width, state, answer }));
  }

  #build({ r, pin, size, logical, offset, block, filled, width, state, answer }) {
    const { header } = this, ok = answer?.ok ? answer : null, failed = answer && !answer.ok;
    const text = visible(ok && ok.token_text !== undefined ? ok.token_text : state.texts.get(r.id)[pin.position]).text, slot = block * size + offset;
    const bytes = ok ? ok.byte_offset : slot * header.slot_bytes, d = ok ? ok.head_dim : header.head_dim, dtype = ok ? ok.dtype : header.dtype;
    const lines = ok ? Math.ceil((28 + 7 * ok.slot_sentence.length + 180) / width) : 2;      // of the last sentence, at about 7 px a letter
    const room = isPhone(this.root) ? 84 : Math.max(44, Math.min(120, this.body.clientHeight - (window.innerHeight < 840 ? 366 : 442) - 16 * lines));
    const late = failed ? '–' : LATE, query = ok ? ok.query_position : pin.query;
    const steps = h('ol', 'steps', [
      row(1, 'Token', `${r.id}:${pin.position}`, `“${text}”`, 'token', `${r.id}:${pin.position}`),
      row(2, 'Logical block', `${pin.position} // ${size}`, logical, 'logical_block', logical),
      row(0, 'Offset', `${pin.position} % ${size}`, offset, 'block_offset', offset),
      row(3, 'Block table', `table[${logical}]`, block, 'physical_block', block),
      row(4, 'Slot', `${block} × ${size} + ${offset}`, slot, 'slot', slot), figure(slotStrip(r.index, size, filled, offset)),
      row(5, 'Byte offset', `${slot} × ${header.slot_bytes}`, fmt(bytes), 'byte_offset', bytes),
      row(0, 'Address', '', ok ? ok.address ?? 'not recorded' : late, 'address', ok ? ok.address ?? '' : '', !ok),
      row(6, 'Key', `${d} × ${dtype}`, ok ? `‖k‖ ${ok.key_norm.toFixed(2)}` : late, 'key', ok ? ok.key_norm : '', !ok), figure(ok ? heat([['k', ok.key], ['q', ok.query]], width) : well(24)),
      row(7, 'Score', ok ? `${ok.raw_dot.toFixed(2)} ${scaleText(ok)}` : `q·k / √${d}`, ok ? ok.score.toFixed(4) : late, 'score', ok ? ok.score : '', !ok),
      row(8, 'Weight', `softmax over ${query === null ? 0 : query + 1}`, ok ? weightText(ok.weight) : late, 'weight', ok ? ok.weight : '', !ok),
      figure(ok ? bars(ok.weights, width, room, { position: ok.key_position, index: r.index, blockSize: size }) : well(room)),
    ]);
    return [sentence(r, query, pin, text), steps, proof(ok, failed ? answer.reason : null, width)];
  }
}

const scaleText = ok => (Math.abs(ok.scale * Math.sqrt(ok.head_dim) - 1) < 1e-6 ? `/ √${ok.head_dim}` : `× ${ok.scale.toPrecision(4)}`);
const weightText = w => (w !== 0 && w < 1e-4 ? w.toExponential(1) : w.toFixed(4));

function sentence(r, query, pin, text) {
  return h('p', 'say', ['Query ', bold(`${r.id}:${query}`), ' reads the key of ', bold(`${r.id}:${pin.position} “${text}”`), '.']);
}

function row(number, label, how, value, field, data, pending) {
  return h('li', `step${number ? '' : ' more'}${pending ? ' pending' : ''}`, [number ? h('span', 'disc', number, { 'data-disc': number }) : h('span'), h('span', 'lab', label), h('span', 'how', how, { title: how }), h('span', 'val', value)], { 'data-field': field, 'data-value': data });
}

const figure = element => h('li', 'step picture', [h('span'), h('div', 'fig', element)]);
const well = height => { const w = h('div', 'well'); w.style.height = `${height}px`; return w; };

function proof(ok, reason, width) {
  const same = ok && ok.max_abs_difference < 1e-2;
  const words = ok ? (same ? 'Same as dense attention' : 'Differs from dense attention') : reason ? 'No numbers' : 'Checking against dense attention';
  const text = ok ? `Largest difference over ${ok.output_paged.length} outputs. ${ok.slot_sentence}` : reason ?? 'The picture answers at once; the numbers follow.';
  return h('div', `proof${ok ? '' : ' pending'}`, [
    h('span', 'tick', same ? icon('check') : '', { 'data-disc': 9 }), h('b', '', words), h('span', 'val', ok ? ok.max_abs_difference.toExponential(1).replace(/e([-+])(\d)$/, 'e$10$2') : reason ? '–' : LATE),
    ok ? h('div', 'fig', heat([['paged', ok.output_paged], ['dense', ok.output_dense]], width, 40)) : '', h('p', '', text),
  ], { 'data-field': 'max_abs_difference', 'data-value': ok ? ok.max_abs_difference : '' });
}

function emptyBox({ title, text, steps, actions = [] }) {
  return h('div', 'emptyl', [
    h('h3', '', title), h('p', '', text),
    steps ? h('ol', '', steps.map(([n, name, rest]) => h('li', '', [h('span', 'disc', n), h('span', '', [bold(name), ` ${rest}`])]))) : '',
    actions.length ? h('div', 'begin', actions.map((a, i) => h('button', `btn${i ? '' : ' primary'}`, a.label, { type: 'button', 'data-act': a.id }))) : '',
  ]);
}

