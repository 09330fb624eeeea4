// Counts under the pool, each with its pattern.

import { h, fmt, setText } from './dom.js';
import { swatch } from './painter.js';

const ITEMS = [
  ['used', { ref: 1, owner: 0, filled: 8 }, 'blocks that a sequence maps to'], ['shared', { ref: 2, owner: 1, filled: 8 }, 'of these, read by two or more sequences'],
  ['reserved', { ref: 1, owner: 0, filled: 0 }, 'slots of blocks in use, not written yet'], ['cached', { hashed: 1, owner: 1 }, 'given back; bytes stay until reused'],
  ['free', {}, 'no sequence maps to it'],
];

export class Legend {
  constructor(root) { this.host = root.querySelector('.legend'); }

  render(counts, skin) {
    if (this.skin !== skin) {
      this.skin = skin;
      this.numbers = ITEMS.map(() => h('b'));
      this.host.replaceChildren(...ITEMS.map(([name, block, title], i) => h('span', '', [swatch(block, skin), this.numbers[i], ` ${name}`], { title })));
    }
    ITEMS.forEach(([name], i) => setText(this.numbers[i], fmt(counts[name])));
  }
}
