"""What the page draws: figures, deltas and the Stage component. Reads `engine.events` only, never an engine."""
