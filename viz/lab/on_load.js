// Runs once when Gradio has rendered the template. The modules come from <head> and may still be loading.
const start = () => (window.Pagewalk?.mountLab && window.Plotly ? window.Pagewalk.mountLab({ element, props, watch }) : setTimeout(start, 20));
start();
