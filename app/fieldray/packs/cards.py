"""Model cards: one Markdown file with a part for each language.

The English part comes first. Every other part begins with a line that names the language, such as `<!-- uk -->`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fieldray.translation import ENGLISH

_BEGIN: Final = re.compile(r"^<!-- ([a-z]{2,3}(?:-[A-Za-z0-9]+)*) -->\n", re.MULTILINE)


def split_card_by_language(card: str) -> dict[str, str]:
    """Split a model card into the Markdown text of each language (BCP 47).

    A card without language lines is entirely English.
    """
    first, *others = _BEGIN.split(card)
    return {ENGLISH: first, **dict(zip(others[::2], others[1::2], strict=True))}


def join_card_languages(parts: Mapping[str, str]) -> str:
    """Join the Markdown texts of each language to one model card: the inverse of `split_card_by_language`.

    The English text has no language line and must come first.
    """
    return "".join(text if language == ENGLISH else f"<!-- {language} -->\n{text}" for language, text in parts.items())
