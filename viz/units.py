"""Numbers for reading: bytes in their unit, things counted."""

from __future__ import annotations


def bytes_text(num: float) -> str:
    """A number of bytes in units of 1,024, with about three digits."""
    value, unit = float(num), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    digits = 0 if unit == "B" or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def count(num: int, thing: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{num:,} {thing}{'' if num == 1 else 's'}"
