// The time head: first, back, play, forward, newest, to the next event; the step in words; the pace; what the app offers.

import { h, fmt, icon, setText, setAttr } from './dom.js';
import { PACES, WATCHABLE } from './clock.js';

const BUTTONS = [
  ['first', 'First step', false], ['before', 'Event before  {', false], ['prev', 'Back one step  [', false], ['play', 'Play or pause  space', true],
  ['next', 'Forward one step  ]', false], ['after', 'Next event  }', false], ['last', 'Newest step', false],
];
const ACTIONS = { tour: 'Tour', ask: 'Ask', predict: 'Predict' };

export class Transport {
  constructor(root, { onButton, onAction, onPace, actions }) {
    this.host = root.querySelector('.time-head');
    this.buttons = {};
    for (const [name, label, solid] of BUTTONS) {
      const button = h('button', `tbtn ${name}`, icon(name, solid), { type: 'button', 'aria-label': label, title: label });
      button.addEventListener('click', () => onButton(name));
      this.buttons[name] = button;
      this.host.append(button);
    }
    this.number = h('b');
    this.rest = h('span', 'sub');
    this.host.append(h('span', 'at', [h('span', 'sub', 'Step '), this.number, this.rest]), h('span', 'hint', 'Blocks in use; drag to any step'));
    const right = h('span', 'right', [pace(onPace), ...actions.filter(a => ACTIONS[a]).map(a => {
      const button = h('button', 'btn small ghost', ACTIONS[a], { type: 'button', 'data-action': a });
      button.addEventListener('click', () => onAction(a, button));
      return button;
    })]);
    const keys = h('button', 'btn small ghost keys', '?', { type: 'button', 'aria-label': 'List of keys', title: 'Keys  ?' });
    keys.addEventListener('click', () => onAction('keys', keys));
    right.append(keys, h('span', 'savebox'));
    this.host.append(right);
  }

  render({ step, newest, moving, follow }) {
    setText(this.number, fmt(step));
    setText(this.rest, step >= newest ? (newest ? '  newest' : '') : ` of ${fmt(newest)}`);
    const use = this.buttons.play.querySelector('use'), { first, before, prev, next, after, last, play } = this.buttons;
    setAttr(use, 'href', moving ? '#pw-i-pause' : '#pw-i-play');
    first.disabled = before.disabled = prev.disabled = step <= 0;
    next.disabled = after.disabled = step >= newest;
    last.disabled = step >= newest && follow;
    play.disabled = newest === 0;
  }
}

function pace(onPace) {
  const select = h('select', '', PACES.map(p => h('option', '', p === Infinity ? 'as it comes' : `${p} steps/s`, { value: p })), { 'aria-label': 'Pace of the picture' });
  select.value = String(WATCHABLE);
  select.addEventListener('change', () => onPace(Number(select.value)));
  return h('label', 'pick pace', [select, icon('down')], { title: 'How fast the picture moves. The engine always runs as fast as it can.' });
}
