"""Model cards: one Markdown file with a part for each language, English first, divided by lines as `<!-- uk -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fieldray.translation import SOURCE

_BEGIN: Final = re.compile(r"^<!-- ([a-z]{2,3}(?:-[A-Za-z0-9]+)*) -->\n", re.MULTILINE)


def parts(card: str) -> dict[str, str]:
    """The Markdown of each language (BCP 47) of a card; a card without such a line is English alone."""
    first, *others = _BEGIN.split(card)
    return {SOURCE: first, **dict(zip(others[::2], others[1::2], strict=True))}


def joined(parts: Mapping[str, str]) -> str:
    """A card of its parts; that in English needs no line before it. The inverse of `parts`."""
    return "".join(text if language == SOURCE else f"<!-- {language} -->\n{text}" for language, text in parts.items())
