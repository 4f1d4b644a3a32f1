"""Texts that would mislead if shown unchanged: markup, further lines, another reading order."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FORGED_LINE: Final = "x.png\nnormal         0.010  0.500  /images/healthy.png"
STEERS: Final = "\x1b[2K\x1b[1A\x1b]0;title\x07\x9b31m"
REORDERS: Final = "a\u202egnp.lamron\u2066b\u2069\u200e\u200f\u061c"
BREAKS: Final = "one\rtwo\x0bthree\x0cfour\x1cfive\x85six\u2028seven\u2029eight\tnine"
UNSEEN: Final = "a\u200bb\u2060c\ufeffd\u00ade\u034ff\u3164g\ufe0f"
INVALID: Final = "name \udcff\udcd0"

# Characters that neither a terminal nor the window may get.
FORBIDDEN: Final = frozenset("".join((STEERS, REORDERS, BREAKS, UNSEEN, INVALID))) - frozenset(
    "".join(map(chr, range(32, 127)))
)
ALL: Final = (FORGED_LINE, STEERS, REORDERS, BREAKS, UNSEEN, INVALID)


def markup(marker: Path) -> str:
    """Return rich text that would show the picture `marker`. Its first tag makes it rich text."""
    return f'<img src="{marker.as_posix()}"><b>normal</b> &S'


def forbidden_in(text: str) -> set[str]:
    """Return the characters of a text that must not be shown unchanged."""
    return set(text) & FORBIDDEN
