// A state of mirror.js in the shape of fold.py; run in node and in the page.
export const plain = s => ({
  step: s.step, fresh: s.fresh, counts: s.counts,
  blocks: Array.from(s.ref, (ref, b) => ({ ref, owner: s.owner[b] < 0 ? null : s.requests[s.owner[b]].id, filled: s.filled[b], hashed: Boolean(s.hashed[b]) })),
  requests: Object.fromEntries(s.requests.map(r => [r.id, {
    tokens: s.texts.get(r.id).slice(0, r.length), prompt: r.numPrompt, status: r.status, table: r.table, computed: r.computed, preempted: r.preemptedAt, finish: r.finishReason,
  }])),
});
