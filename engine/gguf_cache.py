"""A .gguf file converted once into a folder of safetensors, so that later starts take seconds.

    <cache>/models/SmolLM2-135M-Instruct.Q4_1-1f0c…/     config.json  model.safetensors  tokenizer.json  pagewalk.json
    <cache>/models/.SmolLM2-…-1f0c….x8k2_tmp/            being written; renamed when whole, so it is never read half

`pagewalk.json` lists every file's size and CRC: a folder that does not match it is thrown away and built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.architectures import check_supported
from engine.errors import ModelError

log = logging.getLogger("pagewalk")

Progress = Callable[[float, str], None]
MANIFEST = "pagewalk.json"
_VERSION = 1
_LOCK_SECONDS = 600
_SPLITS_DIGITS = {"smollm", "starcoder", "refact", "command-r"}


def cache_roots() -> list[Path]:
    """Where converted models may lie, best first: PAGEWALK_CACHE, or the user's cache folder; then the temporary folder."""
    chosen = os.environ.get("PAGEWALK_CACHE")
    if chosen:
        first = Path(chosen).expanduser()
    else:
        first = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pagewalk"
    user = os.getuid() if hasattr(os, "getuid") else None
    fallback = Path(tempfile.gettempdir()) / f"pagewalk-{'user' if user is None else user}"
    try:
        planted = user is not None and fallback.lstat().st_uid != user  # by someone else, in a folder all can write
    except OSError:
        planted = False
    return [first] if planted else [first, fallback]


def converted_folder(gguf: Path, progress: Progress) -> Path:
    """The folder that holds `gguf` as safetensors and a tokenizer, made now if need be (once, even by two processes).

    Raises ModelError where the file cannot be read, or where no folder can be written.
    """
    key = f"{gguf.stem}-{_fingerprint(gguf)}"
    folders = [root / "models" / key for root in cache_roots()]
    for folder in folders:
        if is_whole(folder):
            return folder
    problems = []
    for folder in folders:
        try:
            return _build(gguf, folder, progress)
        except OSError as error:
            problems.append(f"{folder.parent}: {error.strerror or error}")
            log.warning("Cannot keep the converted model in %s (%s).", folder.parent, error.strerror or error)
    raise ModelError(
        f"There is no folder to convert {gguf.name} into ({'; '.join(problems)}). "
        "Set PAGEWALK_CACHE to a folder you can write, with room for the model in bfloat16."
    )


def is_whole(folder: Path) -> bool:
    """Whether every file of the manifest is there, with its size and its bytes."""
    try:
        files = json.loads((folder / MANIFEST).read_text("utf-8"))["files"]
        return bool(files) and all(_summary(folder / name) == summary for name, summary in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _build(gguf: Path, folder: Path, progress: Progress) -> Path:
    """Convert into `folder` under a lock. OSError: this place cannot be written."""
    from filelock import FileLock, Timeout

    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(0.05, f"Another process is converting {gguf.name}: waiting for it.")
        try:
            lock.acquire(timeout=_LOCK_SECONDS)
        except Timeout as error:
            raise OSError(f"another process has held {lock.lock_file} for {_LOCK_SECONDS} s") from error
    try:
        if is_whole(folder):
            return folder
        for leftover in folder.parent.glob(f".{folder.name}.*_tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        making, trash = (Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix="_tmp")) for _ in range(2))
        try:
            _convert(gguf, making, progress)
            names = sorted(path.name for path in making.iterdir())
            manifest = {"version": _VERSION, "source": gguf.name, "files": {name: _summary(making / name) for name in names}}
            (making / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
            if folder.exists():
                log.warning("The converted model in %s was damaged: built again.", folder)
                os.rename(folder, trash / folder.name)
            os.rename(making, folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
            shutil.rmtree(trash, ignore_errors=True)
        return folder
    finally:
        lock.release()


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write config, weights and tokenizer of `gguf` into `folder`. ModelError: the file is bad; OSError: the folder is."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.integrations.gguf import read_gguf_metadata

    where, file = str(gguf.parent), gguf.name
    try:
        progress(0.05, f"Reading {file} (converted once, then kept).")
        metadata, _ = read_gguf_metadata(str(gguf))
        config = AutoConfig.from_pretrained(where, gguf_file=file)
        check_supported(config, file)
        # Files of plain floats keep their precision; unpacked 4- and 8-bit blocks fit bfloat16.
        dtype = {0: torch.float32, 1: torch.float16}.get(metadata.get("general.file_type"), torch.bfloat16)
        progress(0.2, f"Converting the tokenizer of {file}.")
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
        _restore_digit_splitting(tokenizer, metadata.get("tokenizer.ggml.pre"))
        progress(0.35, f"Converting the weights of {file}.")
        with _without_bar():
            model, info = AutoModelForCausalLM.from_pretrained(
                where,
                gguf_file=file,
                config=config,
                dtype=dtype,
                quantization_config=GgufConfig(dequantize=True),
                output_loading_info=True,
            )
        if info["missing_keys"]:
            raise ValueError(f"{len(info['missing_keys'])} weights are missing, {sorted(info['missing_keys'])[0]} among them")
    except ModelError:
        raise
    except ImportError as error:
        raise ModelError(
            f"Reading {file} needs a package that is missing: {error}. Install it: pip install gguf accelerate"
        ) from error
    except Exception as error:  # a damaged file shows up as nearly any exception
        raise ModelError(f"{file} could not be read ({type(error).__name__}: {error}). Is it a whole .gguf file?") from error
    progress(0.6, "Keeping the converted model.")
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # safetensors' own error: a full disk, mostly
        raise OSError(str(error)) from error


@contextlib.contextmanager
def _without_bar() -> Iterator[None]:
    """The GGUF reader draws a progress bar on stderr that no setting of transformers turns off."""
    from transformers import modeling_gguf_pytorch_utils as reader

    bar, reader.tqdm = reader.tqdm, lambda items, **_: items
    try:
        yield
    finally:
        reader.tqdm = bar


def _restore_digit_splitting(tokenizer: object, kind: str | None) -> None:
    """Split numbers into digits first, as these tokenizers were trained to: transformers' conversion forgets it.

    Without it two spaces before a number become other tokens than in the original ("  1": two ids for one).
    """
    from tokenizers.pre_tokenizers import Digits, Sequence

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if kind in _SPLITS_DIGITS and backend is not None and "Digits" not in str(backend.pre_tokenizer):
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])


def _fingerprint(gguf: Path) -> str:
    """Changes when the file or the converter does. Reads 64 pieces of the file, not the whole of it."""
    stat = gguf.stat()
    digest = hashlib.sha256(f"{_VERSION} {importlib.metadata.version('transformers')} {stat.st_size} ".encode())
    with gguf.open("rb") as file:
        for i in range(64):
            file.seek(stat.st_size * i // 64)
            digest.update(file.read(16_384))
    return digest.hexdigest()[:16]


def _summary(path: Path) -> list[int]:
    """[size, CRC-32]."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return [size, crc]
