// The chooser of the dock's views: tabs beside the chart. Arrows move and choose, Home and End go to the ends.

import { h, setAttr } from './dom.js';

export class ViewTabs {
  constructor(host, views, onChoose) {
    setAttr(host, 'role', 'tablist');
    setAttr(host, 'aria-label', 'What the chart shows');
    this.tabs = views.map(({ name, label, hint }) => h('button', '', label, { type: 'button', role: 'tab', 'data-view': name, title: hint }));
    host.replaceChildren(...this.tabs);
    host.addEventListener('click', event => { const tab = event.target.closest('[role="tab"]'); if (tab) onChoose(tab.dataset.view); });
    host.addEventListener('keydown', event => {
      const n = this.tabs.length, at = this.tabs.findIndex(tab => tab.tabIndex === 0), by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const to = event.key === 'Home' ? 0 : event.key === 'End' ? n - 1 : by ? (at + by + n) % n : null;
      if (to === null || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      onChoose(this.tabs[to].dataset.view);
      this.tabs[to].focus();
    });
  }

  select(name) {
    for (const tab of this.tabs) {
      const on = tab.dataset.view === name;
      setAttr(tab, 'aria-selected', String(on));
      tab.tabIndex = on ? 0 : -1;
    }
  }
}
