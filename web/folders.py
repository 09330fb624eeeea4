"""Folders that libraries write to, moved where the home folder cannot be written (a container that is read only)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

CACHES = {
    "TRITON_CACHE_DIR": ".triton",
    "TORCHINDUCTOR_CACHE_DIR": ".cache/torchinductor",
    "MPLCONFIGDIR": ".config/matplotlib",
}
"""Variable -> the folder in the home that the library takes without it."""


def use_writable_folders() -> None:
    """Points libraries to the temporary folder for whatever they could not write. Variables that are set stay as they are."""
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry for this user
        home = None
    spare = _own_folder()
    if home is None:
        os.environ.setdefault("HOME", str(spare))
    for variable, folder in CACHES.items():
        if variable not in os.environ and (home is None or not can_write(home / folder)):
            os.environ[variable] = str(spare / Path(folder).name.lstrip("."))
    if "HF_HOME" not in os.environ and home is not None:
        hub = home / ".cache" / "huggingface"
        if not hub.exists() and not can_write(hub):  # one that exists may hold models, read only or not
            os.environ["HF_HOME"] = str(spare / "huggingface")


def _own_folder() -> Path:
    """In the temporary folder, and nobody else's: compiled kernels are loaded from it."""
    user = os.getuid() if hasattr(os, "getuid") else None
    folder = Path(tempfile.gettempdir()) / f"pagewalk-{'user' if user is None else user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        planted = user is not None and (folder.is_symlink() or folder.stat().st_uid != user)
    except OSError:
        planted = True
    return Path(tempfile.mkdtemp(prefix="pagewalk-")) if planted else folder


def can_write(folder: Path) -> bool:
    """Whether a file can be made in this folder, or in the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
