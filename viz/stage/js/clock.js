// Which step is shown. Following: the newest, caught up with in a few frames when a message holds several steps.
// Playing: a past step moves on by itself until it reaches the newest. Standing: neither. Pure.

export const STEPS_PER_SECOND = 10;
const CATCH_UP = 0.5;   // of what is behind, a frame: smooth for a few steps, never a second late

export class Clock {
  constructor() { this.reset(0); }

  reset(step) { this.step = step; this.mode = 'following'; this.rest = 0; this.last = null; }

  // Moves on by one frame at time `now` (ms); says whether another frame is needed.
  tick(newest, now) {
    const elapsed = this.last === null ? 0 : Math.min(250, now - this.last);
    this.last = now;
    if (this.mode === 'following') {
      if (this.step > newest) this.step = newest;
      if (this.step < newest) this.step += Math.max(1, Math.ceil((newest - this.step) * CATCH_UP));
    } else if (this.mode === 'playing') {
      this.rest += elapsed * STEPS_PER_SECOND / 1000;
      const whole = Math.floor(this.rest);
      this.rest -= whole;
      this.step += whole;
      if (this.step >= newest) { this.step = newest; this.mode = 'following'; }
    }
    const again = this.mode === 'playing' || (this.mode === 'following' && this.step < newest);
    if (!again) this.last = null;
    return again;
  }

  seek(step, newest) {
    this.step = Math.max(0, Math.min(newest, step));
    this.mode = this.step >= newest ? 'following' : 'standing';
  }

  // The play button: stands still where it moves, moves on where it stands; at the end of a finished run from the start.
  toggle(newest, running) {
    if (this.mode === 'playing' || (this.mode === 'following' && running)) this.mode = 'standing';
    else if (this.step < newest) { this.mode = 'playing'; this.rest = 1; }
    else if (running) this.mode = 'following';
    else { this.step = 0; this.mode = 'playing'; this.rest = 0; }
  }

  // From this step on, as a recording does.
  play(step) { this.step = step; this.mode = 'playing'; this.rest = 0; this.last = null; }

  follow(newest) { this.mode = 'following'; this.step = newest; }
}
