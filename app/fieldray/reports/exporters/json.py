"""The JSON export: one document in UTF-8 with the facts of the run, and then every row.

Characters that hide or reorder text on a screen (controls, bidirectional marks) are escaped, because a person may open
the document in an editor or a terminal. A JSON parser restores these characters.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from fieldray.plain_text import is_visible_letter
from fieldray.reports.exporter import Exporter, StoredRun

_NOT_PLAIN: Final = re.compile("[^\\x20-\\x7e\\n]")
_BEGINNING: Final = re.compile(rb'\s*\{\s*"about"\s*:\s*\{[^{}]*"program"\s*:\s*"fieldray"')


def write_json(path: Path, stored: StoredRun) -> None:
    """Write a run as JSON: `{"about": {...}, "results": [...]}`. A result has the keys of `content.EXPORT_COLUMNS`.

    `"about"` describes the first pack of the run. A list `"other_packs"` after `"about"` describes further packs.
    Raises UsageProblem, StorageProblem.
    """
    from fieldray.reports.content import export_rows_of_run, run_export_facts
    from fieldray.reports.outputs import open_output

    about, *others = map(run_export_facts, stored.split_by_pack())
    with open_output(path, is_own_json, inputs=stored.screened_paths) as stream:
        stream.write('{"about": ' + _text(about, indent=1))
        if others:
            stream.write(',\n"other_packs": ' + _text(others, indent=1))
        stream.write(',\n"results": [')
        separator = "\n"
        for row in export_rows_of_run(stored):
            stream.write(separator + _text(row))
            separator = ",\n"
        stream.write("\n]}\n")


def _text(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON. Invisible characters, which occur only inside strings, are escaped."""
    written = json.dumps(value, ensure_ascii=False, indent=indent)
    return _NOT_PLAIN.sub(
        lambda found: found[0] if is_visible_letter(found[0]) else json.dumps(found[0])[1:-1], written
    )


def is_own_json(head: bytes) -> bool:
    """Return whether a file with the first bytes `head` is a document of this exporter."""
    return bool(_BEGINNING.match(head))


EXPORTER: Final = Exporter(name="json", suffix=".json", title="JSON", write=write_json, is_own_output=is_own_json)
