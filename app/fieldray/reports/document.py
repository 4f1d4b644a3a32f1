"""The parts of a report that a person reads, as values: the exporters only lay them out. `wording` fills them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fieldray.domain.finding import Category
from fieldray.plain_text import visible

MOST_LETTERS: Final = 300  # of one value; a note may be longer


@dataclass(frozen=True, slots=True)
class Field:
    """A line: what it is, and its value."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A score on its scale; every position is a share of the length, 0 left to 1 right.

    low, middle, high  from where the pack is not sure, the threshold, to where; None without an operating point
    """

    mark: float
    low: float | None = None
    middle: float | None = None
    high: float | None = None
    threshold: str = ""
    ends: tuple[str, str] = ("0", "1")
    unsure: str = ""
    spoken: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingText:
    """What the pack says about one of the things that it looks for.

    sentence  what the decision means, about the pack and not about the patient
    point     the operating point in use, empty without one
    measured  what was measured at it, with intervals
    classes   what the classes mean: how many of 100 images with the finding, and of 100 without it, are in each
    """

    meaning: str
    score: str
    sentence: str
    scale: Scale
    point: str = ""
    measured: str = ""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageText:
    """One image.

    why         why it is to be read before all others, "" where it is not
    remarks     what a person should know although the image was screened, or why it was not
    priors      for each prior image that it was compared with: what was compared, and what came of it
    caption     under the image
    spoken      what a screen reader says of the image
    """

    title: str
    category: Category
    word: str
    person: str
    patient: tuple[Field, ...]
    image: tuple[Field, ...]
    why: str
    findings: tuple[FindingText, ...]
    remarks: tuple[str, ...]
    verdict: tuple[Field, ...]
    priors: tuple[Field, ...]
    caption: str
    spoken: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunText:
    """The run: title, what it was, what came out, which pack and how good it is, and what everything is made of."""

    title: str
    notice: str
    run: tuple[Field, ...]
    counts: tuple[tuple[Category, str, int], ...]
    pack: tuple[Field, ...]
    points: tuple[FindingText, ...]
    provenance: tuple[Field, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableText:
    """A table: headings, the columns' widths on paper in mm, and rows with the class of the image each is about."""

    title: str
    headings: tuple[str, ...]
    widths: tuple[float, ...]
    rows: tuple[tuple[Category, tuple[str, ...]], ...]


def cut(text: str, *, most: int = MOST_LETTERS) -> str:
    """The text on one line, all of it to be seen, at most so many letters long."""
    shown = visible(text[:most])
    return shown if len(text) <= most and len(shown) <= most else shown[: most - 1] + "…"


def cut_path(path: str, *, most: int = MOST_LETTERS) -> str:
    """As `cut`, but with the end of the text, which says more of a path than its beginning."""
    shown = visible(path[-most:])
    return shown if len(path) <= most and len(shown) <= most else "…" + shown[1 - most :]
