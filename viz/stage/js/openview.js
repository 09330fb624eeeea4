// Goes to a view of the run on screen: step, pinned token, zoom level. Resolves to true once it is drawn, to false for a recording,
// of which this page has none.

export async function openView(stage, { example, step, request, position, view }) {
  if (example || !stage.bus.mirror) return false;
  if (step !== undefined) { stage.clock.seek(step, stage.bus.mirror.newest); stage.state = stage.bus.mirror.stateAt(stage.clock.step); }
  if (request) stage.pinToken(request, position);
  if (view) stage.pool.zoomTo(view);
  stage.schedule();
  do await new Promise(requestAnimationFrame); while (!stage.settled);
  return true;
}
