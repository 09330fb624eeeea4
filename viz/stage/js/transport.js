// The time head: first, back, play, forward, newest; the step in words; the actions that the app offers.

import { h, fmt, icon, setText, setAttr } from './dom.js';

const BUTTONS = [
  ['first', 'First step', false], ['prev', 'Back one step  [', false], ['play', 'Play or pause  space', true],
  ['next', 'Forward one step  ]', false], ['last', 'Newest step', false],
];
const ACTIONS = { export: 'Export', import: 'Import', link: 'Copy link', tour: 'Tour', ask: 'Ask', predict: 'Predict' };

export class Transport {
  constructor(root, { onButton, onAction, actions }) {
    this.host = root.querySelector('.time-head');
    this.buttons = {};
    for (const [name, label, solid] of BUTTONS) {
      const button = h('button', 'tbtn', icon(name, solid), { type: 'button', 'aria-label': label, title: label });
      button.addEventListener('click', () => onButton(name));
      this.buttons[name] = button;
      this.host.append(button);
    }
    this.number = h('b');
    this.rest = h('span', 'sub');
    this.host.append(h('span', 'at', [h('span', 'sub', 'Step '), this.number, this.rest]), h('span', 'hint', 'Blocks in use; drag to any step'));
    const right = h('span', 'right', actions.filter(a => ACTIONS[a]).map(a => {
      const button = h('button', 'btn small ghost', ACTIONS[a], { type: 'button', 'data-action': a });
      button.addEventListener('click', () => onAction(a, button));
      return button;
    }));
    const keys = h('button', 'btn small ghost', 'Keys', { type: 'button', 'aria-label': 'List of keys' });
    keys.addEventListener('click', () => onAction('keys', keys));
    right.append(keys);
    this.host.append(right);
  }

  render({ step, newest, moving, follow }) {
    setText(this.number, fmt(step));
    setText(this.rest, step >= newest ? (newest ? '  newest' : '') : ` of ${fmt(newest)}`);
    const use = this.buttons.play.querySelector('use');
    setAttr(use, 'href', moving ? '#pw-i-pause' : '#pw-i-play');
    this.buttons.first.disabled = this.buttons.prev.disabled = step <= 0;
    this.buttons.next.disabled = step >= newest;
    this.buttons.last.disabled = step >= newest && follow;
    this.buttons.play.disabled = newest === 0;
  }
}
