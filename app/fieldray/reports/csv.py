"""Results as a table for spreadsheets and scripts.

UTF-8 with a byte order mark, without which Excel takes Cyrillic file names for Latin ones; comma-separated, CRLF, a
header line, columns as in `content.COLUMNS` (new ones are only ever added at the end). Every row carries the notice.
A text that a spreadsheet would run as a formula (CWE-1236) gets an apostrophe in front.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fieldray.domain.run import RunSpec, StoredResult
from fieldray.reports.content import COLUMNS, Value, export_rows
from fieldray.reports.files import text_written_beside

_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(path: Path, results: Iterable[StoredResult], *, spec: RunSpec) -> None:
    """Write one row a finding, one row an image without any. Raises StorageProblem."""
    with text_written_beside(path, encoding="utf-8-sig") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for result in results:
            for row in export_rows(result, spec=spec):
                writer.writerow([harmless(value) for value in row.values()])


def harmless(value: Value) -> Value:
    """The value, with an apostrophe in front of a text that begins like a formula; numbers stay numbers."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return value
