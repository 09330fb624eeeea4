"""The worked lookup's component: it shows what it is given, with figures made for that."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.worked_example import worked_example
from viz.worked.worked import WorkedLookup, worked_view

HERE = Path(__file__).parent
EXAMPLE = worked_example().to_dict()


def test_the_view_carries_the_example_untouched_and_figures_of_its_shape():
    view = worked_view(EXAMPLE)
    assert view["example"] == EXAMPLE
    grid = view["figures"]["pool"]["layout"]["meta"]
    assert (grid["columns"], grid["rows"], grid["num_blocks"]) == (2, 8, 16)
    assert view["figures"]["weights"]["layout"]["meta"] == {"position": 20, "largest": EXAMPLE["largest_weight_position"]}
    assert len(json.dumps(view)) < 25_000


def test_it_takes_every_keyword_because_gradio_makes_it_anew_for_each_update():
    view = worked_view(EXAMPLE)
    assert WorkedLookup(view, elem_id="other", visible=False, key="k", render=False, whatever=3).value == view


def test_no_number_of_the_example_is_typed_into_the_browsers_files():
    folder = HERE.parents[1] / "viz" / "worked"
    text = "".join(path.read_text("utf-8") for path in [*folder.glob("js/*.js"), *folder.glob("*.html"), *folder.glob("*.py")])
    for number in ("0.2419", "1.6488", "0.1318", "0.0208", "0.7807", "1,152", "1152", " 38 ", "token 20", "[7, 2, 15]"):
        assert number not in text


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: it runs the page's modules")
def test_steps_scene_and_links():
    done = subprocess.run(["node", "--test", str(HERE / "worked.test.mjs")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
