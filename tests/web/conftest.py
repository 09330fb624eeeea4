"""Apps in processes of their own, started as a person or a Space would, with an environment of the test's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client

ROOT = Path(__file__).resolve().parents[2]


class App:
    """A running app.py: its address, its log, and what it says of itself."""

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.log_file = folder / f"app-{port}.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PAGEWALK_")}
        with self.log_file.open("w") as out:
            self.process = subprocess.Popen(
                [*command, sys.executable, str(ROOT / "app.py"), "--port", str(port)], cwd=ROOT, stdout=out,
                stderr=subprocess.STDOUT, env={**inherited, "PYTHONUNBUFFERED": "1", **environment},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def get(self, path: str, timeout: float = 10.0) -> tuple[int, bytes, dict[str, str]]:
        """Status, body, headers; the path goes out as it is written here."""
        request = urllib.request.Request(self.url + path)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read(), {k.lower(): v for k, v in answer.headers.items()}
        except urllib.error.HTTPError as error:
            return error.code, error.read(), {k.lower(): v for k, v in error.headers.items()}

    def health(self) -> dict[str, Any]:
        return json.loads(self.get("/health")[1])

    def wait_until_ready(self, seconds: float = 150.0) -> App:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.health()["model_ready"]:
                    return self
            except (OSError, ValueError):
                pass
            time.sleep(0.2)
        pytest.fail(f"The app did not start (it ended with {self.process.poll()}):\n{self.log[-3000:]}")

    def client(self) -> Client:
        return Client(self.url, verbose=False)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def start_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., App]]:
    """`start_app(*command in front, NAME="value", ...)`: an app with its model loaded, stopped after the module's tests."""
    apps: list[App] = []

    def start(*command: str, ready: bool = True, **environment: str) -> App:
        app = App(tmp_path_factory.mktemp("app"), list(command), environment, free_port())
        apps.append(app)
        return app.wait_until_ready() if ready else app

    yield start
    for app in apps:
        app.stop()


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """One as on a public host, with small bounds and any number of requests."""
    environment = {
        "PAGEWALK_PUBLIC": "1", "PAGEWALK_REQUESTS_PER_MINUTE": "0", "PAGEWALK_MAX_NEW_TOKENS": "64",
        "PAGEWALK_MAX_PROMPT_TOKENS": "1000",
    }  # fmt: skip
    app = App(tmp_path_factory.mktemp("app"), [], environment, free_port())
    try:
        yield app.wait_until_ready()
    finally:
        app.stop()
