"""Rules for single values of recipes that a type and a range do not express: languages, patterns, names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from fieldray.adaptation.tables import Key

_LANGUAGE: Final = re.compile(
    r"[A-Za-z]{2,3}(-[A-Za-z]{4})?(-([A-Za-z]{2}|\d{3}))?(-([A-Za-z\d]{5,8}|\d[A-Za-z\d]{3}))*"
)


_PACK_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


def texts_problem(texts: Mapping[str, str]) -> str | None:
    """What is wrong with a text by language: its keys are BCP 47 tags, one is `en`, and none is empty."""
    unknown = [tag for tag in texts if not _LANGUAGE.fullmatch(tag)]
    if unknown:
        return f"must have language tags (BCP 47, for example en, uk, pt-BR) as its keys, not {unknown[0]}"
    empty = [tag for tag, text in texts.items() if not text.strip()]
    if empty:
        return f"has no text in {empty[0]}"
    return None if "en" in texts else "needs the language en"


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with a regular expression that finds the patient in its first group."""
    try:
        return None if not pattern or re.compile(pattern).groups else "needs a group in (parentheses)"
    except re.error as error:
        return f"is no regular expression: {error}"


def pack_id_problem(name: str) -> str | None:
    """What is wrong with the id of a pack, which is also the name of a folder."""
    return None if _PACK_ID.fullmatch(name) else f"must be lower-case letters, digits and hyphens, not {name}"


Texts = Annotated[Mapping[str, str], Key(unit="text by language, en is needed", check=texts_problem)]
"""A text by language."""
