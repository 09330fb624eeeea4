// ?tab=worked opens that tab. Gradio makes the tabs some time after the modules are loaded.

const WAIT_MS = 20_000;

export function wantedTab(search) {
  const id = new URLSearchParams(search).get('tab') ?? '';
  return /^[a-z][a-z-]{0,31}$/.test(id) ? id : null;
}

const button = id => document.querySelector(`#pw-tabs button[role="tab"][data-tab-id="${id}"]`);

function open(id) {
  const found = button(id);
  if (found) found.click();
  return Boolean(found);
}

const id = typeof window === 'undefined' ? null : wantedTab(window.location.search);
if (id && !open(id)) {
  const observer = new MutationObserver(() => { if (open(id)) observer.disconnect(); });
  observer.observe(document.documentElement, { childList: true, subtree: true });
  setTimeout(() => observer.disconnect(), WAIT_MS);
}
