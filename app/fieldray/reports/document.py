"""The parts of a report for people, as values without layout. Console, HTML and PDF display these parts.

A document is a list of blocks. Only the page of an image is not made of blocks. The modules `wording`, `audit` and
`bench` make the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from fieldray.domain.finding import Category, Finding, Outcome, ScreenedOutcome, leading_finding, position_on_scale
from fieldray.domain.model import Manifest
from fieldray.formatting import (
    decision_sentence,
    label_meaning,
    operating_point_sentence,
    performance_sentence,
    score_text,
    threshold_text,
)
from fieldray.plain_text import escape_invisible_characters
from fieldray.reports.performance import MeasuredPerformance, class_performance
from fieldray.translation import Translator

_UNKNOWN: Final = re.compile("\N{REPLACEMENT CHARACTER}(?:[\N{REPLACEMENT CHARACTER}\\s]*\N{REPLACEMENT CHARACTER})?")
MAX_VALUE_LETTERS: Final = 300  # maximum length of a value; a note may be longer


@dataclass(frozen=True, slots=True)
class Field:
    """A line of a document: a label and a value."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreScale:
    """The positions and texts for drawing a score on a scale. A position is a share of the length: 0 left, 1 right.

    score_position        position of the score
    zone_start, zone_end  ends of the uncertain zone; None without an operating point
    threshold_label       text of the threshold, which lies in the middle; "" without an operating point
    end_labels            texts at the left and the right end
    zone_label            text above the uncertain zone; "" without a zone
    alt_text              description for screen readers
    """

    score_position: float
    zone_start: float | None = None
    zone_end: float | None = None
    threshold_label: str = ""
    end_labels: tuple[str, str] = ("0", "1")
    zone_label: str = ""
    alt_text: str = ""


