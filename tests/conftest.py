"""Models shared by the tests: the default one, loaded once a session, and a tiny random Llama for everything quick."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from engine.model_loader import LoadedModel, describe, load_model

TINY_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@contextlib.contextmanager
def own_attention(*models: LoadedModel) -> Iterator[None]:
    """transformers' attention instead of ours, for tests that call a shared model themselves: an engine may have set ours."""
    before = [loaded.model.config._attn_implementation for loaded in models]
    for loaded in models:
        loaded.model.set_attn_implementation("sdpa")
    yield
    for loaded, name in zip(models, before):
        loaded.model.set_attn_implementation(name)


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32 on the CPU, so that greedy texts can be compared exactly."""
    return load_model(device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    """A random 2-layer Llama over single bytes: 4 query heads, 2 KV heads, head_dim 16. Its texts are noise, but fixed."""
    return tiny_llama()


def byte_tokenizer():
    """Byte-level BPE, one token a byte; then <|start|> (256, bos), <|end|> (257, eos), and two NULs, its only merge."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    null = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("\0")[0][0]
    vocab = {char: i for i, char in enumerate([*alphabet, "<|start|>", "<|end|>", null + null])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[(null, null)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|start|>", eos_token="<|end|>", chat_template=TINY_TEMPLATE
    )


def tiny_config(**changes):
    from transformers import LlamaConfig

    settings = {
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.3,
        "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None, "tie_word_embeddings": True,
    }  # fmt: skip
    return LlamaConfig(**settings | changes)


def tiny_llama(seed: int = 0, **changes) -> LoadedModel:
    from transformers import LlamaForCausalLM

    config = tiny_config(**changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float().eval().requires_grad_(False)
    return describe(model, byte_tokenizer(), "tiny-random-llama", torch.device("cpu"), torch.float32, "A test asked for it.")


@pytest.fixture(scope="session")
def make_tiny():
    """`tiny_llama(seed=0, **config changes)`, for tests that want another shape."""
    return tiny_llama


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory):
    """The tiny Llama's weights as a .gguf of floats, as llama.cpp writes it: a real conversion in a second."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.F32.gguf", tiny_llama())


@pytest.fixture(scope="session")
def make_gguf():
    """`write_gguf(path, loaded, architecture="llama", without="", dtype="float32")`."""
    return write_gguf


def write_gguf(path, loaded: LoadedModel, architecture: str = "llama", without: str = "", dtype: str = "float32"):
    """Write `path`. Q and K rows are interleaved as llama.cpp wants them; `without` leaves out one tensor."""
    import gguf

    config, backend = loaded.model.config, loaded.tokenizer.backend_tokenizer
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_file_type({"float32": 0, "float16": 1}[dtype])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([backend.id_to_token(i) for i in range(config.vocab_size)])
    writer.add_token_types([3 if i in (256, 257) else 1 for i in range(config.vocab_size)])
    writer.add_token_merges(["Ā Ā"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_chat_template(TINY_TEMPLATE)

    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "model.layers.": "blk.",
    }  # fmt: skip
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in loaded.model.named_parameters():
        data = weight.detach()
        for part, count in heads.items():
            if part in name:
                data = data.view(count, 2, config.head_dim // 2, -1).transpose(1, 2).reshape(data.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if name != without:
            is_norm = data.dim() == 1
            writer.add_tensor(name, data.contiguous().numpy().astype("float32" if is_norm else dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
