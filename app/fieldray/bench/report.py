"""The content of a report, laid out once: console and JSON are made from it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fieldray.paths import VERSION
from fieldray.reports import document
from fieldray.reports.document import Points, Table
from fieldray.reports.outputs import own_text

__all__ = ["Points", "Table"]


Block = Points | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`kind` names the file; `data` goes into the JSON file, after when and where."""

    kind: str
    title: str
    blocks: tuple[Block, ...]
    data: Mapping[str, Any]


def lines(report: Report) -> Iterator[str]:
    """The report for a console."""
    return document.lines(report.blocks)


def write(report: Report, folder: Path) -> Path:
    """Write `<kind>.json` into a folder. Raises UsageProblem, StorageProblem."""
    path = folder / f"{report.kind}.json"
    with own_text(path, "json") as stream:
        stream.write(json.dumps({"report": report.kind, **when_and_where(), **report.data}, indent=1))
    return path


def when_and_where() -> dict[str, Any]:
    """The time, the program and the system, as every report's JSON file begins."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "program": f"fieldray {VERSION}",
        "system": platform.platform(),
    }
