"""The parts of a report for people, as values that console, HTML and PDF lay out.

A document is a list of blocks; the page of an image has its own layout. The modules `wording`, `audit` and `bench` make
the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from fieldray.domain.finding import Category, Finding, Outcome, Screened, leading_finding, position_on_scale
from fieldray.domain.model import Manifest
from fieldray.formatting import (
    decision_sentence,
    label_meaning,
    measured_sentence,
    point_sentence,
    score_text,
    threshold_text,
)
from fieldray.plain_text import visible
from fieldray.reports.performance import MeasuredPerformance, performance_of
from fieldray.translation import Translator

_UNKNOWN: Final = re.compile("\N{REPLACEMENT CHARACTER}(?:[\N{REPLACEMENT CHARACTER}\\s]*\N{REPLACEMENT CHARACTER})?")
MAX_LETTERS: Final = 300  # of one value; a note may be longer


@dataclass(frozen=True, slots=True)
class Field:
    """A line of a document, with a label and a value."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The positions for drawing a score on a scale. Each is a share of the scale's length, from 0 (left) to 1 (right).

    low, high  ends of the unsure zone, around the threshold in the middle; None without an operating point
    """

    mark: float
    low: float | None = None
    high: float | None = None
    threshold: str = ""
    ends: tuple[str, str] = ("0", "1")
    unsure: str = ""
    spoken: str = ""


def _scale(translator: Translator, finding: Finding) -> Scale:
    text, point, score = translator.text, finding.point, score_text(translator, finding.score, finding.point)
    if point is None:
        return Scale(mark=finding.score, spoken=text("Score {score}", score=score))
    threshold = threshold_text(translator, finding)
    return Scale(
        mark=position_on_scale(finding.score, point.threshold),
        low=position_on_scale(point.unsure_low, point.threshold),
        high=position_on_scale(point.unsure_high, point.threshold),
        threshold=threshold,
        ends=(text("not flagged"), text("flagged")),
        unsure=text("uncertain") if point.unsure_low < point.unsure_high else "",
        spoken=text("Score {score}. Threshold of the operating point: {threshold}.", score=score, threshold=threshold),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingText:
    """The texts on one finding of a pack.

    sentence     the meaning of the decision, as a statement about the pack and not about the patient
    whole        one sentence with the finding, the score, the threshold and the decision
    point        the operating point in use, "" without one
    measured     the sensitivity and specificity measured at the point, with intervals
    performance  how many of 100 images with the finding, and of 100 without it, are in each class
    """

    meaning: str
    score: str
    sentence: str
    whole: str
    scale: Scale
    point: str = ""
    measured: str = ""
    performance: MeasuredPerformance | None = None


def _whole_sentence(translator: Translator, finding: Finding, manifest: Manifest | None) -> str:
    """Return the label, the score and the pack's conclusion as sentences."""
    values = {
        "meaning": label_meaning(translator, finding.label, manifest),
        "score": score_text(translator, finding.score, finding.point),
        "threshold": threshold_text(translator, finding),
    }
    said = (
        translator.text("{meaning}: score {score}, threshold {threshold}.", **values)
        if finding.point
        else translator.text("{meaning}: score {score}.", **values)
    )
    return f"{said} {decision_sentence(translator, finding)}"


