"""Texts that pass for something else where they are shown as they are: markup, further lines, another order."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FORGED_LINE: Final = "x.png\nnormal         0.010  0.500  /images/healthy.png"
STEERS: Final = "\x1b[2K\x1b[1A\x1b]0;title\x07\x9b31m"
REORDERS: Final = "a\u202egnp.lamron\u2066b\u2069\u200e\u200f\u061c"
BREAKS: Final = "one\rtwo\x0bthree\x0cfour\x1cfive\x85six\u2028seven\u2029eight\tnine"
UNSEEN: Final = "a\u200bb\u2060c\ufeffd\u00ade\u034ff\u3164g\ufe0f"
INVALID: Final = "name \udcff\udcd0"

# What must reach neither a terminal nor the window.
FORBIDDEN: Final = frozenset("".join((STEERS, REORDERS, BREAKS, UNSEEN, INVALID))) - frozenset(
    "".join(map(chr, range(32, 127)))
)
ALL: Final = (FORGED_LINE, STEERS, REORDERS, BREAKS, UNSEEN, INVALID)


def markup(marker: Path) -> str:
    """Rich text that would draw the picture `marker`, and is rich by its first tag."""
    return f'<img src="{marker.as_posix()}"><b>normal</b> &S'


def forbidden_in(text: str) -> set[str]:
    """The characters of `text` that must not be shown as they are."""
    return set(text) & FORBIDDEN
