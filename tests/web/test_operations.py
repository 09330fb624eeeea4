"""Starting and stopping: signals, no network, a home that cannot be written, a lent GPU, a full queue."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.web.conftest import App

ROOT = Path(__file__).resolve().parents[2]
LONG = {"prompt": "Tell me a very long story about a fox.", "max_tokens": 400, "temperature": 1.5, "seed": 3}


def check(*command: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """scripts/check.py, which starts the app, generates 8 tokens and stops it, in this environment."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PAGEWALK_", "XDG_"))} | environment
    return subprocess.run(
        [*command, sys.executable, str(ROOT / "scripts" / "check.py")], cwd=ROOT, capture_output=True, text=True, timeout=200,
        env={k: v for k, v in env.items() if v is not None},
    )  # fmt: skip


def need_namespaces(*flags: str) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode:
        pytest.skip("This machine does not let a test take away the network or mount a folder (unshare).")


def streaming(client: Client, **arguments: object):
    """A job whose first message has come."""
    job = client.submit(**{**LONG, **arguments}, api_name="/generate")
    while not job.outputs() and not job.done():
        threading.Event().wait(0.05)
    return job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_runs_with_a_sentence_and_the_process_with_0(
    start_app: Callable[..., App], number: signal.Signals
) -> None:
    app = start_app()
    job = streaming(app.client())
    app.process.send_signal(number)
    last = job.result(timeout=20)
    assert last["problem"] == "The host is restarting. What you see stays; press Generate again in a minute."
    assert set(last["finish_reasons"]) == {"abort"}
    assert app.process.wait(20) == 0
    assert "stopping sessions=1 running=1" in app.log and "Traceback" not in app.log


def test_a_signal_while_the_model_still_loads_ends_the_process_too(start_app: Callable[..., App]) -> None:
    app = start_app(ready=False)
    while True:
        try:
            app.health()
            break
        except OSError:
            assert app.process.poll() is None, app.log
    app.process.terminate()
    assert app.process.wait(20) == 0


def test_without_any_network_it_starts_and_answers() -> None:
    need_namespaces("-n")
    up = "import fcntl,socket,struct;s=socket.socket();fcntl.ioctl(s,0x8914,struct.pack('16sh',b'lo',0x41))"  # SIOCSIFFLAGS: up
    done = check("unshare", "-n", "sh", "-c", f'"{sys.executable}" -c "{up}" && exec "$@"', "sh", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8 tokens" in done.stdout


def test_with_a_home_that_is_a_file_it_starts_and_answers(tmp_path: Path, start_app: Callable[..., App]) -> None:
    (tmp_path / "home").write_text("no folder")
    app = start_app(HOME=str(tmp_path / "home"))
    assert app.client().predict(prompt="The capital of France is", max_tokens=2, api_name="/generate")["texts"] == [" Paris."]


def test_in_a_read_only_home_it_starts_and_answers(tmp_path: Path) -> None:
    need_namespaces("-m")
    home = tmp_path / "home"
    home.mkdir()
    mount = f'mount -t tmpfs -o ro none "{home}" && ! touch "{home}/x" 2>/dev/null && exec "$@"'
    done = check("unshare", "-m", "sh", "-c", mount, "sh", HOME=str(home))
    assert done.returncode == 0 and "8 tokens" in done.stdout, done.stderr[-2000:]


def test_a_setting_that_does_not_work_is_named_and_nothing_starts(start_app: Callable[..., App]) -> None:
    app = start_app(ready=False, PAGEWALK_MAX_SESSIONS="many")
    assert app.process.wait(60) != 0
    assert "PAGEWALK_MAX_SESSIONS is 'many'; give a number" in app.log and "Traceback" not in app.log


def test_the_client_reads_its_place_and_that_the_queue_is_full(start_app: Callable[..., App]) -> None:  # G10
    app = start_app(PAGEWALK_MAX_RUNNING="1", PAGEWALK_MAX_WAITING="1", PAGEWALK_TURN_SECONDS="1000")
    first = streaming(app.client())
    second = app.client().submit(prompt="The capital of France is", max_tokens=4, api_name="/generate")
    while app.health()["waiting"] == 0:
        assert not first.done()
    with pytest.raises(AppError, match="The queue is full: 1 runs share the model and 1 wait"):
        app.client().predict(prompt="The capital of France is", max_tokens=4, api_name="/generate")
    first.cancel()
    assert second.result(timeout=60)["texts"] == [" Paris.\n\n"]
    assert 1 in [message["waiting"] for message in second.outputs()]


def test_on_a_lent_gpu_the_app_generates_looks_up_and_tells_the_same_as_elsewhere(
    start_app: Callable[..., App], app: App
) -> None:
    lent = start_app(SPACES_ZERO_GPU="1", SPACE_ID="somebody/pagewalk", PYTHONPATH=str(ROOT / "tests" / "zero_gpu"))
    one, two, elsewhere = lent.client(), lent.client(), app.client()
    asked = {"prompts": ["The capital of France is", "The capital of Italy is"], "max_tokens": 12}
    runs = [client.predict(**asked, api_name="/generate") for client in (one, two, elsewhere)]
    assert runs[0]["texts"] == runs[1]["texts"] == runs[2]["texts"] and runs[0]["session"] != runs[1]["session"]
    for client in (one, two):
        assert client.predict(step=5, api_name="/state") == elsewhere.predict(step=5, api_name="/state")
        look = client.predict(request_id="B", key_position=3, layer=5, head=2, api_name="/lookup")
        assert look["ok"] and look["score"] == elsewhere.predict(
            request_id="B", key_position=3, layer=5, head=2, api_name="/lookup"
        )["score"]  # fmt: skip
    job = streaming(one)
    job.cancel()
    again = two.predict(**asked, api_name="/generate")
    assert again["texts"] == runs[0]["texts"]
    assert "Traceback" not in lent.log, lent.log[-2000:]
