// Which step is shown. Following: towards the newest, at the chosen pace, like a video that buffers ahead; with no pace
// caught up in a few frames. Playing: a past step moves on until it reaches the newest. Standing: neither. Pure.

export const PACES = [5, 10, 20, 50, Infinity];   // steps a second; the last: as fast as it comes
export const WATCHABLE = 10;
const CATCH_UP = 0.5;   // of what is behind, a frame: smooth for a few steps, never a second late

export class Clock {
  constructor() { this.pace = WATCHABLE; this.reset(0); }

  reset(step) { this.step = step; this.mode = 'following'; this.rest = 0; this.last = null; }

  // Moves on at time `now` (ms). Returns in how many milliseconds it wants to be called again, or null where it rests.
  tick(newest, now) {
    if (this.mode === 'standing') { this.last = null; return null; }
    if (this.step < newest) this.#advance(newest, now);
    if (this.step >= newest) { this.step = newest; this.mode = 'following'; this.last = null; return null; }
    return this.pace === Infinity ? 0 : Math.max(0, (1 - this.rest) * 1000 / this.pace);
  }

  #advance(newest, now) {
    if (this.pace === Infinity) {
      this.step += this.mode === 'following' ? Math.max(1, Math.ceil((newest - this.step) * CATCH_UP)) : 1;
      return;
    }
    if (this.last === null) this.rest = this.mode === 'following' ? 1 : this.rest;   // what comes after a rest is shown at once
    else this.rest += Math.min(250, now - this.last) * this.pace / 1000;
    this.last = now;
    const whole = Math.floor(this.rest + 1e-9);
    this.rest -= whole;
    this.step += whole;
  }

  seek(step, newest) {
    this.step = Math.max(0, Math.min(newest, step));
    this.mode = this.step >= newest ? 'following' : 'standing';
  }

  // The play button: stands still where it moves, moves on where it stands; at the end of a finished run from the start.
  toggle(newest, running) {
    if (this.mode === 'playing' || (this.mode === 'following' && (running || this.step < newest))) this.mode = 'standing';
    else if (this.step < newest) { this.play(this.step); this.rest = 1; }
    else if (running) this.mode = 'following';
    else this.play(0);
  }

  // From this step on, as a recording does.
  play(step) { this.step = step; this.mode = 'playing'; this.rest = 0; this.last = null; }

  follow(newest) { this.mode = 'following'; this.step = newest; }
}
