// Small DOM helpers, and how a token's text is shown. Text goes in by textContent only: it is data.

const SVG = 'http://www.w3.org/2000/svg';

export function h(tag, className, children, attributes) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const child of [children ?? []].flat()) element.append(child instanceof Node ? child : String(child));
  for (const [name, value] of Object.entries(attributes ?? {})) if (value !== undefined && value !== null) element.setAttribute(name, value);
  return element;
}

export function svg(tag, attributes, children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  for (const child of [children ?? []].flat()) element.append(child);
  return element;
}

export const icon = (name, solid) =>
  svg('svg', { class: solid ? 'icon solid' : 'icon', viewBox: '0 0 16 16', 'aria-hidden': 'true' }, svg('use', { href: `#pw-i-${name}` }));
export const num = text => h('span', 'num', text);
export const bold = text => h('b', '', text);
const whole = new Intl.NumberFormat('en-US');          // toLocaleString makes a new one at every call
export const fmt = n => whole.format(n);
export const css = (element, name) => getComputedStyle(element).getPropertyValue(name).trim();
export const isPhone = root => root.clientWidth <= 720;

// Write only what changed: a live view sets the same text sixty times a second.
export function setText(element, text) { if (element.textContent !== text) element.textContent = text; }
export function setClass(element, className) { if (element.className !== className) element.className = className; }
export function setAttr(element, name, value) {
  if (value === null || value === undefined) { if (element.hasAttribute(name)) element.removeAttribute(name); }
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Scrolls an element to the middle of its scroller, if it is not well in sight; the page itself stays.
export function centre(scroller, element) {
  const box = element.getBoundingClientRect(), frame = scroller.getBoundingClientRect();
  if (box.top < frame.top + 8 || box.bottom > frame.bottom - 32) scroller.scrollTop += box.top - frame.top - (frame.height - box.height) / 2;
}

// The sequence's colour and the colour of letters on it.
export function colour(element, index) {
  const c = index % 7 + 1;
  if (element.dataset.colour !== String(c)) element.dataset.colour = c;
  return element;
}

// A token's text made visible: { text, mark }. Bytes that are no text alone show as hexadecimal.
export function visible(text) {
  if (text && typeof text === 'object') return { text: (text.hex.match(/../g) ?? []).join(' '), mark: true };
  if (text === '') return { text: '∅', mark: true };
  if (/^[\p{Cf}\p{Cc}\p{M}]+$/u.test(text) && text.trim() !== '') return { text: codes(text), mark: true };   // zero width, direction marks
  if (text.trim() === '') return { text: text.replace(/\r\n|\r|\n/g, '⏎').replace(/\t/g, '⇥').replace(/\s/g, '␣'), mark: true };
  return { text: text.replace(/^ /, '').replace(/[\u202a-\u202e\u2066-\u2069]/g, codes).replace(/\r\n|\r|\n/g, '⏎').replace(/\t/g, '⇥'), mark: false };
}
const codes = text => Array.from(text, c => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`).join(' ');
export const spoken = text => (text && typeof text === 'object' ? `bytes ${visible(text).text}` : JSON.stringify(text));
