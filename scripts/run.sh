#!/usr/bin/env bash
# Start Pagewalk: makes .venv, installs into it once, and opens the page on http://127.0.0.1:7860.
#
#   scripts/run.sh             HOST and PORT change the address; other arguments go to app.py
#   scripts/run.sh --check     start on a free port, generate 8 tokens through the page's own API, print them, stop
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

make_venv
install_requirements run "$ROOT/requirements.txt"

if [[ "${1:-}" == --check ]]; then
    shift
    exec "$VENV/bin/python" "$ROOT/scripts/check.py" "$@"
fi

export HOST="${HOST:-127.0.0.1}" PORT="${PORT:-7860}"
export GRADIO_SERVER_NAME="$HOST" GRADIO_SERVER_PORT="$PORT"
say "Starting on http://$HOST:$PORT (the first start converts the model, about half a minute). Ctrl-C stops it."
exec "$VENV/bin/python" "$ROOT/app.py" "$@"
