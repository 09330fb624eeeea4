// What the actions of the time head do, and the notice's comparison: each a function of the Stage.

import { copyLink } from './link.js';
import { pickFile, sendFile } from './files.js';
import { compareBox } from './compare.js';
import { helpBox } from './keys.js';

export function act(stage, name, button) {
  const { bus, trigger, upload, props } = stage;
  if (name === 'keys') showHelp(stage);
  else if (name === 'link') copyLink(button, { step: stage.clock.step, pin: stage.pin.target, layer: stage.layer, head: stage.headIndex, header: bus.header });
  else if (name === 'export') trigger('export_run', { run: bus.run });
  else if (name === 'import') pickFile(file => sendFile(file, { upload, trigger, say: (level, text) => stage.say(level, text), maxBytes: props.max_import_bytes }));
}

export function showHelp(stage) { stage.box.show(stage.box.isOpen ? null : helpBox(() => stage.box.show(null))); }

export function showComparison(stage) {
  const { recording, device, backend, dtype } = stage.bus.header, made = `on ${device === 'cpu' ? 'CPU' : device}, ${backend}, ${dtype}`;
  stage.box.show(compareBox(recording, made, { onOpen: example => { stage.box.show(null); stage.open({ example }); }, onClose: () => stage.box.show(null) }));
}

// Opens a list of the page above the Stage.
export function openList(id) { const input = document.querySelector(`#${id} input`); input?.focus(); input?.click(); }
export const pressGenerate = () => document.querySelector('button#generate, #generate button')?.click();

// The one box over the Stage. Esc closes it (Stage.clear) and the focus goes back to where it was.
export class Box {
  constructor(root) { this.root = root; this.element = null; }

  get isOpen() { return this.element !== null; }

  show(element) {
    this.element?.remove();
    if (element) {
      if (!this.element) this.before = document.activeElement;
      this.root.append(element);
      element.querySelector('button:not(:disabled)').focus();
    } else this.before?.focus?.();
    this.element = element;
  }
}
