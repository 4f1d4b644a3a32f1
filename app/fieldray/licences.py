"""The licences of what others made and the installed program holds: collected when it was built, read here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fieldray.paths import licence_table


@dataclass(frozen=True, slots=True, kw_only=True)
class LicensedPart:
    """One part: its licence's name, the texts by title, and the libraries that may be replaced, where it is LGPL."""

    name: str
    version: str
    licence: str
    texts: Mapping[str, str]
    replaceable: tuple[str, ...]


def licensed_parts(table: Path | None = None) -> tuple[LicensedPart, ...]:
    """All parts by name; none where the program was not installed. Raises OSError or ValueError for a damaged table."""
    path = table or licence_table()
    if not path.is_file():
        return ()
    content = json.loads(path.read_text(encoding="utf-8"))
    texts: Mapping[str, str] = content["texts"]
    return tuple(
        LicensedPart(
            name=row["name"],
            version=row["version"],
            licence=row["licence"],
            texts={title: texts[key] for title, key in row["texts"]},
            replaceable=tuple(row["files"]),
        )
        for row in content["parts"]
    )
