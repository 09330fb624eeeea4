// Which logical blocks show their tokens and which become a line of tiles, so that the pane fits. Pure.
// Always shown: the first block of the first sequence, the pinned and the query block, the newest of each unfinished
// sequence, and what was opened by hand. Then newest first, a row a sequence in turn, as long as it fits.

export const blocksShown = (request, blockSize) => Math.max(request.table.length, Math.ceil(request.length / blockSize));

// -> Map request id -> [{ first, last, kind: 'row' | 'fold' | 'shared' }]
export function layout(state, { pin, opened, heights }) {
  const size = state.blockSize, requests = state.requests, open = new Map(requests.map(r => [r.id, new Set()])), height = new Map();
  const shared = (r, i) => r.table[i] !== undefined && state.ref[r.table[i]] > 1;
  const runs = r => {
    const rows = open.get(r.id), n = blocksShown(r, size), list = [];
    for (let i = 0; i < n;) {
      if (rows.has(i)) { list.push({ first: i, last: i, kind: 'row' }); i++; continue; }
      let j = i;
      while (j < n && !rows.has(j) && shared(r, j) === shared(r, i)) j++;
      list.push({ first: i, last: j - 1, kind: shared(r, i) ? 'shared' : 'fold' });
      i = j;
    }
    return list;
  };
  const measure = r => runs(r).reduce((sum, run) => sum + (run.kind === 'row' ? heights.row : heights.fold), heights.head);
  const need = (id, i) => { if (open.has(id) && i >= 0) open.get(id).add(i); };

  if (pin) { need(pin.request, Math.floor(pin.position / size)); if (pin.query !== null) need(pin.request, Math.floor(pin.query / size)); }
  for (const r of requests) if (r.status !== 'finished') need(r.id, blocksShown(r, size) - 1);
  if (requests.length) need(requests[0].id, 0);
  for (const [id, rows] of opened) for (const i of rows) need(id, i);
  for (const r of requests) { const n = blocksShown(r, size), rows = open.get(r.id); for (const i of rows) if (i >= n) rows.delete(i); }

  let total = 0;
  for (const r of requests) { height.set(r.id, measure(r)); total += height.get(r.id); }
  const growing = requests.filter(r => r.status === 'running');
  const order = growing.length ? growing : requests;
  for (let grew = true; grew;) {
    grew = false;
    for (const r of order) {
      const rows = open.get(r.id);
      let i = blocksShown(r, size) - 1;
      while (i >= 0 && rows.has(i)) i--;
      if (i < 0 || shared(r, i)) continue;
      rows.add(i);
      const now = measure(r);
      if (total - height.get(r.id) + now > heights.available) { rows.delete(i); continue; }
      total += now - height.get(r.id);
      height.set(r.id, now);
      grew = true;
    }
  }
  return new Map(requests.map(r => [r.id, runs(r)]));
}
