"""A report as one HTML page that needs nothing else to be read: sections of tables, figures and text.

The reports say what is in them; how it looks, on a screen and on paper, is in templates/report.html alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fieldray.paths import VERSION
from fieldray.reports.outputs import GENERATOR

_NUMBER: Final = re.compile(r"[-+]?[\d,]+(\.\d+)?( ?%| ms| s| MiB)?")
_NOTHING: Final = ("", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows below a head. The first cell of a row names it; columns of numbers are set right."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    caption: str = ""
    kind: str = "table"

    @property
    def numbers(self) -> frozenset[int]:
        """The columns, from 0, that hold nothing but numbers."""
        columns = list(zip(*self.rows, strict=True))[1:]
        return frozenset(index for index, cells in enumerate(columns, start=1) if _are_numbers(cells))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot as SVG text, and what it shows."""

    svg: str
    caption: str
    kind: str = "figure"

    def __post_init__(self) -> None:
        object.__setattr__(self, "svg", Markup(self.svg))


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Code:
    """A text as it was written, for example a recipe."""

    text: str
    kind: str = "code"


Part = Table | Figure | Text | Code


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What stands under one heading."""

    title: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        """Its name in links."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole page. `lead` says in a few sentences what it is about."""

    title: str
    sections: Sequence[Section]
    lead: str = ""


def page(report: Report) -> bytes:
    """The page as HTML; sections without parts are left out."""
    environment = Environment(
        loader=PackageLoader("fieldray_adapt"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    kept = Report(title=report.title, lead=report.lead, sections=[own for own in report.sections if own.parts])
    context = {
        "report": kept,
        "generator": Markup(GENERATOR),
        "version": VERSION,
        "number": lambda is_number: Markup(' class="number"') if is_number else "",
    }
    return environment.get_template("report.html").render(context).encode()


def facts(rows: Mapping[str, Any], *, caption: str = "") -> Table:
    """A table of names and values."""
    return Table(rows=[[name, told_value(value)] for name, value in rows.items()], caption=caption)


def settings(document: Mapping[str, Any]) -> list[Part]:
    """A nested document, for example what a training was decided by, as one table per group."""
    own = {name: value for name, value in document.items() if not _is_group(value)}
    parts: list[Part] = [facts({_spoken(name): value for name, value in own.items()})] if own else []
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            parts.append(facts({_spoken(key): item for key, item in value.items()}, caption=_spoken(name)))
        elif _is_group(value):
            head = list(dict.fromkeys(key for item in value for key in item))
            rows = [[told_value(item.get(key)) for key in head] for item in value]
            parts.append(Table(rows=rows, head=[_spoken(key) for key in head], caption=_spoken(name)))
    return parts


def told_value(value: Any) -> str:
    """A value for a person: no brackets, no None, four digits."""
    if value is None or value in ((), [], {}, ""):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_spoken(str(key))} {told_value(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(told_value(item) for item in value)
    return str(value)


def told_seconds(seconds: float) -> str:
    """A time for a person, for example `1 h 02 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _is_group(value: Any) -> bool:
    is_rows = isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)
    return is_rows or (isinstance(value, Mapping) and bool(value))


def _are_numbers(cells: Sequence[str]) -> bool:
    known = [cell for cell in cells if cell not in _NOTHING]
    return bool(known) and all(_NUMBER.fullmatch(cell) for cell in known)
