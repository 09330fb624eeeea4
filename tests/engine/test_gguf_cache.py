"""A .gguf is converted once, whole or not at all."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine import gguf_cache
from engine.errors import ModelError
from engine.gguf_cache import MANIFEST, converted_folder, is_whole
from engine.model_loader import load_model
from tests.conftest import own_attention


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf_cache.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "cache" / "models"


def quiet(fraction, text):
    pass


@pytest.fixture
def conversions(monkeypatch):
    """How often a conversion really ran."""
    ran = []
    real = gguf_cache._convert

    def convert(gguf, folder, progress):
        ran.append(gguf)
        real(gguf, folder, progress)

    monkeypatch.setattr(gguf_cache, "_convert", convert)
    return ran


def test_a_gguf_of_floats_computes_exactly_what_the_model_it_came_from_does(tiny, tiny_gguf):
    loaded = load_model(tiny_gguf, device="cpu", dtype="float32")
    ids = torch.tensor([tiny.tokenizer("hello").input_ids])
    weights, expected = loaded.model.state_dict(), tiny.model.state_dict()
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in expected)
    with own_attention(tiny):  # the weights are the same bits; packed, their products are summed in another order
        torch.testing.assert_close(loaded.model(ids).logits, tiny.model(ids).logits, rtol=1e-5, atol=1e-5)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.name == "tiny.F32" and loaded.eos_token_ids == {257} and loaded.tokenizer.chat_template


def test_the_second_load_converts_nothing(tiny_gguf, conversions, cache):
    first, second = (converted_folder(tiny_gguf, quiet) for _ in range(2))
    assert first == second and first.parent == cache and len(conversions) == 1
    assert [path.name for path in cache.iterdir() if not path.name.startswith(".")] == [first.name]


def test_another_file_of_the_same_name_is_another_model(make_tiny, make_gguf, tiny_gguf, tmp_path):
    other = make_gguf(tmp_path / tiny_gguf.name, make_tiny(seed=1))
    assert other.stat().st_size == tiny_gguf.stat().st_size
    assert converted_folder(tiny_gguf, quiet) != converted_folder(other, quiet)


def test_half_precision_files_stay_half_precision(tiny, make_gguf, tmp_path):
    from safetensors.torch import load_file

    folder = converted_folder(make_gguf(tmp_path / "half.gguf", tiny, dtype="float16"), quiet)
    assert {t.dtype for t in load_file(folder / "model.safetensors").values()} == {torch.float16}


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json", MANIFEST])
@pytest.mark.parametrize("damage", ["remove", "cut", "flip"])
def test_a_damaged_cache_is_built_again(tiny_gguf, conversions, cache, file, damage, caplog):
    path = converted_folder(tiny_gguf, quiet) / file
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] if damage == "cut" else data[:middle] + b"\x07" + data[middle + 1 :])
    with caplog.at_level(logging.WARNING, "pagewalk"):
        folder = converted_folder(tiny_gguf, quiet)
    assert is_whole(folder) and len(conversions) == 2 and "damaged" in caplog.text
    assert not list(cache.glob(".*_tmp"))


def test_what_a_killed_conversion_left_is_never_used_and_cleared_away(tiny_gguf, conversions, cache, monkeypatch):
    class Killed(BaseException):
        pass

    def die(gguf, folder, progress):
        (folder / "config.json").write_text("{}")
        monkeypatch.setattr(gguf_cache.shutil, "rmtree", lambda *args, **kwargs: None)  # a killed process clears nothing
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(gguf_cache, "_convert", die)
        with pytest.raises(Killed):
            converted_folder(tiny_gguf, quiet)
    monkeypatch.undo()
    monkeypatch.setenv("PAGEWALK_CACHE", str(cache.parent))
    assert len(list(cache.glob(".*_tmp"))) == 2
    assert is_whole(converted_folder(tiny_gguf, quiet))
    assert not list(cache.glob(".*_tmp"))


def test_two_processes_at_once_end_with_one_whole_folder(tiny_gguf, cache):
    code = f"from engine.model_loader import load_model; print(load_model({str(tiny_gguf)!r}, device='cpu').path)"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {run.communicate(timeout=120)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0] and len(paths) == 1
    assert is_whole(Path(paths.pop())) and not list(cache.glob(".*_tmp"))


def test_where_the_cache_cannot_be_written_the_temporary_folder_serves(tiny_gguf, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGEWALK_CACHE", str(tmp_path / "file" / "below"))
    folder = converted_folder(tiny_gguf, quiet)
    assert is_whole(folder) and tmp_path / "temporary" in folder.parents
    assert "Cannot keep the converted model" in caplog.text


def test_where_nothing_can_be_written_it_says_which_variable_to_set(tiny_gguf, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(gguf_cache, "cache_roots", lambda: [tmp_path / "file" / "a", tmp_path / "file" / "b"])
    with pytest.raises(ModelError, match="Set PAGEWALK_CACHE to a folder you can write"):
        converted_folder(tiny_gguf, quiet)


def test_a_temporary_folder_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    theirs = tmp_path / "temporary" / f"pagewalk-{os.getuid()}"
    theirs.mkdir()
    assert len(gguf_cache.cache_roots()) == 2
    monkeypatch.setattr(gguf_cache.os, "getuid", lambda: 12345)
    (tmp_path / "temporary" / "pagewalk-12345").mkdir()
    assert len(gguf_cache.cache_roots()) == 1


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf at all", None])
def test_a_file_that_is_no_whole_gguf_is_one_clear_error(tiny_gguf, tmp_path, content):
    file = tmp_path / "bad.gguf"
    file.write_bytes(tiny_gguf.read_bytes()[:2000] if content is None else content)
    with pytest.raises(ModelError, match=r"bad\.gguf could not be read.*Is it a whole \.gguf file"):
        load_model(file)


def test_a_gguf_without_one_of_its_weights_is_refused(tiny, make_gguf, tmp_path):
    file = make_gguf(tmp_path / "holes.gguf", tiny, without="blk.1.ffn_up.weight")
    with pytest.raises(ModelError, match=r"holes\.gguf could not be read .*1 weights are missing"):
        load_model(file)


def test_a_gguf_of_another_architecture_is_refused_before_its_weights_are_read(tiny, make_gguf, tmp_path):
    with pytest.raises(ModelError, match=r"gemma2.*soft cap"):
        load_model(make_gguf(tmp_path / "other.gguf", tiny, architecture="gemma2"))
    with pytest.raises(ModelError, match=r"unheard\.gguf could not be read"):
        load_model(make_gguf(tmp_path / "unheard.gguf", tiny, architecture="unheard"))
