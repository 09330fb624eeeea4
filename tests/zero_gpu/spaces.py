"""A stand-in for Hugging Face's `spaces` on ZeroGPU, as strict as the real one about what crosses, without a GPU.

As there: the first call forks a worker from this process; arguments, yields and errors are pickled across; a worker that ended
its call may serve the next one, of another visitor; a generator that the caller closes stops at its next yield; the worker is
ahead of its reader; errors arrive as gr.Error with nothing but the name of their type. Stricter: a torch tensor in either
direction is refused, on whatever device it is.

Put this folder on the path, set SPACES_ZERO_GPU=1, and `import spaces` finds it. FAKE_SPACES_REUSE=0 forks for every call.
"""

from __future__ import annotations

import inspect
import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

if "torch" in sys.modules:
    raise RuntimeError("CUDA may have been initialized before importing the `spaces` package: import it before torch.")

import gradio as gr

FORKED: list[int] = []
"""The ids of this worker, if this process is one."""


class Plain(pickle.Pickler):
    """Refuses tensors."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind.__module__.split(".")[0] == "torch":
            raise pickle.PicklingError(f"{kind.__qualname__} cannot cross to or from a lent GPU's process: send plain data.")
        return NotImplemented


def plain(value: Any) -> bytes:
    buffer = io.BytesIO()
    Plain(buffer).dump(value)
    return buffer.getvalue()


class Worker:
    def __init__(self, task: Callable[..., Iterator[Any]]) -> None:
        self.pipe, theirs = Pipe()
        stop_reader, self.stop_writer = os.pipe()
        os.set_blocking(stop_reader, False)
        self.pid = os.fork()
        if self.pid == 0:
            self.pipe.close()
            try:
                serve(task, theirs, stop_reader)
            finally:
                os._exit(0)
        theirs.close()
        os.close(stop_reader)

    def stop(self) -> None:
        os.write(self.stop_writer, b"x")

    def end(self) -> None:
        self.pipe.close()
        os.close(self.stop_writer)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def serve(task: Callable[..., Iterator[Any]], pipe: Connection, stop_reader: int) -> None:
    """The worker's life: one call after another."""
    import torch

    FORKED.append(os.getpid())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # the parent's OpenMP threads were not forked along
    while True:
        try:
            args, kwargs = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        drain(stop_reader)
        thread = threading.Thread(target=iterate, args=(task, args, kwargs, pipe, stop_reader))
        thread.start()
        thread.join()
        pipe.send_bytes(pickle.dumps(("end", None)))


def iterate(task: Callable[..., Iterator[Any]], args: Any, kwargs: Any, pipe: Connection, stop_reader: int) -> None:
    generator = task(*args, **kwargs)
    try:
        for value in generator:
            if drain(stop_reader):
                generator.close()  # type: ignore[attr-defined]
                return
            pipe.send_bytes(plain(("yield", value)))
    except Exception as error:
        pipe.send_bytes(pickle.dumps(("error", type(error).__name__)))


def drain(reader: int) -> bool:
    try:
        return bool(os.read(reader, 100))
    except BlockingIOError:
        return False


def GPU(task: Callable[..., Iterator[Any]] | None = None, *, duration: Any = None, size: str | None = None) -> Any:  # noqa: N802
    """The decorator, for generator functions."""
    if task is None:
        return lambda task: GPU(task, duration=duration, size=size)
    if not inspect.isgeneratorfunction(task):
        raise NotImplementedError("The stand-in lends its GPU to generator functions only.")
    idle: list[Worker] = []

    @wraps(task)
    def handler(*args: Any, **kwargs: Any) -> Iterator[Any]:
        seconds = duration(*args, **kwargs) if callable(duration) else duration
        if seconds is not None and not 0 < seconds <= 120:
            raise gr.Error(f"The requested GPU duration ({seconds}s) is larger than the maximum allowed")
        worker = idle.pop() if idle else Worker(task)
        try:
            worker.pipe.send_bytes(plain((args, kwargs)))
        except pickle.PicklingError:
            worker.end()
            raise
        over = False
        try:
            while True:
                try:
                    kind, value = pickle.loads(worker.pipe.recv_bytes())
                except (EOFError, OSError):
                    over = True
                    raise gr.Error("GPU task aborted", title="ZeroGPU worker error") from None
                if kind == "end":
                    over = True
                    idle.append(worker)
                    return
                if kind == "error":
                    raise gr.Error(value, title="ZeroGPU worker error")
                yield value
        finally:
            if not over:
                worker.stop()
                while pickle.loads(worker.pipe.recv_bytes())[0] != "end":
                    pass
                idle.append(worker)
            if os.environ.get("FAKE_SPACES_REUSE") == "0" and worker in idle:
                idle.remove(worker)
                worker.end()

    handler.idle = idle  # type: ignore[attr-defined]
    return handler
