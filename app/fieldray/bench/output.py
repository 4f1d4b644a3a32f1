"""A report on the console and in files: JSON, one HTML page, and each chart as SVG and, where possible, PNG."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from fieldray.bench.chart import svg
from fieldray.bench.page import page
from fieldray.bench.picture import can_draw, png
from fieldray.bench.report import Chart, Points, Report, Table
from fieldray.plain_text import visible
from fieldray.reports.outputs import Kind, own_text, write_own


def lines(report: Report) -> Iterator[str]:
    """The report for a console; charts are left to the files."""
    for block in report.blocks:
        if isinstance(block, Table):
            yield from ("", block.title, *_columns(block))
        elif isinstance(block, Points):
            yield from ("", block.title, *(f"  - {sentence}" for sentence in block.sentences))


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write `<kind>.json`, `<kind>.html`, `<kind>-1.svg`, ... into a folder. Raises UsageProblem, StorageProblem."""
    facts = _when_and_where()
    texts = {
        f"{report.kind}.json": json.dumps({"report": report.kind, **facts, **report.data}, indent=1),
        f"{report.kind}.html": page(report, made=", ".join(map(str, facts.values()))),
    }
    charts = [block for block in report.blocks if isinstance(block, Chart)]
    texts |= {f"{report.kind}-{number}.svg": svg(chart) for number, chart in enumerate(charts, 1)}
    for name, text in texts.items():
        with own_text(folder / name, cast("Kind", name.rpartition(".")[2])) as stream:
            stream.write(text)
    pictures = {f"{report.kind}-{number}.png": chart for number, chart in enumerate(charts, 1) if can_draw()}
    for name, chart in pictures.items():
        write_own(folder / name, "png", png(chart))
    return tuple(folder / name for name in (*texts, *pictures))


def _when_and_where() -> dict[str, Any]:
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "program": f"fieldray {metadata.version('fieldray')}",
        "system": platform.platform(),
    }


def _columns(table: Table) -> Iterator[str]:
    cells = [[visible(cell) for cell in row] for row in (table.columns, *table.rows)]
    wide = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    for row in cells:
        others = (cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))
        yield "  " + "  ".join((row[0].ljust(wide[0]), *others)).rstrip()
