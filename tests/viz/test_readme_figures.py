"""The README's examples of figures from Python run as they stand, on a small model."""

from __future__ import annotations

import re
from pathlib import Path

import plotly.graph_objects as go
import pytest

from engine import Engine, EngineConfig, SamplingParams

README = Path(__file__).parents[2] / "README.md"


def example() -> str:
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.S) if "import viz" in block)
    return code


def test_the_example_draws_a_real_run(tiny, tmp_path, monkeypatch):
    shown: list[go.Figure] = []
    monkeypatch.setattr(go.Figure, "show", lambda figure: shown.append(figure))
    monkeypatch.chdir(tmp_path)
    engine = Engine(tiny, EngineConfig(block_size=4, num_blocks=16))
    out = engine.generate(["A prompt that is long enough"], SamplingParams(max_tokens=9, ignore_eos=True))[0]
    look = engine.lookup(out.request_id, query_position=20, key_position=7, layer=1, head=1)
    exec(compile(example(), "README.md", "exec"), {"engine": engine, "look": look})
    assert [figure.layout.title.text for figure in shown] == ["Physical pool, step 5", "Attention of A:20"]
    (file,) = tmp_path.iterdir()
    assert file.name == "waste.html"
    assert "Plotly.newPlot" in file.read_text("utf-8")


def test_every_figure_is_named_where_it_is_documented():
    import viz

    text = README.read_text("utf-8")
    for name in viz.__all__:
        assert f"`viz.{name}" in text or f"viz.{name}(" in text, name
    with pytest.raises(AttributeError):
        _ = viz.no_such_figure
