// The tip over the pool, and what a screen reader hears for the keyboard's cursor.

import { bold, h } from './dom.js';

export class Tip {
  constructor(root) { this.tip = root.querySelector('.tip'); this.voice = root.querySelector('.announce'); }

  show(pool, hit, about, blocks) {
    const { g, origin } = pool, box = blocks || hit.offset < 0 ? g.tile(hit.block) : g.slot(hit.block, hit.offset);
    this.tip.replaceChildren(h('div', '', [bold(about.what), about.title ? ` ${about.title}` : '']), h('div', 'sub', blocks && pool.coarse !== true ? 'Click to pick this block and zoom in.' : about.text));
    this.tip.hidden = false;
    const x = Math.min(origin.x + box.x + box.w + 8, pool.wrap.clientWidth - this.tip.offsetWidth - 4);
    const below = origin.y + box.y + box.h + 8, fits = below + this.tip.offsetHeight < pool.wrap.clientHeight;
    Object.assign(this.tip.style, { left: `${Math.max(4, x)}px`, top: `${fits ? below : Math.max(0, origin.y + box.y - this.tip.offsetHeight - 8)}px` });
  }

  hide() { this.tip.hidden = true; }
  announce(about) { this.voice.textContent = `${about.what} ${about.title}. ${about.text}`; }
}
