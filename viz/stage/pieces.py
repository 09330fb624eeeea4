"""The pieces board: every part of the Stage in every state, built by the Stage's own functions.

python -m viz.stage.pieces        # PORT=7880; ?__theme=dark for dark
"""

from __future__ import annotations

import os

import gradio as gr

from viz import served
from viz.stage.stage import HERE
from viz.theme import head, page_css, theme

ON_LOAD = "const start = () => (window.Pagewalk?.pieces ? window.Pagewalk.pieces(element) : setTimeout(start, 20)); start();"


def build() -> gr.Blocks:
    icons = (HERE / "stage.html").read_text(encoding="utf-8").split("</svg>", 1)[0] + "</svg>"
    with gr.Blocks(title="Pagewalk: pieces", fill_width=True) as demo:
        gr.HTML(None, html_template=f'{icons}<div class="board pw"></div>', js_on_load=ON_LOAD, apply_default_css=False)
    return demo


def board_head() -> str:
    return f'{head()}<script type="module" src="{served.url("view/stage/js/pieces.js")}"></script>\n'


if __name__ == "__main__":
    build().launch(
        server_port=int(os.environ.get("PORT", "7880")), theme=theme(), css=page_css(), head=board_head(), quiet=True,
        app_kwargs={"routes": served.routes()},
    )  # fmt: skip
