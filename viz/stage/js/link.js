// ?example=..&seed=..&step=..&tok=A:17&layer=..&head=..: the view as a link, and back. A link restores an example's recording;
// what a visitor typed travels as a file.

export function readLink(search = window.location.search) {
  const q = new URLSearchParams(search), whole = name => (/^\d{1,9}$/.test(q.get(name) ?? '') ? Number(q.get(name)) : null);
  const token = /^([A-Z]{1,3}):(\d{1,9})$/.exec(q.get('tok') ?? ''), example = /^[a-z0-9-]{1,40}$/.test(q.get('example') ?? '') ? q.get('example') : null;
  if (!token && !example && ['step', 'layer', 'head'].every(name => whole(name) === null)) return null;
  return { example, seed: whole('seed'), step: whole('step'), layer: whole('layer'), head: whole('head'), request: token ? token[1] : null, position: token ? Number(token[2]) : null };
}

// null where there is no example to name: the run has prompts or settings of its own.
export function makeLink(base, { step, pin, layer, head, header }) {
  const { example, seed } = header?.link ?? {};
  if (!example) return null;
  const url = new URL(base), set = { example, seed, step, tok: pin && `${pin.request}:${pin.position}`, layer, head };
  url.hash = '';
  for (const [name, value] of Object.entries(set)) if (value === null || value === undefined) url.searchParams.delete(name); else url.searchParams.set(name, value);
  return url.toString();
}

// Says on the button what came of it.
export async function copyLink(button, view) {
  const text = makeLink(window.location.href, view);
  if (text === null) return say(button, 'Own run: use Export');
  try { await navigator.clipboard.writeText(text); say(button, 'Copied'); } catch { window.history.replaceState(null, '', text); say(button, 'In the address bar'); }
}

function say(button, text) {
  button.dataset.label ??= button.textContent;
  button.textContent = text;
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => { button.textContent = button.dataset.label; }, 2400);
}

// A reloaded tab comes back to its session (the server reads this on load); another tab or window never sees it.
export function rememberSession(token) {
  try { sessionStorage.setItem('pagewalk-session', token); } catch { /* storage is switched off: a reload begins a new session */ }
}
