#!/usr/bin/env bash
# Everything that must pass: style, types, tests. Installs what it needs. Arguments go to pytest.
# Two files of tests run side by side; WORKERS says how many, 0: one after the other.
#
#   scripts/test.sh
#   scripts/test.sh tests/kernels -k perturb
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

have_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null

make_venv
install_requirements test "$ROOT/requirements.txt" "$ROOT/requirements-dev.txt"
if ! have_chromium && ! apt_install chromium; then
    message="Chromium is missing, and the tests in tests/browser need it. On Debian or Ubuntu: sudo apt-get install chromium"
    [[ -z "${CI:-}" ]] || fail "$message"
    say "$message"
fi

cd "$ROOT"
say "ruff"
"$VENV/bin/python" -m ruff check .
"$VENV/bin/python" -m ruff format --check .
say "mypy"
# Gradio writes a stub beside each component and does not follow the module's imports afterwards; mypy would believe it.
rm -f "$ROOT"/viz/*.pyi "$ROOT"/viz/*/*.pyi
"$VENV/bin/python" -m mypy
say "pytest"
"$VENV/bin/python" -m pytest -q -n "${WORKERS:-2}" --dist loadfile "$@" </dev/null
