"""Results as a table for spreadsheets and scripts.

UTF-8 with a byte order mark, without which Excel takes Cyrillic file names for Latin ones; comma-separated, CRLF, a
header line, columns as in `content.COLUMNS` (new ones are only ever added at the end). Every row carries the notice.

No text of the table may become a formula (CWE-1236), however the spreadsheet takes it apart: a Ukrainian Excel splits
at semicolons, others at tabs, and then quotes hold only the first field of a line together. So every field is quoted,
and an apostrophe is put in front of whatever a spreadsheet could take for the beginning of a formula: a sign of
`= + - @`, narrow or full-width, at the beginning of a text or after a separator (comma, semicolon, tab, bar, line
break), also behind spaces, invisible characters and quotes; and a text that begins with a tab or a line break. The
JSON export has every text as it is.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fieldray.domain.run import RunSpec, StoredResult
from fieldray.reports.content import COLUMNS, Value, export_rows
from fieldray.reports.outputs import own_text

_UNSEEN: Final = "\\s\\x00-\\x20\\x7f-\\xa0\\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_QUOTES: Final = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_SIGNS: Final = "=+\\-@\uff1d\uff0b\uff0d\uff20\u2212\ufe62\ufe63\ufe66\ufe6b"
_FORMULA: Final = re.compile(
    f"(?:^|(?<=[,;\\t|\\r\\n\\v\\f\\x1c-\\x1e\x85\u2028\u2029]))(?=[{_UNSEEN}{_QUOTES}]*[{_SIGNS}])"
)
_BREAK: Final = re.compile("^(?=[\\t\\r\\n])")


def write_csv(path: Path, results: Iterable[StoredResult], *, spec: RunSpec) -> None:
    """Write one row a finding, one row per image without any. Raises UsageProblem as `require_free`, StorageProblem."""
    with own_text(path, "csv", encoding="utf-8-sig", inputs=tuple(map(Path, spec.paths))) as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerow(COLUMNS)
        for result in results:
            for row in export_rows(result, spec=spec):
                writer.writerow([harmless(value) for value in row.values()])


def harmless(value: Value) -> Value:
    """The value; a text with an apostrophe wherever a formula could begin (see the module). Numbers stay numbers."""
    if not isinstance(value, str):
        return value
    guarded = _FORMULA.sub("'", value)
    return guarded if guarded.startswith("'") else _BREAK.sub("'", guarded)
