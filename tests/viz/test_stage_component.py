"""The Stage as Gradio sees it, and the rules that its files keep."""

import ast
import re
from pathlib import Path

import pytest

from tests.viz.fake_run import HEADER
from viz import deltas
from viz.stage.stage import Stage
from viz.theme import head, page_css, theme

VIZ = Path(__file__).parents[2] / "viz"


def test_it_takes_every_keyword_because_gradio_makes_it_anew_for_each_update():
    stage = Stage(deltas.empty(HEADER, "s"), elem_id="other", visible=False, key="k", render=False, scale=1, whatever=3)
    assert stage.elem_id == "other"
    assert Stage(value=None, render=False).value == {"kind": "none"}


def test_messages_that_begin_a_view_carry_the_figures():
    stage = Stage(render=False)
    for message in (deltas.empty(HEADER, "s"), deltas.snapshot("r", 0, [], HEADER, "s", True)):
        figures = stage.postprocess(message)["figures"]
        assert figures["pool"]["layout"]["meta"]["num_blocks"] == 128
    assert stage.postprocess(deltas.delta("r", 1, [])) == deltas.delta("r", 1, [])


def test_its_events_exist():
    stage = Stage(render=False)
    for name in ("resync", "export_run", "import_run"):
        assert callable(getattr(stage, name))
    with pytest.raises(AttributeError):
        _ = stage.no_such_event


@pytest.mark.parametrize("path", sorted(VIZ.glob("*/*.html")), ids=lambda p: p.name)
def test_the_template_is_no_program(path):
    template = path.read_text()
    assert "`" not in template
    assert "${" not in template
    assert "{{" not in template


@pytest.mark.parametrize("path", sorted(VIZ.glob("*/js/*.js")), ids=lambda p: p.name)
def test_javascript_never_parses_text_as_markup(path):
    code = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", code)
    assert len(code.splitlines()) <= 340


def test_nothing_comes_from_elsewhere():
    for text in (head(), page_css(), *(path.read_text() for path in VIZ.glob("*/*.css"))):
        assert not re.search(r"(?:src|href)=\"https?:|@import|url\(https?:", text)


def test_the_theme_has_the_design_values():
    css = theme()._get_theme_css()
    assert "--color-accent: #A3A0FF" in css
    assert "--body-background-fill: #F6F7F9" in css
    assert "system-ui, -apple-system" in css
    assert "IBMPlexMono-Bold.woff2" in css


def test_imports_point_one_way():
    allowed_gradio = {"theme.py", "board.py", "stage/pieces.py"}
    for path in VIZ.rglob("*.py"):
        name = path.relative_to(VIZ).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for module in modules:
                assert not module.startswith(("torch", "transformers", "kernels", "app"))
                assert not module.startswith("engine") or module in {"engine.events", "engine.trace"}
                assert not module.startswith("gradio") or name in allowed_gradio, name
