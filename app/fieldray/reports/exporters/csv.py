"""The CSV export: results as a table for spreadsheets and scripts.

The encoding is UTF-8 with a byte order mark, without which Excel misreads Cyrillic file names. Commas separate columns,
and CRLF separates lines. On request semicolons separate columns and numbers have decimal commas, as Excel expects in
Ukraine and other countries. The columns are `content.EXPORT_COLUMNS`; new columns are added only at the end. Every row
has the notice *research use only*.

No text may become a formula in a spreadsheet (CWE-1236), however the spreadsheet splits lines. A Ukrainian Excel splits
at semicolons, others at tabs, and then quotes protect only the first field of a line. So every field is quoted, and an
apostrophe is put before every character that could begin a formula. Such characters are `= + - @`, narrow or
full-width, at the start of a text or after a separator (comma, semicolon, tab, bar, line break), even behind spaces,
invisible characters and quotes. A text that starts with a tab or a line break gets an apostrophe, too. The JSON export
has every text unchanged.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from fieldray.reports.exporter import Exporter, StoredRun

if TYPE_CHECKING:
    from fieldray.reports.content import Value

# Beginnings of tables that this or another version wrote. A spreadsheet that saves such a table leaves out the quotes.
_FIRST: Final = ('"path"', '"study"', '"image"', '"study_date"', '"view"')
_STARTS: Final = tuple(f"\ufeff{between.join(_FIRST)}{between}".encode() for between in ",;")
_UNSEEN: Final = "\\s\\x00-\\x20\\x7f-\\xa0\\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_QUOTES: Final = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_SIGNS: Final = "=+\\-@\uff1d\uff0b\uff0d\uff20\u2212\ufe62\ufe63\ufe66\ufe6b"
_FORMULA: Final = re.compile(
    f"(?:^|(?<=[,;\\t|\\r\\n\\v\\f\\x1c-\\x1e\x85\u2028\u2029]))(?=[{_UNSEEN}{_QUOTES}]*[{_SIGNS}])"
)
_BREAK: Final = re.compile("^(?=[\\t\\r\\n])")


def write_csv(path: Path, stored: StoredRun) -> None:
    """Write a run as CSV: one row for each finding, and one row for each image without findings.

    Raises UsageProblem, StorageProblem.
    """
    from fieldray.reports.content import EXPORT_COLUMNS, export_rows_of_run
    from fieldray.reports.outputs import open_output

    with open_output(path, is_own_csv, encoding="utf-8-sig", inputs=stored.screened_paths) as stream:
        write_rows(stream, EXPORT_COLUMNS, export_rows_of_run(stored), decimal_comma=stored.options.uses_decimal_comma)


def write_rows(
    stream: TextIO, columns: Iterable[str], rows: Iterable[Mapping[str, Value]], *, decimal_comma: bool
) -> None:
    """Write a table as CSV with a header line.

    columns        names of the columns
    rows           values of each row by column name
    decimal_comma  whether numbers have decimal commas, and semicolons separate the columns
    """
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, delimiter=";" if decimal_comma else ",")
    writer.writerow(columns)
    for row in rows:
        values = map(escape_formula, row.values())
        writer.writerow(
            repr(value).replace(".", ",") if decimal_comma and isinstance(value, float) else value for value in values
        )


def is_own_csv(head: bytes) -> bool:
    """Return whether a file with the first bytes `head` is a table of this exporter that no person has extended."""
    return head.startswith(_STARTS)


def escape_formula(value: Value) -> Value:
    """Return a text with an apostrophe before every part that a spreadsheet would take for a formula.

    A value that is no text is returned unchanged.
    """
    if not isinstance(value, str):
        return value
    guarded = _FORMULA.sub("'", value)
    return guarded if guarded.startswith("'") else _BREAK.sub("'", guarded)


EXPORTER: Final = Exporter(name="csv", suffix=".csv", title="CSV", write=write_csv, is_own_output=is_own_csv)