def finding_texts(translator: Translator, outcome: Outcome, manifest: Manifest | None) -> tuple[FindingText, ...]:
    """Return the texts on each finding for window and documents, the deciding finding first.

    manifest  manifest of the pack; None if it is not available

    The result is empty for an outcome without findings.
    """
    findings, leading = outcome.findings if isinstance(outcome, Screened) else (), leading_finding(outcome)
    return tuple(
        FindingText(
            meaning=label_meaning(translator, found.label, manifest),
            score=score_text(translator, found.score, found.point),
            sentence=decision_sentence(translator, found),
            whole=_whole_sentence(translator, found, manifest),
            scale=_scale(translator, found),
            point=point_sentence(translator, found.point, threshold_text(translator, found)) if found.point else "",
            measured=measured_sentence(translator, found.point) if found.point else "",
            performance=performance_of(translator, manifest, found.point, outcome.category),
        )
        for found in sorted(findings, key=lambda found: found is not leading)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageText:
    """The texts on one image for documents and captures.

    why      the reason to read the image before all others, or ""
    remarks  notes on a screened image, or the reasons why it was not screened
    priors   for each prior image compared with it: the images compared, and the result
    verdict  the reader's verdict, or that none was given, and the note if there is one
    caption  caption under the image
    spoken   description for screen readers
    """

    title: str
    category: Category
    word: str
    person: str
    patient_fields: tuple[Field, ...]
    image_fields: tuple[Field, ...]
    why: str
    findings: tuple[FindingText, ...]
    remarks: tuple[str, ...]
    verdict: tuple[Field, ...]
    priors: tuple[Field, ...]
    caption: str
    spoken: str


# ---- blocks, of which a document is made


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A block of a document: one paragraph.

    role      a heading, the notice *research use only*, the number of images of a class, the first sentences of a
              section, or plain text
    category  the class whose number of images is stated; None for other paragraphs
    """

    text: str
    role: Literal["heading", "notice", "count", "lead", "plain"] = "plain"
    category: Category | None = None


@dataclass(frozen=True, slots=True)
class Fields:
    """A block of a document: lines with label and value under a title, which may be empty."""

    title: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Points:
    """A block of a document: a list of sentences under a title."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A block of a document: a table of texts. Each of `rows` is as long as `columns`; the first column names the row.

    widths      widths of the columns on paper, in mm
    categories  for a table of images: for each row the classes of its image, which give the fifth and later columns
                their colours
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    widths: tuple[float, ...] = ()
    categories: tuple[tuple[Category, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.title}: a row does not fit the columns")


Block = Paragraph | Fields | Points | Table | MeasuredPerformance


def console_lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the blocks of a document as lines of text for a console."""
    for block in blocks:
        if isinstance(block, Paragraph):
            yield block.text
            continue
        yield from ("", *([block.title] if block.title else []))
        if isinstance(block, Table):
            yield from _columns(block)
        elif isinstance(block, Fields):
            yield from (f"  {field.label:<18} {field.text}" for field in block.fields)
        else:
            yield from (f"  - {sentence}" for sentence in block.sentences)


def _columns(table: Table) -> Iterator[str]:
    cells = [[visible(cell) for cell in row] for row in (table.columns, *table.rows)]
    wide = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    for row in cells:
        others = (cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))
        yield "  " + "  ".join((row[0].ljust(wide[0]), *others)).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChart:
    """A chart whose axes go from 0 to 1, with a line or with marks.

    titles  titles of the chart, the x axis and the y axis
    line    the points (x, y) of the line
    marks   the marks: x, y, and the lower and upper end of the interval of y
    """

    titles: tuple[str, str, str]
    line: tuple[tuple[float, float], ...] = ()
    marks: tuple[tuple[float, float, float, float], ...] = ()


def shorten(text: str, *, most: int = MAX_LETTERS) -> str:
    """Return a text as one line of at most `most` visible characters."""
    shown = visible(text[:most])
    return shown if len(text) <= most and len(shown) <= most else shown[: most - 1] + "…"


def without_undecoded(text: str, translator: Translator) -> str:
    """Return a text with *[not readable]*, in the reader's language, in place of undecodable letters (U+FFFD)."""
    return _UNKNOWN.sub(translator.text("[not readable]"), text)


def shorten_path(path: str, *, most: int = MAX_LETTERS) -> str:
    """Return a path, cut at its beginning to at most `most` letters, because its end is more informative."""
    shown = visible(path[-most:])
    return shown if len(path) <= most and len(shown) <= most else "…" + shown[1 - most :]
