"""Start the app on a free port, generate 8 tokens through the page's own API, print them, stop the app."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 300  # a first start converts the model
ANSWER_SECONDS = 120
PROMPT, MAX_TOKENS = "The quick brown fox", 8


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until_up(app: subprocess.Popen[bytes], url: str) -> None:
    """Return when the page answers. RuntimeError: the app ended, or took too long."""
    deadline = time.monotonic() + START_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if app.poll() is not None:
            raise RuntimeError(f"The app ended with code {app.returncode} before its page answered.")
        try:
            with opener.open(url, timeout=5) as page:
                if page.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"The page did not answer within {START_SECONDS} s.")


def generate(url: str) -> tuple[str, list[int]]:
    """Text and token ids of one prompt."""
    from gradio_client import Client

    job = Client(url, verbose=False).submit(prompt=PROMPT, max_tokens=MAX_TOKENS, api_name="/generate")
    job.result(timeout=ANSWER_SECONDS)
    last = job.outputs()[-1]
    return last["texts"][0], last["token_ids"][0]


def stop(app: subprocess.Popen[bytes]) -> None:
    """End the app and whatever it started."""
    for kind, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(app.pid, kind)
            app.wait(seconds)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    app.wait()


def ended_by_signal(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended_by_signal)
    port = free_port()
    address = {"HOST": "127.0.0.1", "PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port)}
    started = time.monotonic()
    app = subprocess.Popen(
        [sys.executable, str(ROOT / "app.py"), *sys.argv[1:]],
        env=os.environ | address | {"GRADIO_ANALYTICS_ENABLED": "False"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(app, url)
        print(f"The page answered after {time.monotonic() - started:.1f} s.")
        text, token_ids = generate(url)
        print(f"{PROMPT!r} -> {text!r}")
        print(f"{len(token_ids)} tokens: {token_ids}")
        if len(token_ids) != MAX_TOKENS:
            raise RuntimeError(f"{MAX_TOKENS} tokens were asked for, {len(token_ids)} came.")
    except Exception as error:
        print(f"The check failed: {error}", file=sys.stderr)
        return 1
    finally:
        stop(app)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
