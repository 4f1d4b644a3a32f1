"""A page of a report: one HTML text that needs nothing else to be read."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Final

from fieldray.reports.outputs import GENERATOR

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .8rem .25rem 0; text-align: left }
th { border-bottom: 1px solid #c9ced6; font-weight: 600 } svg { max-width: 100%; height: auto }
h2 { margin-top: 2.5rem }
.note { color: #8a3b00 } pre { background: #f4f5f7; padding: 1rem; overflow-x: auto; font-size: 12px }
"""


def page(title: str, parts: Sequence[str]) -> bytes:
    """The whole page from parts that are HTML already."""
    maker = f'<!doctype html><html lang="en"><meta charset="utf-8">{GENERATOR}'
    head = f"{maker}<title>{text(title)}</title><style>{_STYLE}</style>"
    return (head + "\n".join(parts) + "</html>\n").encode()


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; every cell is escaped."""
    cells = "".join(f"<th>{text(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>"


def text(value: object) -> str:
    """A value as escaped text, numbers with four digits."""
    return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
