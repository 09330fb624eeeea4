"""Weights shared by every visitor: each model is loaded once, in the background, and its progress can be watched."""

from __future__ import annotations

import gc
import logging
import re
import threading
import time
from dataclasses import dataclass, field

from engine.errors import ModelError, PagewalkError
from engine.model_loader import LoadedModel, load_model

log = logging.getLogger("pagewalk.models")

_PATH = re.compile(r"""(?<![\w:/.])(?:~?/|[A-Za-z]:\\)[^\s'"(),;:]*[^\s'"(),;:.]""")


@dataclass
class _Loading:
    began: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)
    text: str = "waiting"
    model: LoadedModel | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LoadingStatus:
    """ready: the model can be used. problem: why it never will. text: the stage it is at. seconds: since it began."""

    ready: bool
    problem: str | None
    text: str
    seconds: float


class ModelShelf:
    """Models by the name they are asked for. `None` is the default model. A failed load is tried again when asked again.

    discreet: problems name no file or folder of this machine, because strangers read them.
    """

    def __init__(self, device: str = "auto", dtype: str = "auto", discreet: bool = False) -> None:
        self._device, self._dtype, self._discreet = device, dtype, discreet
        self._loadings: dict[str | None, _Loading] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, model: LoadedModel) -> ModelShelf:
        """A shelf whose default is this model, loaded already."""
        shelf = cls()
        loading = shelf._loadings[None] = _Loading(text="loaded", model=model)
        loading.done.set()
        return shelf

    def request(self, name: str | None) -> LoadingStatus:
        """Starts loading if nobody did, and says how far it is. Returns at once."""
        with self._lock:
            loading = self._loadings.get(name)
            if loading is None:
                loading = self._loadings[name] = _Loading()
                threading.Thread(target=self._load, args=(name, loading), name="load-model", daemon=True).start()
        return LoadingStatus(loading.model is not None, loading.problem, loading.text, time.monotonic() - loading.began)

    def get(self, name: str | None, timeout: float | None = None) -> LoadedModel:
        """The model, waiting for it if need be. Raises ModelError, in a sentence, if it cannot be loaded or not in time."""
        self.request(name)
        with self._lock:
            loading = self._loadings[name]
        if not loading.done.wait(timeout):
            raise ModelError(f"The model is still loading ({loading.text}); try again in some seconds.")
        if loading.model is None:
            with self._lock:
                self._loadings.pop(name, None)
            raise ModelError(loading.problem or "The model could not be loaded.")
        return loading.model

    def _load(self, name: str | None, loading: _Loading) -> None:
        def progress(fraction: float, text: str) -> None:
            loading.text = text
            log.info("%3.0f%% %s", 100 * fraction, text)

        try:
            loading.model = load_model(name, self._device, self._dtype, progress)
            gc.collect()
            gc.freeze()  # libraries and model stay: walking over them again would stop every visitor's run for a while
        except PagewalkError as error:
            loading.problem = without_paths(str(error)) if self._discreet else str(error)
            log.warning("a model could not be loaded: %s", error)
        except Exception as error:
            log.exception("a model could not be loaded")
            loading.problem = f"The model could not be loaded ({type(error).__name__}). Try another one."
        finally:
            loading.done.set()


def without_paths(text: str) -> str:
    """`text` with every absolute path replaced."""
    return _PATH.sub("(a path)", text)
