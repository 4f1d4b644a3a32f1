"""A report as one HTML page that needs nothing from outside."""

from __future__ import annotations

from html import escape
from typing import Final

from fieldray.bench.chart import svg
from fieldray.bench.report import Block, Chart, Points, Report, Table
from fieldray.reports.content import NOTICE
from fieldray.reports.outputs import GENERATOR

_STYLE: Final = """
body { font: 15px/1.5 sans-serif; color: #222; background: #fff; max-width: 1100px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: .5em 0 1.5em; font-variant-numeric: tabular-nums }
th, td { border: 1px solid #ccc; padding: .25em .6em; text-align: right }
th:first-child, td:first-child { text-align: left }
th { background: #f2f2f2 }
svg { max-width: 760px; width: 100%; height: auto }
.notice { color: #8a1c00; font-weight: bold }
"""


def page(report: Report, *, made: str) -> str:
    """The whole HTML text; `made` says when and where."""
    title = escape(report.title)
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            f'<head><meta charset="utf-8">{GENERATOR}<title>{title}</title><style>{_STYLE}</style></head>',
            f"<body><h1>{title}</h1>",
            f'<p class="notice">{NOTICE}</p>',
            f"<p>{escape(made)}</p>",
            *(_block(block) for block in report.blocks),
            "</body></html>",
            "",
        )
    )


def _block(block: Block) -> str:
    head = f"<h2>{escape(block.title)}</h2>"
    if isinstance(block, Chart):
        return f"{head}\n<figure>{svg(block)}</figure>"
    if isinstance(block, Points):
        return head + "\n<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in block.sentences) + "</ul>"
    return f"{head}\n{_table(block)}"


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows)
    return f"<table><tr>{heads}</tr>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
