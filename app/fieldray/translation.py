"""English texts are the keys; another language is a JSON table from English to its own words.

`translate("Open folder")` gives the text in the chosen language, English where the table has no entry.
A test holds every table complete. Texts with numbers avoid plural forms ("Images: 5").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal

from fieldray.paths import asset
from fieldray.reasons import TEMPLATES, Reason

Language = Literal["en", "uk"]
LANGUAGES: Final[Mapping[Language, str]] = {"en": "English", "uk": "Українська"}


class Translator:
    """One language's texts."""

    def __init__(self, language: Language = "en") -> None:
        self.language: Language = language
        self._table: Mapping[str, str] = _load(language)

    def text(self, english: str, **parameters: object) -> str:
        """The text in this language, with `{name}` fields filled in."""
        template = self._table.get(english, english)
        return template.format(**parameters) if parameters else template

    def reason(self, why: Reason) -> str:
        """A reason's sentence in this language; a detail that is a phrase of ours is translated too."""
        return self.text(TEMPLATES[why.code], **{name: self.text(value) for name, value in why.parameters})

    def pick(self, texts: Mapping[str, str]) -> str:
        """The text of a pack in this language, English if it has none."""
        return texts.get(self.language) or texts.get("en", "")


def _load(language: Language) -> Mapping[str, str]:
    if language == "en":
        return {}
    table: dict[str, str] = json.loads(asset(f"translations/{language}.json").read_text(encoding="utf-8"))
    return table
