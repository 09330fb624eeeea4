"""The files a browser loads beside Gradio's own, under names of ours, so that no path of the server is told.

pagewalk/view/stage/js/stage.js     viz/stage/js/stage.js, and so on for every script and stylesheet in viz/
pagewalk/plotly/plotly.min.js       from the installed package
"""

from __future__ import annotations

import os
from pathlib import Path

import plotly
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

HERE = Path(__file__).parent
PREFIX = "pagewalk"
SUFFIXES = {".css", ".js", ".svg", ".woff2"}

STYLES = ["view/stage/stage.css", "view/stage/views.css", "view/stage/learn.css", "view/worked/worked.css", "view/lab/lab.css"]
SCRIPTS = ["plotly/plotly.min.js"]
MODULES = ["view/stage/js/stage.js", "view/worked/js/worked.js", "view/lab/js/lab.js"]
"""What `<head>` names, in this order: one more file of viz/ is one more line in one of these lists."""


def routes() -> list[BaseRoute]:
    """For the app: `launch(app_kwargs={"routes": routes()})`."""
    plotly_folder = Path(plotly.__file__).parent / "package_data"
    return [Mount(f"/{PREFIX}/view", WebFiles(HERE)), Mount(f"/{PREFIX}/plotly", WebFiles(plotly_folder))]


def preloads() -> list[str]:
    """The modules beside MODULES: told at once, or a browser learns of them import by import, a round trip each time."""
    folders = [(HERE / Path(name).relative_to("view")).parent for name in MODULES]
    names = [f"view/{path.relative_to(HERE).as_posix()}" for folder in folders for path in sorted(folder.glob("*.js"))]
    return [name for name in names if name not in MODULES]


def url(name: str) -> str:
    """Relative to the page, so that it also holds behind a proxy's prefix."""
    return f"{PREFIX}/{name}"


class WebFiles(StaticFiles):
    """A folder's scripts, styles, pictures and fonts, and nothing else of it.

    Browsers ask each time whether a file has changed, which an ETag answers with no bytes.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_cache_control(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"cache-control", b"no-cache")]
            await send(message)

        await super().__call__(scope, receive, with_cache_control)

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        if Path(path).suffix not in SUFFIXES or "\0" in path:
            return "", None
        return super().lookup_path(path)
