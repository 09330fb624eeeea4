"""Runs the scenarios on the real model and writes recordings/<id>.pagewalk.

    python scripts/record_examples.py [id ...]

What each must show is a test (tests/engine/test_scenarios.py); that preempted sequences say the same is checked here.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.engine import Engine  # noqa: E402
from engine.events import RequestPreempted  # noqa: E402
from engine.model_loader import LoadedModel, load_model  # noqa: E402
from engine.recorded_vectors import kept_for  # noqa: E402
from engine.recording import save_recording  # noqa: E402
from engine.recording_shelf import FOLDER  # noqa: E402
from engine.scenarios import SCENARIOS, Scenario  # noqa: E402
from engine.session import Session  # noqa: E402


def run(scenario: Scenario, model: LoadedModel) -> Engine:
    """The scenario as Generate runs it."""
    session = Session()
    session.begin(model, scenario.run)
    session.start()
    for update in session.updates(0.0):
        if update.problem:
            raise SystemExit(f"{scenario.id}: {update.problem}")
    assert isinstance(session.engine, Engine)
    session.engine.audit()
    return session.engine


def texts(engine: Engine) -> dict[str, str]:
    return {request_id: engine.output(request_id).text for request_id in engine.requests}


def check_same_texts(scenario: Scenario, engine: Engine) -> None:
    """A preempted sequence says what it says in a pool large enough for all."""
    config = replace(scenario.run.config, num_blocks=128)
    roomy = run(replace(scenario, run=replace(scenario.run, config=config)), engine.model)
    if texts(roomy) != texts(engine):
        raise SystemExit(f"{scenario.id}: the texts differ from those of a pool of {config.num_blocks} blocks.")


def record(scenario: Scenario, model: LoadedModel, folder: Path) -> Path:
    engine = run(scenario, model)
    if any(isinstance(event, RequestPreempted) for event in engine.trace.events):
        check_same_texts(scenario, engine)
    path = folder / f"{scenario.id}.pagewalk"
    save_recording(engine.trace, path, kept=kept_for(engine.trace, scenario.layers, scenario.heads))
    print(f"{scenario.id}: {engine.step_count} steps, {path.stat().st_size:,} bytes")
    for request_id, text in texts(engine).items():
        print(f"  {request_id} {text!r}")
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
