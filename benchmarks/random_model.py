"""Random weights in the shape of a real model, for the speed of passes whose weights do not matter."""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.model_loader import LoadedModel, describe

SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
}  # fmt: skip


def random_model(name: str, device: str = "cuda", dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> LoadedModel:
    """The shape of that name with weights drawn from N(0, 0.02), and a tokenizer of as many one-word tokens.

    What is loaded by then leaves the garbage collector's walk, as with a model of engine.model_shelf.
    """
    started = time.perf_counter()
    config = LlamaConfig(**SHAPES[name], bos_token_id=0, eos_token_id=1, pad_token_id=1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.manual_seed(seed)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config).eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(before)
    where = torch.device(device, 0) if device == "cuda" else torch.device(device)
    loaded = describe(
        model, word_tokenizer(config.vocab_size), f"{name} shape, random weights", where, dtype, "A benchmark asked for it.",
        load_seconds=time.perf_counter() - started,
    )  # fmt: skip
    gc.collect()
    gc.freeze()
    return loaded


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Bytes, then words "w0", "w1", ... up to vocab_size: every id has a text, as a streaming detokenizer needs it."""
    vocab = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {f"Ġw{i}": i for i in range(len(vocab), vocab_size)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)
