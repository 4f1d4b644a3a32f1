"""Whether a file that is no image was written by this program, by its content.

Results are often kept beside the images, and the next run meets them there.
"""

from __future__ import annotations

import csv
import json
import re
from typing import Final

from fieldray.reports.content import COLUMNS

# A table has at least these, whatever a later version adds; a line of `--json` has at least those.
_FIRST_COLUMNS: Final = COLUMNS[:3]
_ITS_COLUMNS: Final = frozenset({"status", "score", "decision", "model_sha256", "content_sha256", "notice"})
_ITS_KEYS: Final = frozenset({"path", "study", "image", "status", "reason_code", "pack", "model_sha256", "decode_ms"})
_DOCUMENT: Final = re.compile(r'\s*\{\s*"about"\s*:\s*\{[^{}]*"program"\s*:\s*"fieldray"')


def is_own_report(head: bytes) -> bool:
    """Whether a file that begins so (its first kilobytes) is a result table, document or list of lines of ours.

    Also when a spreadsheet saved the table again with another separator.
    """
    text = head.decode("utf-8-sig", "replace")
    first_line = text.partition("\n")[0].rstrip("\r")
    return _is_table(first_line) or bool(_DOCUMENT.match(text)) or _is_json_line(first_line)


def _is_table(line: str) -> bool:
    for separator in ",;\t":
        try:
            columns = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:  # a carriage return in the middle of the line, as in any file of bytes
            return False
        if tuple(columns[:3]) == _FIRST_COLUMNS and set(columns) >= _ITS_COLUMNS:
            return True
    return False


def _is_json_line(line: str) -> bool:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and set(document) >= _ITS_KEYS
