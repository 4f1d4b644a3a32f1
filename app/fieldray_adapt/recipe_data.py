"""Tables that recipes share (labels, sources of images, the split, the profile), and rules for single values.

The rules are those that a type and a range do not express: languages, patterns, names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from fieldray_adapt.tables import Key, require, require_ranges

_LANGUAGE: Final = re.compile(
    r"[A-Za-z]{2,3}(-[A-Za-z]{4})?(-([A-Za-z]{2}|\d{3}))?(-([A-Za-z\d]{5,8}|\d[A-Za-z\d]{3}))*"
)


_PACK_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


def texts_problem(texts: Mapping[str, str]) -> str | None:
    """What is wrong with a text by language: its keys are BCP 47 tags, one is `en`, and none is empty."""
    unknown = [tag for tag in texts if not _LANGUAGE.fullmatch(tag)]
    if unknown:
        return f"must have language tags (BCP 47, for example en, uk, pt-BR) as its keys, not {unknown[0]}"
    empty = [tag for tag, text in texts.items() if not text.strip()]
    if empty:
        return f"has no text in {empty[0]}"
    return None if "en" in texts else "needs the language en"


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with a regular expression that finds the patient in its first group."""
    try:
        return None if not pattern or re.compile(pattern).groups else "needs a group in (parentheses)"
    except re.error as error:
        return f"is no regular expression: {error}"


def pack_id_problem(name: str) -> str | None:
    """What is wrong with the id of a pack, which is also the name of a folder."""
    return None if _PACK_ID.fullmatch(name) else f"must be lower-case letters, digits and hyphens, not {name}"


Texts = Annotated[Mapping[str, str], Key(unit="text by language, en is needed", check=texts_problem)]
"""A text by language."""