def _scale(translator: Translator, finding: Finding) -> ScoreScale:
    text, point, score = translator.text, finding.point, score_text(translator, finding.score, finding.point)
    if point is None:
        return ScoreScale(score_position=finding.score, alt_text=text("Score {score}", score=score))
    threshold = threshold_text(translator, finding)
    return ScoreScale(
        score_position=position_on_scale(finding.score, point.threshold),
        zone_start=position_on_scale(point.unsure_low, point.threshold),
        zone_end=position_on_scale(point.unsure_high, point.threshold),
        threshold_label=threshold,
        end_labels=(text("not flagged"), text("flagged")),
        zone_label=text("uncertain") if point.unsure_low < point.unsure_high else "",
        alt_text=text(
            "Score {score}. Threshold of the operating point: {threshold}.", score=score, threshold=threshold
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingText:
    """The texts on one finding of a pack.

    label_meaning             meaning of the label
    score                     the score as text
    decision_sentence         meaning of the decision, as a statement about the pack and not about the patient
    summary                   sentences with label, score, threshold and decision
    scale                     positions for drawing the score
    operating_point_sentence  the operating point in use; "" without one
    performance_sentence      sensitivity and specificity measured at the operating point, with intervals
    performance               how many of 100 images with the finding, and of 100 without the finding, are in each class
    """

    label_meaning: str
    score: str
    decision_sentence: str
    summary: str
    scale: ScoreScale
    operating_point_sentence: str = ""
    performance_sentence: str = ""
    performance: MeasuredPerformance | None = None


def _whole_sentence(translator: Translator, finding: Finding, manifest: Manifest | None) -> str:
    """Return sentences with the label of a finding, the score and the pack's decision.

    manifest  the manifest of the pack; None if the pack is not available
    """
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
    """Return the texts on each finding of an outcome, the finding that decides the class first. Empty without findings.

    manifest  the manifest of the pack; None if the pack is not available
    """
    findings, leading = outcome.findings if isinstance(outcome, ScreenedOutcome) else (), leading_finding(outcome)
    return tuple(
        FindingText(
            label_meaning=label_meaning(translator, found.label, manifest),
            score=score_text(translator, found.score, found.point),
            decision_sentence=decision_sentence(translator, found),
            summary=_whole_sentence(translator, found, manifest),
            scale=_scale(translator, found),
            operating_point_sentence=operating_point_sentence(
                translator, found.point, threshold_text(translator, found)
            )
            if found.point
            else "",
            performance_sentence=performance_sentence(translator, found.point) if found.point else "",
            performance=class_performance(translator, manifest, found.point, outcome.category),
        )
        for found in sorted(findings, key=lambda found: found is not leading)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageText:
    """The texts on one image for documents and captures.

    title                 name of the image
    category, class_name  class of the image, and the name of the class
    patient               the patient
    read_first_reason     the reason to read the image before all others; "" without one
    remarks               notes on a screened image, or the reasons why the image was not screened
    verdict_fields        the reader's verdict with the note, or a text that there is no verdict
    prior_fields          for each compared prior image: the two images, and the result of the comparison
    caption               caption below the image
    alt_text              description for screen readers
    """

    title: str
    category: Category
    class_name: str
    patient: str
    patient_fields: tuple[Field, ...]
    image_fields: tuple[Field, ...]
    read_first_reason: str
    findings: tuple[FindingText, ...]
    remarks: tuple[str, ...]
    verdict_fields: tuple[Field, ...]
    prior_fields: tuple[Field, ...]
    caption: str
    alt_text: str


# ---- blocks, of which a document is made


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A block of a document: one paragraph.

    role      "heading", "notice" (*research use only*), "count" (number of images in a class), "lead" (first sentences
              of a section), or "plain"
    category  for a "count", the class whose images are counted; else None
    """

    text: str
    role: Literal["heading", "notice", "count", "lead", "plain"] = "plain"
    category: Category | None = None


@dataclass(frozen=True, slots=True)
class FieldList:
    """A block of a document: lines with label and value, under a title. The title may be empty."""

    title: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class BulletList:
    """A block of a document: a list of sentences under a title."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A block of a document: a table of texts. The first column names the row.

    rows              the rows, each as long as `columns`
    column_widths_mm  widths of the columns on paper, in mm
    cell_categories   for each row, the classes of the row's image, one for each column from the fifth on. A PDF shows
                      such a cell in the colour of its class. Empty for a table without images
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    column_widths_mm: tuple[float, ...] = ()
    cell_categories: tuple[tuple[Category, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.title}: a row does not fit the columns")


Block = Paragraph | FieldList | BulletList | Table | MeasuredPerformance


def console_lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the blocks of a document as lines of text for a console."""
    for block in blocks:
        if isinstance(block, Paragraph):
            yield block.text
            continue
        yield from ("", *([block.title] if block.title else []))
        if isinstance(block, Table):
            yield from _columns(block)
        elif isinstance(block, FieldList):
            yield from (f"  {field.label:<18} {field.text}" for field in block.fields)
        else:
            yield from (f"  - {sentence}" for sentence in block.sentences)


def _columns(table: Table) -> Iterator[str]:
    cells = [[escape_invisible_characters(cell) for cell in row] for row in (table.columns, *table.rows)]
    wide = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    for row in cells:
        others = (cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))
        yield "  " + "  ".join((row[0].ljust(wide[0]), *others)).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChart:
    """A chart with two axes from 0 to 1, and a line or marks.

    chart_and_axis_titles  titles of the chart, the x axis and the y axis
    line                   the points (x, y) of the line
    marks_with_intervals   x and y of each mark, and the lower and upper end of the interval of y
    """

    chart_and_axis_titles: tuple[str, str, str]
    line: tuple[tuple[float, float], ...] = ()
    marks_with_intervals: tuple[tuple[float, float, float, float], ...] = ()


def shorten(text: str, *, max_letters: int = MAX_VALUE_LETTERS) -> str:
    """Return a text as one line with at most `max_letters` visible characters."""
    shown = escape_invisible_characters(text[:max_letters])
    return shown if len(text) <= max_letters and len(shown) <= max_letters else shown[: max_letters - 1] + "…"


def replace_undecoded_letters(text: str, translator: Translator) -> str:
    """Return a text in which *[not readable]*, translated, replaces letters that could not be decoded (U+FFFD)."""
    return _UNKNOWN.sub(translator.text("[not readable]"), text)


def shorten_path(path: str, *, max_letters: int = MAX_VALUE_LETTERS) -> str:
    """Return a path with at most `max_letters` letters. A longer path is cut at its beginning, because its end says
    more.
    """
    shown = escape_invisible_characters(path[-max_letters:])
    return shown if len(path) <= max_letters and len(shown) <= max_letters else "…" + shown[1 - max_letters :]
