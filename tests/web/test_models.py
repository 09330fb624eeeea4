"""Which models strangers may ask for, and what they learn of the disk when one cannot be loaded."""

from __future__ import annotations

import pytest

from engine.errors import ModelError, RequestError
from engine.model_shelf import ModelShelf, without_paths
from web.models import SMALL_MODELS, allowed_models, check_model


def test_a_public_host_has_a_list_and_ones_own_computer_has_none() -> None:
    assert allowed_models({}) is None
    assert allowed_models({"SPACE_ID": "a/b"}) == SMALL_MODELS
    assert allowed_models({"PAGEWALK_MODELS": "a/b, c/d ,"}) == ("a/b", "c/d")
    assert allowed_models({"PAGEWALK_MODELS": "", "SPACE_ID": "a/b"}) == ()


@pytest.mark.parametrize("name", ["/etc/passwd", "./x.gguf", "~/model", "owner/other", "file:///etc/passwd", "a/b/../../etc"])
def test_what_is_not_on_the_list_is_refused_and_the_list_is_told(name: str) -> None:
    with pytest.raises(RequestError, match=r"This host runs SmolLM2, a/b. Choose one") as refusal:
        check_model(name, ("a/b",), "SmolLM2")
    assert name not in str(refusal.value)
    check_model("a/b", ("a/b",), "SmolLM2")
    check_model(None, (), "SmolLM2")
    check_model(name, None, "SmolLM2")


@pytest.mark.parametrize(
    "said, shown",
    [
        ("no folder (/root/.cache/models: Permission denied)", "no folder ((a path): Permission denied)"),
        ("There is no model at /srv/x/y.gguf. Give", "There is no model at (a path). Give"),
        ("'/home/me/m' is odd; see ~/m and C:\\Users\\me", "'(a path)' is odd; see (a path) and (a path)"),
        ("See https://hub.co/a/b for owner/name, and/or 1/2.", "See https://hub.co/a/b for owner/name, and/or 1/2."),
    ],
)  # fmt: skip
def test_paths_are_taken_out_of_a_sentence_and_addresses_stay(said: str, shown: str) -> None:
    assert without_paths(said) == shown


def test_a_discreet_shelf_names_no_path_and_an_open_one_does(tmp_path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(ModelError) as told:
        ModelShelf(discreet=True).get(str(folder), timeout=60)
    assert str(tmp_path) not in str(told.value)
    with pytest.raises(ModelError, match=str(tmp_path)):
        ModelShelf().get(str(folder), timeout=60)
