"""Runs the scenarios on the real model and writes recordings/<id>.pagewalk.

    python scripts/record_examples.py [id ...]

Each must show what it promises (engine.promises), or nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.model_loader import load_model  # noqa: E402
from engine.recorded_vectors import kept_for  # noqa: E402
from engine.recording import save_recording  # noqa: E402
from engine.recording_shelf import FOLDER  # noqa: E402
from engine.scenarios import SCENARIOS, Scenario  # noqa: E402
from engine.session import Session  # noqa: E402


def record(scenario: Scenario, model, folder: Path) -> Path:
    session = Session()
    session.begin(model, scenario.run)
    session.start()
    for update in session.updates(0.0):
        if update.problem:
            raise SystemExit(f"{scenario.id}: {update.problem}")
    engine = session.engine
    assert engine is not None
    engine.audit()
    path = folder / f"{scenario.id}.pagewalk"
    save_recording(engine.trace, path, kept=kept_for(engine.trace, scenario.layers, scenario.heads))
    print(f"{scenario.id}: {engine.step_count} steps, {path.stat().st_size:,} bytes")
    for request_id in engine.requests:
        output = engine.output(request_id)
        print(f"  {request_id} {len(output.prompt_token_ids)}+{len(output.token_ids)} {output.finish_reason}: {output.text!r}")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the page's examples on the real model.")
    parser.add_argument("ids", nargs="*", choices=[[], *SCENARIOS], help="which; all of them if none is named")
    chosen = parser.parse_args().ids or list(SCENARIOS)
    model = load_model(device="cpu", dtype="float32")
    FOLDER.mkdir(exist_ok=True)
    total = sum(record(SCENARIOS[name], model, FOLDER).stat().st_size for name in chosen)
    print(f"{total:,} bytes in {len(chosen)} recordings")


if __name__ == "__main__":
    main()
