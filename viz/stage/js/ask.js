// "Ask the picture": the questions that learners ask, searchable; each opens the state that answers it.

import { h, icon, setText } from './dom.js';
import { GROUPS, QUESTIONS } from './questions.js';
import { HOW_TO_GET } from './moments.js';

// The questions of which every word of `text` is in the question, its answer or its further words. Pure.
export function search(text, questions = QUESTIONS) {
  const words = text.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean);
  return questions.filter(q => { const all = [q.question, q.words ?? '', q.group, ...q.answer].join(' ').toLowerCase(); return words.every(word => all.includes(word)); });
}

export class Ask {
  constructor(learn) {
    this.learn = learn;
    this.input = h('input', '', [], { type: 'search', placeholder: 'Search', 'aria-label': 'Search the questions', autocomplete: 'off', spellcheck: 'false' });
    this.items = new Map(QUESTIONS.map(q => [q.id, this.#item(q)]));
    this.groups = GROUPS.map((name, i) => {
      const list = h('ul', '', QUESTIONS.filter(q => q.group === name).map(q => h('li', '', this.items.get(q.id))));
      return h('section', '', [h('h3', '', name, { id: `pw-ask-${i}` }), list], { 'aria-labelledby': `pw-ask-${i}` });
    });
    this.count = h('p', 'count', '', { 'aria-live': 'polite' });
    const close = h('button', 'tbtn', icon('close'), { type: 'button', 'aria-label': 'Close' });
    close.addEventListener('click', () => learn.close());
    this.panel = h('section', 'ask', [
      h('div', 'pane-head', [h('h2', '', 'Ask the picture'), h('div', 'right', close)]), h('div', 'ask-search', [this.input, this.count]), h('div', 'ask-list', this.groups),
    ], { role: 'dialog', 'aria-label': 'Ask the picture', hidden: '' });
    this.input.addEventListener('input', () => this.filter());
    this.panel.addEventListener('keydown', event => this.#key(event));
    learn.stage.root.append(this.panel);
  }

  #item(question) {
    const button = h('button', 'question', question.question, { type: 'button', 'data-question': question.id });
    button.addEventListener('click', () => this.learn.answer(question));
    return button;
  }

  get isOpen() { return !this.panel.hidden; }

  open(focused = null) {
    this.panel.hidden = false;
    if (!focused) this.input.value = '';
    this.filter();
    this.frame();
    (focused ? this.items.get(focused) : this.input).focus({ preventScroll: true });
  }

  hide() { this.panel.hidden = true; }

  filter() {
    const hits = new Set(search(this.input.value).map(q => q.id));
    for (const [id, button] of this.items) button.parentElement.hidden = !hits.has(id);
    for (const group of this.groups) group.hidden = !group.querySelector('li:not([hidden])');
    setText(this.count, hits.size === QUESTIONS.length ? `${hits.size} questions` : hits.size ? `${hits.size} of ${QUESTIONS.length}` : 'No question has these words. Try fewer.');
  }

  // Over the lookup pane, whose numbers an answer does not need while it is chosen.
  frame() {
    if (!this.isOpen) return;
    const { root } = this.learn.stage, frame = root.getBoundingClientRect(), pane = root.querySelector('.pane.lookup').getBoundingClientRect();
    Object.assign(this.panel.style, { left: `${pane.left - frame.left - 1}px`, top: `${pane.top - frame.top - 1}px`, width: `${pane.width}px`, height: `${pane.height}px` });
  }

  #key(event) {
    if (event.key === 'Escape') { event.preventDefault(); event.stopPropagation(); return this.learn.close(); }
    const shown = [...this.items.values()].filter(b => !b.parentElement.hidden), at = shown.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: at < 0 ? null : 0, End: at < 0 ? null : shown.length - 1 }[event.key];
    if (event.key === 'Enter' && event.target === this.input && shown.length) { event.preventDefault(); return shown[0].click(); }
    if (to === undefined || to === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    (to < 0 ? this.input : shown[Math.min(to, shown.length - 1)])?.focus();
  }
}

// How the guide shows an answer.
export const answerCard = (learn, question, shown) => ({
  title: question.question, target: question.target, words: () => learn.words(question.answer, shown),
  note: () => (shown.found ? '' : `The run on screen does not show it. ${HOW_TO_GET[question.moment]}`),
  acts: [{ label: 'All questions', run: () => learn.questions(question.id) }], onClose: () => learn.close(),
});