Layout = Literal["index", "csv", "folders", "chexpert", "nih"]
UncertainRule = Literal["positive", "negative", "unknown", "drop"]
SplitName = Literal["training", "validation", "test", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRule:
    """A label, and the classes of the data that mean it.

    An image is positive if it has a class of `positive`; negative if it has one of `negative` (or, where that is empty,
    any other class); else nothing is known of it, and it does not count.
    """

    code: Annotated[str, Key(doc="Short name of the label, without spaces.", example="pneumonia")]
    meaning: Annotated[Texts, Key(doc="The label for people; its code by default.")] = field(default_factory=dict)
    positive: Annotated[
        tuple[str, ...], Key(doc="Classes of the data that mean yes; the code by default.", example=["pneumonia"])
    ] = ()
    negative: Annotated[tuple[str, ...], Key(doc="Classes that mean no; all others by default.")] = ()
    scheme: Annotated[str, Key(doc="Coding scheme of the code, for example SCT for SNOMED CT.")] = "fieldray"
    auxiliary: Annotated[
        bool, Key(doc="Trained because it helps the other labels, and removed before the pack is made.")
    ] = False
    weight: Annotated[float, Key(doc="Of its loss, relative to the other labels.", above=0)] = 1.0
    column: Annotated[
        Literal["classes", "view", "sex", "age"],
        Key(doc="What decides; an auxiliary label may also be of the view, the sex or the age."),
    ] = "classes"
    above_years: Annotated[float | None, Key(doc="With column age: positive above this age.", unit="years")] = None

    def __post_init__(self) -> None:
        if not self.meaning:
            object.__setattr__(self, "meaning", {"en": self.code.replace("_", " ").capitalize()})
        if not self.positive and self.column == "classes":
            object.__setattr__(self, "positive", (self.code,))
        require_ranges(self)
        is_age, both = self.column == "age", sorted(set(self.positive) & set(self.negative))
        require(
            (bool(self.code.strip()), "code", "must not be empty"),
            (bool(self.positive) != is_age, "positive", "is needed for every column but age, and only there"),
            (is_age == (self.above_years is not None), "above_years", "belongs to the column age, which needs it"),
            (self.column == "classes" or self.auxiliary, "column", "may differ for auxiliary labels only"),
            (not both, "negative", f"holds classes that are positive too: {', '.join(both)}"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of labelled images."""

    path: Annotated[Path, Key(doc="The folder with one folder per class, or the CSV file.", example="images")]
    layout: Annotated[
        Layout, Key(doc="folders: a folder per class; csv: a table with columns of your own; or a published layout.")
    ] = "folders"
    name: Annotated[str, Key(doc="Training draws evenly within each name; the path's last part by default.")] = ""
    images: Annotated[Path | None, Key(doc="Folder that file names count from; the CSV file's own by default.")] = None
    where: Annotated[Mapping[str, tuple[str, ...]], Key(doc="Only rows whose columns have one of these values.")] = (
        field(default_factory=dict)
    )
    drop: Annotated[tuple[str, ...], Key(doc="Rows with one of these classes are left out.")] = ()
    columns: Annotated[
        Mapping[str, str],
        Key(doc="Layout csv: which column holds path, classes, patient, split, fold, view, age, sex."),
    ] = field(default_factory=dict)
    splits: Annotated[
        Mapping[str, SplitName], Key(doc="What values of the split column mean; other rows are left out.")
    ] = field(default_factory=dict)
    uncertain: Annotated[UncertainRule | None, Key(doc="Layout chexpert: what -1 means. It has to be said there.")] = (
        None
    )
    patient: Annotated[
        str,
        Key(
            doc="Layout folders: a regular expression whose first group, found in the file name, is the patient. "
            "Without it, each file counts as a patient of its own.",
            check=pattern_problem,
        ),
    ] = ""
    group: Annotated[
        str,
        Key(
            doc="With average_sources: sources of one group train one network. Of lung fields: the hospital, which "
            "`adapt cross` leaves out. The name by default."
        ),
    ] = ""
    share: Annotated[float, Key(doc="How often it is drawn, relative to the other sources.", low=0)] = 1.0
    evaluated: Annotated[
        bool, Key(doc="Whether results may be measured on it. Use a confounded source for training only.")
    ] = True

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.path.stem or "data")
        if not self.group:
            object.__setattr__(self, "group", self.name)
        require_ranges(self)
        wanted = "is needed for the layout chexpert: positive, negative, unknown or drop"
        require((self.layout != "chexpert" or self.uncertain is not None, "uncertain", wanted))


def whole(path: Path, base: Path) -> Path:
    """A path of a recipe in the folder `base`, without `..`: it is printed, kept in the run and pasted elsewhere."""
    return (base / path.expanduser()).resolve()


def rooted_source(source: Source, base: Path) -> Source:
    """A source with its paths made whole."""
    images = base / source.images if source.images else None
    return replace(source, path=base / source.path.expanduser(), images=images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which patients are trained on, and which are for validation and test."""

    by: Annotated[
        Literal["random", "column", "fold"],
        Key(
            doc="column: the source's own split column; fold: its fold column; random: each patient by a hash with the "
            "seed, so that nobody moves when others are added."
        ),
    ] = "random"
    validation_folds: Annotated[tuple[int, ...], Key(doc="With fold: the folds for validation.")] = ()
    test_folds: Annotated[tuple[int, ...], Key(doc="With fold: the folds for the test.")] = ()
    cross_folds: Annotated[
        tuple[int, ...], Key(doc="Folds of a cross-validation: each is scored by a network trained on all others.")
    ] = ()
    validation_share: Annotated[float, Key(doc="With random: share of the patients.", above=0, high=0.9)] = 0.15
    test_share: Annotated[float, Key(doc="With random: share of the patients.", above=0, high=0.9)] = 0.15
    seed: Annotated[int, Key(doc="With random: another seed gives another split.")] = 0
    table: Annotated[
        Path | None,
        Key(
            doc="With random: a CSV file with the columns patient and part, for patients who are not drawn: whoever "
            "the starting network has learnt from is for training again. Parts are training, validation, test, none. "
            "A column patient_sha256 in place of patient names nobody in the open. For classifiers without cross_folds."
        ),
    ] = None

    def __post_init__(self) -> None:
        require_ranges(self)
        require(
            (self.table is None or self.by == "random", "table", "is for a split by random"),
            (self.table is None or not self.cross_folds, "table", "is not for a cross-validation, which has folds"),
            (self.validation_share + self.test_share < 1, "test_share", "and validation_share leave none to train on"),
            (self.by != "fold" or bool(self.validation_folds), "validation_folds", "is needed for a split by fold"),
            (self.by != "fold" or bool(self.test_folds), "test_folds", "is needed for a split by fold"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChoice:
    """What a profile measures: the time of an iteration against batch size and image size."""

    batch_sizes: Annotated[tuple[int, ...], Key(doc="Images in a step.", unit="images", low=1)] = (8, 16, 32, 64)
    sides: Annotated[tuple[int, ...], Key(doc="Image sides; the recipe's own by default.", unit="pixels", low=8)] = ()
    iterations: Annotated[int, Key(doc="Of each size; the first two are kept apart.", low=3)] = 6

    def __post_init__(self) -> None:
        require_ranges(self)
        require((bool(self.batch_sizes), "batch_sizes", "must have one or more"))
