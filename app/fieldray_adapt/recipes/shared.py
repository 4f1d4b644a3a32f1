"""Tables that several recipes have (labels, sources of images, split, profile), and checks of single values.

The checks are those that a type and a range cannot express: language tags, regular expressions, names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fieldray.packs.look_alikes import is_visible_text
from fieldray_adapt.recipes.tables import Key, Rules, key, table

_LANGUAGE: Final = re.compile(
    r"[A-Za-z]{2,3}(-[A-Za-z]{4})?(-([A-Za-z]{2}|\d{3}))?(-([A-Za-z\d]{5,8}|\d[A-Za-z\d]{3}))*"
)


_PACK_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


def texts_problem(texts: Mapping[str, str]) -> str | None:
    """Return what is wrong with texts by language; None if nothing is.

    The keys must be BCP 47 tags, `en` among them, and no text may be invisible.
    """
    unknown = [tag for tag in texts if not _LANGUAGE.fullmatch(tag)]
    if unknown:
        return f"must have language tags (BCP 47, for example en, uk, pt-BR) as its keys, not {unknown[0]}"
    empty = [tag for tag, text in texts.items() if not is_visible_text(text)]
    if empty:
        return f"has no text in {empty[0]}"
    return None if "en" in texts else "needs the language en"


def pattern_problem(pattern: str) -> str | None:
    """Return what is wrong with a regular expression whose first group is the patient; None if nothing is."""
    try:
        return (
            None
            if not pattern or re.compile(pattern).groups
            else "needs a group in (parentheses): what the first one matches is the patient"
        )
    except re.error as error:
        return f"is no regular expression: {error}"


def pack_id_problem(name: str) -> str | None:
    """Return what is wrong with the id of a pack, which is also a folder name; None if nothing is."""
    return None if _PACK_ID.fullmatch(name) else f"must be lower-case letters, digits and hyphens, not {name}"


Texts = Annotated[Mapping[str, str], Key(unit="text by language, en is needed", check=texts_problem)]
"""The type of a key with a text for each language."""


_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)", re.DOTALL)


def address_in(path: Path) -> str:
    """Return the address of objects on a server that a recipe has in place of a path; "" for a path."""
    found = _ADDRESS.fullmatch(path.as_posix())  # a path joins the two slashes
    return f"{found[1]}://{found[2]}" if found else ""


def object_copy_path(address: str, *, run: Path) -> Path:
    """Return the folder in a run folder to which `fieldray adapt fetch` copies the objects of an address."""
    protocol, _, rest = address.partition("://")
    return run / "objects" / protocol / rest


Layout = Literal["index", "csv", "folders", "chexpert", "nih"]
UncertainRule = Literal["positive", "negative", "unknown", "drop"]
SplitName = Literal["training", "validation", "test", "none"]


@table
class LabelRule:
    """A label, and the classes of the data that mean it.

    An image is positive if it has a class of `positive`. It is negative if it has a class of `negative` or, where that
    list is empty, any other class. Other images are unknown and do not count.
    """

    code: str = key("Short name of the label, without spaces.", example="pneumonia")
    meaning: Texts = key("Name of the label for people; its code by default.", default_factory=dict)
    positive: tuple[str, ...] = key(
        "Classes of the data that count as positive for the label. By default, the class named by the key code.",
        default=(),
        example=["pneumonia"],
    )
    negative: tuple[str, ...] = key(
        "Classes of the data that do not have the label; all other classes by default.", default=()
    )
    scheme: str = key("Coding scheme of the code, for example SCT for SNOMED CT.", default="fieldray")
    auxiliary: bool = key(
        "Whether the label only helps to train the other labels, and is removed before the pack is made.", default=False
    )
    weight: float = key("Weight of the label's loss, relative to the other labels.", default=1.0, above=0)
    column: Literal["classes", "view", "sex", "age"] = key(
        "The column that gives the label. An auxiliary label may also use view, sex or age.", default="classes"
    )
    above_years: float | None = key("With column age: positive above this age.", default=None, unit="years")

    def defaults(self) -> Mapping[str, Any]:
        """Return the values that the keys `meaning` and `positive` get if they are empty. They are made from the
        label's code.
        """
        return {
            "meaning": {"en": self.code.replace("_", " ").capitalize()},
            "positive": (self.code,) if self.column == "classes" else (),
        }

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        is_age, both = self.column == "age", sorted(set(self.positive) & set(self.negative))
        return (
            (bool(self.code.strip()), "code", "must not be empty"),
            (bool(self.positive) != is_age, "positive", "is needed for every column but age, and only there"),
            (is_age == (self.above_years is not None), "above_years", "belongs to the column age, which needs it"),
            (self.column == "classes" or self.auxiliary, "column", "may differ for auxiliary labels only"),
            (not both, "negative", f"holds classes that are positive too: {', '.join(both)}"),
        )


@table
class Source:
    """A source of labelled images."""

    path: Path = key(
        "The folder with one folder per class, or the CSV file; also on a server (s3://BUCKET/FOLDER), from which "
        "`fieldray adapt fetch` copies it, or the option `--fetch` of a step.",
        example="images",
    )
    layout: Layout = key(
        "Layout of the source. folders: a folder per class; csv: a table with columns of your own; or a "
        "published layout.",
        default="folders",
    )
    name: str = key(
        "Name of the source; training draws evenly within each name. By default the last part of the path.", default=""
    )
    images: Path | None = key(
        "Folder to which file names are relative; by default the folder of the CSV file.", default=None
    )
    where: Mapping[str, tuple[str, ...]] = key(
        "Allowed values by column: rows with other values are not used.", default_factory=dict
    )
    drop: tuple[str, ...] = key("Rows with one of these classes are left out.", default=())
    columns: Mapping[str, str] = key(
        "Layout csv: which column holds path, classes, patient, split, fold, view, age, sex.", default_factory=dict
    )
    splits: Mapping[str, SplitName] = key(
        "Meaning of each value of the split column; rows with other values are left out.", default_factory=dict
    )
    uncertain: UncertainRule | None = key(
        "Layout chexpert: what the label -1 means. Required for this layout.", default=None
    )
    patient: str = key(
        "Layout folders: a regular expression whose first group, found in the file name, is the patient. Without it, "
        "each file counts as a patient of its own.",
        default="",
        check=pattern_problem,
    )
    group: str = key(
        "With average_sources: sources of one group train one network. For lung fields: the hospital that "
        "`adapt cross` leaves out. By default the name.",
        default="",
    )
    share: float = key(
        "How often the source is drawn, relative to the other sources; 0: only measured, never used for training.",
        default=1.0,
        low=0,
    )
    evaluated: bool = key(
        "Whether results may be measured on this source. Use a confounded source for training only.", default=True
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the values that the keys `name` and `group` get if they are empty. They are made from the source's
        path.
        """
        return {"name": self.path.stem or "data", "group": self.name or self.path.stem or "data"}

    @property
    def address(self) -> str:
        """The address of the source's folder on a server; "" for a source on this computer."""
        return address_in(self.path if self.layout == "folders" else self.path.parent)

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        wanted = "is needed for the layout chexpert: positive, negative, unknown or drop"
        return ((self.layout != "chexpert" or self.uncertain is not None, "uncertain", wanted),)


