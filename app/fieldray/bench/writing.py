"""A report on the console and in files: JSON, one HTML page, and each chart as SVG and, where possible, PNG."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fieldray.bench.chart import svg
from fieldray.bench.page import page
from fieldray.bench.picture import can_draw, write_png
from fieldray.bench.report import Chart, Points, Report, Table
from fieldray.errors import StorageProblem
from fieldray.plain_text import visible
from fieldray.reasons import reason
from fieldray.reports.files import text_written_beside


def lines(report: Report) -> Iterator[str]:
    """The report for a console; charts are left to the files."""
    for block in report.blocks:
        if isinstance(block, Table):
            yield from ("", block.title, *_columns(block))
        elif isinstance(block, Points):
            yield from ("", block.title, *(f"  - {sentence}" for sentence in block.sentences))


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write `<kind>.json`, `<kind>.html`, `<kind>-1.svg`, ... into a folder. Raises StorageProblem."""
    facts = _when_and_where()
    texts = {
        f"{report.kind}.json": json.dumps({"report": report.kind, **facts, **report.data}, indent=1),
        f"{report.kind}.html": page(report, made=", ".join(map(str, facts.values()))),
    }
    charts = [block for block in report.blocks if isinstance(block, Chart)]
    texts |= {f"{report.kind}-{number}.svg": svg(chart) for number, chart in enumerate(charts, 1)}
    for name, text in texts.items():
        with text_written_beside(folder / name, encoding="utf-8") as stream:
            stream.write(text)
    pictures = {f"{report.kind}-{number}.png": chart for number, chart in enumerate(charts, 1) if can_draw()}
    for name, chart in pictures.items():
        _draw(chart, folder / name)
    return tuple(folder / name for name in (*texts, *pictures))


def _draw(chart: Chart, path: Path) -> None:
    try:
        write_png(chart, path)
    except OSError as error:
        raise StorageProblem(reason("not_writable", path=path, detail=error.strerror or error)) from error


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
