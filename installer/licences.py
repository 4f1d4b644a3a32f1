"""Write the licences of all third-party parts to a file in the frozen program, for the About box.

    python installer/licences.py FROZEN     (with the build environment's Python)

The file is JSON: {"parts": [{"name", "version", "licence", "texts": [[title, key], ...], "files": [...]}, ...],
"texts": {key: text}}. Only libraries under the LGPL have `files`, because a user may replace these files.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import parts

LICENCES_FILE: Final = "_internal/fieldray/_data/licences/licences.json"


def licence_table(found: Iterable[parts.Part]) -> dict[str, Any]:
    """Return the content of the licence file for the parts `found`. A text that several parts have is stored once."""
    texts: dict[str, str] = {}
    rows = []
    for part in found:
        titles = []
        for title, text in part.texts.items():
            key = hashlib.sha256(text.encode()).hexdigest()[:16]
            texts[key] = text
            titles.append([title, key])
        files = list(part.files) if part.licence.startswith("LGPL") else []
        rows.append(
            {"name": part.name, "version": part.version, "licence": part.licence, "texts": titles, "files": files}
        )
    return {"parts": rows, "texts": texts}


def write_licences(frozen: Path) -> Path:
    """Write the licence file of a frozen program. Returns the path of the file.

    Raises ValueError for a library of unknown origin, or a part without a licence.
    """
    path = frozen / LICENCES_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(licence_table(parts.list_parts(frozen)), ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{write_licences(Path(sys.argv[1]))}\n")