@table
class Split:
    """Split of the patients into training, validation and test."""

    by: Literal["random", "column", "fold"] = key(
        "What decides the part of a patient. column: the split column of the source; fold: its fold column; "
        "random: a hash of patient and seed, so that a new patient moves no other patient.",
        default="random",
    )
    validation_folds: tuple[int, ...] = key("With fold: the folds for validation.", default=())
    test_folds: tuple[int, ...] = key("With fold: the folds for the test.", default=())
    cross_folds: tuple[int, ...] = key(
        "Folds of a cross-validation: each is scored by a network trained on all others.", default=()
    )
    validation_share: float = key("With random: share of the patients for validation.", default=0.15, above=0, high=0.9)
    test_share: float = key("With random: share of the patients for the test.", default=0.15, above=0, high=0.9)
    seed: int = key("With random: another seed gives another split.", default=0)
    table: Path | None = key(
        "With random: a CSV file with the columns patient and part (training, validation, test or none), for "
        "patients whose part is not drawn. Patients from the training of the starting network belong to "
        "training. The column patient_sha256 instead of patient hides the names. For classifiers without "
        "cross_folds.",
        default=None,
    )

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        return (
            (self.table is None or self.by == "random", "table", "is for a split by random"),
            (self.table is None or not self.cross_folds, "table", "is not for a cross-validation, which has folds"),
            (self.validation_share + self.test_share < 1, "test_share", "and validation_share leave none to train on"),
            (self.by != "fold" or bool(self.validation_folds), "validation_folds", "is needed for a split by fold"),
            (self.by != "fold" or bool(self.test_folds), "test_folds", "is needed for a split by fold"),
        )


@table
class ProfileChoice:
    """What a profile measures: the time of an iteration by batch size and image size."""

    batch_sizes: tuple[int, ...] = key("Images in each training step.", default=(8, 16, 32, 64), unit="images", low=1)
    sides: tuple[int, ...] = key(
        "Sides of the images to measure; by default the input size of the recipe.", default=(), unit="pixels", low=8
    )
    iterations: int = key(
        "Number of measured iterations for each size; the first two are reported separately.", default=6, low=3
    )

    def rules(self) -> Rules:
        """Return the conditions that the values of this table must fulfil (see `tables.Rules`)."""
        return ((bool(self.batch_sizes), "batch_sizes", "must have one or more"),)
