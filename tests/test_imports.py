"""Imports point one way: app -> web -> engine -> kernels, and web -> viz -> engine.events / engine.trace."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"engine", "kernels", "viz", "web", "app", "tests", "benchmarks", "scripts"}
ALLOWED = {
    "kernels": ("kernels",),
    "engine": ("engine", "kernels"),
    "viz": ("viz", "engine.events", "engine.trace"),
    "web": ("web", "viz", "engine", "kernels"),
}
FORBIDDEN = {
    "kernels": {"transformers", "gradio", "plotly"},
    "engine": {"gradio", "gradio_client", "plotly", "spaces"},
    "viz": {"torch", "transformers", "triton"},
}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in it: `from engine import trace` counts as engine.trace."""
    found: set[str] = set()
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
                if node.level
                else node.module
            )
            if base in OURS:
                found.update(f"{base}.{alias.name}" for alias in node.names)
            else:
                found.add(base or "")
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_lies_below_it(package):
    for path in modules(package):
        for name in imports(path):
            if name.split(".")[0] in OURS:
                allowed = any(name == below or name.startswith(below + ".") for below in ALLOWED[package])
                assert allowed, f"{path.relative_to(ROOT)} imports {name}; {package} may import {', '.join(ALLOWED[package])}"


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_leaves_alone_the_libraries_that_are_not_its_business(package):
    for path in modules(package):
        foreign = {name.split(".")[0] for name in imports(path)} & FORBIDDEN[package]
        assert not foreign, f"{path.relative_to(ROOT)} imports {', '.join(sorted(foreign))}"


def test_nothing_imports_the_app():
    for package in ALLOWED:
        for path in modules(package):
            assert "app" not in {name.split(".")[0] for name in imports(path)}, path


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_the_views_load_without_torch():
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in modules("viz")]
    loaded = loaded_by("import " + ", ".join(names))
    assert "viz" in loaded
    assert not loaded & {"torch", "transformers", "triton"}


def test_the_kernels_load_without_the_engine():
    assert not loaded_by("import kernels.reference") & {"engine", "viz", "gradio", "transformers"}
