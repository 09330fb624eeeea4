// The guided tour: eight stops on a real recording. Each stop moves the view itself and can be left at any time.

import { STOPS } from './stops.js';
import { HOW_TO_GET } from './moments.js';

export class Tour {
  constructor(learn) { this.learn = learn; this.at = -1; }

  start() { return this.go(0); }

  async go(i) {
    const { learn } = this, stop = STOPS[i], last = i === STOPS.length - 1;
    this.at = i;
    const shown = await learn.openMoment({ ...stop, fromExample: true });
    if (!shown || this.at !== i) return;                       // left, or gone on, meanwhile
    const next = last ? { label: 'Try it yourself', run: () => { learn.close(); learn.act('predict'); } } : { label: 'Next', key: 'ArrowRight', run: () => this.#by(1) };
    learn.guide.show({
      title: stop.title, target: stop.target, progress: `${i + 1} of ${STOPS.length}`, words: () => learn.words(stop.text, shown),
      note: () => (shown.found ? '' : `The run on screen has nothing of the kind. ${HOW_TO_GET[stop.moment]}`),
      acts: [{ label: 'Back', key: 'ArrowLeft', off: i === 0, run: () => this.#by(-1) }, { ...next, primary: true }],
      onClose: () => learn.close(),
    });
  }

  // From where the tour is by now: the next press may come before the stop of the last one is on screen.
  #by(n) { return this.go(Math.max(0, Math.min(STOPS.length - 1, this.at + n))); }

  stop() { this.at = -1; }
}
