// Runs once when Gradio has rendered the template. The modules come from <head> and may still be loading.
// Gradio makes an event of each name that stands here in quotes.
const events = ['resync', 'open_recording', 'export_run', 'import_run'];
const start = () => (window.Pagewalk?.mount ? window.Pagewalk.mount({ element, props, watch, trigger, server, upload, events }) : setTimeout(start, 20));
start();
