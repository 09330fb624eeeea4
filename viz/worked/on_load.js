// Runs once when Gradio has rendered the template. The modules come from <head> and may still be loading.
const start = () => (window.Pagewalk?.mountWorked && window.Plotly ? window.Pagewalk.mountWorked({ element, props }) : setTimeout(start, 20));
start();
