"""What our Gradio components share: a folder's template and script, figures as JSON, and values that pass as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr
import plotly.graph_objects as go


def defaults_of(folder: Path, name: str, elem_id: str) -> dict[str, Any]:
    """Keywords of a `gr.HTML` whose template is `name`.html in the folder, beside its on_load.js."""
    return {
        "html_template": (folder / f"{name}.html").read_text(encoding="utf-8"),
        "css_template": "",
        "js_on_load": (folder / "on_load.js").read_text(encoding="utf-8"),
        "apply_default_css": False,
        "elem_id": elem_id,
    }


def plain(figure: go.Figure) -> dict[str, Any]:
    """The figure as a JSON value: what a component or an answer can carry."""
    return json.loads(figure.to_json())


class Board(gr.HTML):
    """Plain JSON in and out."""

    def preprocess(self, payload: Any) -> Any:
        return payload

    def postprocess(self, value: Any) -> Any:
        return value
