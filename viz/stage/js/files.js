// A recording down and up. What is too large is told before it travels.

const MIB = 1 << 20;

export function pickFile(onFile) {
  const input = Object.assign(document.createElement('input'), { type: 'file', accept: '.pagewalk' });
  input.addEventListener('change', () => { if (input.files[0]) onFile(input.files[0]); });
  input.click();
}

// Sends the file and says what is happening; `say(level, text)`. The server's answer is a message on the bus.
export async function sendFile(file, { upload, trigger, say, maxBytes }) {
  if (file.size > maxBytes) return say('bad', `The file is too large: ${Math.ceil(file.size / MIB)} MiB, and at most ${Math.floor(maxBytes / MIB)} MiB are read. Export without captured vectors, or a shorter run.`);
  say('info', `Reading ${file.name} …`);
  try {
    trigger('import_run', { name: file.name, path: (await upload(file)).path });
  } catch {
    say('bad', 'The file did not arrive: try again, or reload the page.');
  }
}
