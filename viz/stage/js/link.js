// ?example=..&seed=..&step=..&tok=A:17&layer=..&head=..: the view as a link, and back.

export function readLink(search = window.location.search) {
  const q = new URLSearchParams(search), whole = name => (/^\d{1,9}$/.test(q.get(name) ?? '') ? Number(q.get(name)) : null);
  const token = /^([A-Z]{1,3}):(\d{1,9})$/.exec(q.get('tok') ?? '');
  const example = /^[a-z0-9-]{1,40}$/.test(q.get('example') ?? '') ? q.get('example') : null;
  if (!token && !example && ['step', 'layer', 'head'].every(name => whole(name) === null)) return null;
  return { example, seed: whole('seed'), step: whole('step'), layer: whole('layer'), head: whole('head'), request: token ? token[1] : null, position: token ? Number(token[2]) : null };
}

export function makeLink(base, { step, pin, layer, head, header }) {
  const url = new URL(base);
  for (const [name, value] of Object.entries(header?.link ?? {})) url.searchParams.set(name, value);
  url.searchParams.set('step', step);
  if (pin) url.searchParams.set('tok', `${pin.request}:${pin.position}`); else url.searchParams.delete('tok');
  url.searchParams.set('layer', layer);
  url.searchParams.set('head', head);
  return url.toString();
}

export async function copyLink(button, view) {
  const text = makeLink(window.location.href, view), label = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = 'Copied'; } catch { window.history.replaceState(null, '', text); button.textContent = 'In the address bar'; }
  setTimeout(() => { button.textContent = label; }, 1600);
}
