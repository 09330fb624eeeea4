// "/" finds a token: type, Enter goes to the next match, Esc leaves.

import { visible } from './dom.js';

export class Find {
  constructor(root, { search, onFound }) {
    this.root = root;
    this.search = search;
    this.onFound = onFound;
    this.box = root.querySelector('.find');
    this.input = this.box.querySelector('input');
    this.count = this.box.querySelector('.found');
    this.index = -1;
    this.input.addEventListener('input', () => { this.index = -1; this.#show(); });
    this.input.addEventListener('keydown', event => {
      event.stopPropagation();
      if (event.key === 'Escape') this.close();
      if (event.key === 'Enter') {
        event.preventDefault();
        const hits = this.search(this.input.value);
        if (!hits.length) return;
        this.index = (this.index + (event.shiftKey ? hits.length - 1 : 1)) % hits.length;
        this.#show();
        this.onFound(hits[this.index]);
      }
    });
  }

  open() { this.box.hidden = false; this.input.focus(); this.input.select(); this.#show(); }
  close() { this.box.hidden = true; this.root.querySelector('.rows button[tabindex="0"]')?.focus(); }
  get isOpen() { return !this.box.hidden; }

  #show() {
    const n = this.input.value ? this.search(this.input.value).length : 0;
    this.count.textContent = !this.input.value ? '' : n ? `${Math.max(0, this.index) + 1} of ${n}` : 'no token';
  }
}

// Every { request, position } whose text has `text` in it, in reading order. Pure.
export function searchTokens(state, text) {
  const wanted = text.toLowerCase(), hits = [];
  if (!state || !wanted) return hits;
  for (const r of state.requests) for (let p = 0; p < r.length; p++) if (visible(state.texts.get(r.id)[p]).text.toLowerCase().includes(wanted)) hits.push({ request: r.id, position: p });
  return hits;
}
