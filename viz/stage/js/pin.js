// The pinned lookup: which key, which query, and the numbers that Python sent for it. The newest question wins.

const PATIENCE_MS = 500;

export class Pin {
  constructor({ ask, onAnswer }) {
    this.ask = ask;
    this.onAnswer = onAnswer;
    this.since = -Infinity;    // when the question was asked whose answer is on its way
    this.clear();
  }

  // What is asked already must not answer for what is pinned next; the same token, pinned again, is asked for again.
  clear() { this.target = null; this.note = null; this.answer = null; this.key = this.full = ''; this.asked = (this.asked ?? 0) + 1; clearTimeout(this.timer); this.since = -Infinity; }

  // Whether numbers are about to come: heavy drawing lets them pass, but not for long.
  get waits() { return performance.now() - this.since < PATIENCE_MS; }

  set(request, position, query) { this.clear(); this.target = { request, position, query }; }

  // A place that no token stands on: { title, text, block, offset }.
  say(note) { this.clear(); this.note = note; }

  // What is pinned, as seen at this state: the query is the one pinned, or the newest computed where that is earlier.
  // -> { request, position, query, block, offset, held } or { reason } or null.
  view(state) {
    const { target } = this;
    if (!target) return null;
    const r = state.request(target.request), name = `${target.request}:${target.position}`;
    if (!r || target.position >= r.length) return { ...target, block: null, reason: `${name} is not there yet at step ${state.step}.` };
    if (target.position >= r.computed) {
      const reason = r.preemptedAt !== null && r.status === 'waiting' ? `${name} has no slot: ${r.id} was preempted at step ${r.preemptedAt} and gave its blocks back. It is computed again when ${r.id} runs.`
        : `${name} ${target.position >= r.numPrompt ? 'was sampled in this step and' : 'waits and'} has no slot yet. It gets one when it is read in the next step.`;
      return { ...target, block: null, reason };
    }
    const held = r.table.length > 0, table = held ? r.table : r.was, block = table[Math.floor(target.position / state.blockSize)];
    return { ...target, query: Math.min(target.query ?? Infinity, r.computed - 1), block: block ?? null, offset: target.position % state.blockSize, held };
  }

  // Ask Python about the view, once for each question; `delay` waits for a scrub to settle.
  lookup(view, context, delay) {
    const key = JSON.stringify([view.request, view.position, view.query, context.layer, context.head, context.session, context.run, context.step]), full = `${key} ${context.place}`;
    if (full === this.full) return;
    if (key !== this.key) this.answer = null;      // another question: the old numbers would lie
    this.key = key;
    this.full = full;
    const mine = ++this.asked;
    clearTimeout(this.timer);
    const go = async () => {
      let answer;
      this.since = performance.now();
      try {
        answer = await this.ask({ session: context.session, recording: context.recording, request: view.request, step: context.step, query_position: view.query, key_position: view.position, layer: context.layer, head: context.head });
      } catch (error) {
        answer = { ok: false, reason: 'The server did not answer. Press Generate for a new run, or pick the token again.' };
      }
      if (mine !== this.asked) return;
      this.since = -Infinity;
      this.answer = answer ? { ...answer, stamp: mine } : null;
      this.onAnswer();
    };
    if (delay) this.timer = setTimeout(go, delay); else go();
  }
}
