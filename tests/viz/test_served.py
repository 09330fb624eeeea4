"""What a browser may load of the disk: our scripts and styles, under names of ours, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from viz import served
from viz.theme import head

ROOT = Path(served.__file__).parents[1]


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=served.routes()))


def test_every_file_the_page_names_is_served_without_a_path_of_the_server(client: TestClient) -> None:
    names = re.findall(r'(?:src|href)="([^"]+)"', head())
    assert len(names) == len(served.STYLES) + len(served.SCRIPTS) + len(served.MODULES) + len(served.preloads())
    for name in names:
        assert name.startswith("pagewalk/") and str(ROOT) not in name
        answer = client.get("/" + name)
        assert answer.status_code == 200 and len(answer.content) > 100
        assert re.search("javascript|css", answer.headers["content-type"])
    assert str(ROOT) not in head() and "/site-packages" not in head()


def test_modules_reach_their_neighbours_by_relative_imports(client: TestClient) -> None:
    for module in served.MODULES:
        for neighbour in re.findall(r'from "\./([\w.]+)"', client.get(f"/{served.url(module)}").text):
            assert client.get(f"/{served.url(module).rsplit('/', 1)[0]}/{neighbour}").status_code == 200


def test_every_module_that_another_imports_is_told_at_once(client: TestClient) -> None:
    told = {*served.MODULES, *served.preloads()}
    imported = set()
    for name in told:
        for neighbour in re.findall(r"from '\./([\w.]+)'", client.get(f"/{served.url(name)}").text):
            imported.add(f"{name.rsplit('/', 1)[0]}/{neighbour}")
    assert len(imported) > 40 and imported <= told


def test_a_file_that_did_not_change_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/" + served.url(served.STYLES[0]))
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/" + served.url(served.STYLES[0]), headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content


@pytest.mark.parametrize(
    "path",
    [
        "view/theme.py", "view/stage/stage.py", "view/stage/stage.html", "view/about.md", "view/stage", "view/", "view",
        "view/../app.py", "view/%2e%2e/app.py", "view/..%2fapp.py", "view/%2e%2e%2f%2e%2e%2fetc/passwd", "view//etc/passwd",
        "view/stage/js/../../../app.py", "view/stage/js/..%5c..%5capp.py", "view/stage/js/stage.js%00.py",
        "view/stage/js/stage.js%00",
        "view/%252e%252e/app.py", "plotly/../../../README.md", "plotly/%2e%2e/__init__.py", "view/" + "a" * 5000 + ".js",
    ],
)  # fmt: skip
def test_nothing_else_of_the_disk_is_served(client: TestClient, path: str) -> None:
    answer = client.get(f"/pagewalk/{path}")
    assert answer.status_code in (404, 405) and str(ROOT) not in answer.text


def test_a_link_out_of_the_folder_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret.js").write_text("secret")
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "link.js").symlink_to(tmp_path / "secret.js")
    (folder / "own.js").write_text("own")
    client = TestClient(Starlette(routes=[served.Mount("/web", served.WebFiles(folder))]))
    assert client.get("/web/own.js").text == "own"
    assert client.get("/web/link.js").status_code == 404
