"""Tables that several kinds of recipes have (labels, sources of images, split, profile), and checks of values.

The checks concern rules that a type and a range cannot express: language tags, regular expressions, names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from fieldray.packs.look_alikes import is_visible_text
from fieldray_adapt.recipes.tables import Key, ValidityRules, key, recipe_table

T = TypeVar("T")
_LANGUAGE: Final = re.compile(
    r"[A-Za-z]{2,3}(-[A-Za-z]{4})?(-([A-Za-z]{2}|\d{3}))?(-([A-Za-z\d]{5,8}|\d[A-Za-z\d]{3}))*"
)
_PACK_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


def texts_problem(texts: Mapping[str, str]) -> str | None:
    """Check a table of texts by language. Returns the problem as the end of a sentence; None if there is no problem.

    The keys must be BCP 47 tags and include `en`. Each text must have visible characters.
    """
    unknown = [tag for tag in texts if not _LANGUAGE.fullmatch(tag)]
    if unknown:
        return f"must have language tags (BCP 47, for example en, uk, pt-BR) as its keys, not {unknown[0]}"
    empty = [tag for tag, text in texts.items() if not is_visible_text(text)]
    if empty:
        return f"has no text in {empty[0]}"
    return None if "en" in texts else "needs the language en"


def pattern_problem(pattern: str) -> str | None:
    """Check a regular expression whose first group is the patient number. "" is allowed.

    Returns the problem as the end of a sentence; None if there is no problem.
    """
    try:
        return (
            None
            if not pattern or re.compile(pattern).groups
            else "needs a group in (parentheses): what the first one matches is the patient"
        )
    except re.error as error:
        return f"is not a valid regular expression: {error}"


def pack_id_problem(name: str) -> str | None:
    """Check the id of a pack, which is also a folder name. Returns the problem in words; None if the id is valid."""
    return None if _PACK_ID.fullmatch(name) else f"must be lower-case letters, digits and hyphens, not {name}"


Texts = Annotated[Mapping[str, str], Key(unit="text by language, en is needed", check=texts_problem)]
"""The type of a recipe's key that has a text for each language."""


_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]+):/+(.+)", re.DOTALL)


def server_address(path: Path) -> str:
    """Return `path`, the value of a recipe's key, as an address such as s3://BUCKET/FOLDER.

    Returns "" if the value is a path on this computer.
    """
    found = _ADDRESS.fullmatch(path.as_posix())  # a path joins the two slashes
    return f"{found[1]}://{found[2]}" if found else ""


def local_copy_folder(address: str, *, run_folder: Path) -> Path:
    """Return the folder in `run_folder` to which `fieldray adapt fetch` copies the files at a server address."""
    protocol, _, rest = address.partition("://")
    return run_folder / "objects" / protocol / rest


def with_local_copy_folders(value: T, *, run_folder: Path) -> T:
    """Return a recipe's table in which each server address is replaced by the path of its copy in the run folder."""
    found: Any = value
    if isinstance(value, Path) and (address := server_address(value)):
        found = local_copy_folder(address, run_folder=run_folder)
    elif isinstance(value, tuple):
        found = tuple(with_local_copy_folders(one, run_folder=run_folder) for one in value)
    elif is_dataclass(value):
        old = {known.name: getattr(value, known.name) for known in fields(value) if known.init}
        new = {name: with_local_copy_folders(one, run_folder=run_folder) for name, one in old.items()}
        found = replace(cast("Any", value), **new) if new != old else value
    return cast("T", found)


def server_addresses(*folders: Path | None) -> tuple[str, ...]:
    """Return the server addresses among `folders`. Paths on this computer and None are left out."""
    return tuple(address for folder in folders if folder and (address := server_address(folder)))


SourceLayout = Literal["index", "csv", "folders", "chexpert", "nih"]
UncertainRule = Literal["positive", "negative", "unknown", "drop"]
SplitName = Literal["training", "validation", "test", "none"]


@recipe_table
class LabelRule:
    """A label of the network, and the classes of the data from which the label of an image follows.

    An image with a class of `positive` is positive. An image with a class of `negative` is negative. If `negative` is
    empty, all images without a class of `positive` are negative. All other images are unknown and do not count.
    """

    code: str = key("Short name of the label, without spaces.", example="pneumonia")
    meaning: Texts = key("Name of the label for people; by default the code.", default_factory=dict)
    positive: tuple[str, ...] = key(
        "Classes of the data that count as positive for the label. By default the class with the name of the code.",
        default=(),
        example=["pneumonia"],
    )
    negative: tuple[str, ...] = key(
        "Classes of the data that count as negative for the label. By default all other classes.", default=()
    )
    scheme: str = key("Coding scheme of the code, for example SCT for SNOMED CT.", default="fieldray")
    auxiliary: bool = key(
        "Whether the label only helps to train other labels. An auxiliary label is removed before the pack is made.",
        default=False,
    )
    weight: float = key("Weight of the label's loss, relative to the other labels.", default=1.0, above=0)
    column: Literal["classes", "view", "sex", "age"] = key(
        "Column of the data that gives the label. view, sex and age are only for auxiliary labels.", default="classes"
    )
    above_years: float | None = key(
        "With column age: patients older than this age are positive.", default=None, unit="years"
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the default values of the keys `meaning` and `positive`, which are made from the label's code."""
        return {
            "meaning": {"en": self.code.replace("_", " ").capitalize()},
            "positive": (self.code,) if self.column == "classes" else (),
        }

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        is_age, both = self.column == "age", sorted(set(self.positive) & set(self.negative))
        return (
            (bool(self.code.strip()), "code", "must not be empty"),
            (bool(self.positive) != is_age, "positive", "is needed, except for the column age"),
            (is_age == (self.above_years is not None), "above_years", "is for the column age, and is needed there"),
            (self.column == "classes" or self.auxiliary, "column", "must be classes, unless the label is auxiliary"),
            (not both, "negative", f"contains classes that are also positive: {', '.join(both)}"),
        )


@recipe_table
class Source:
    """A source of labelled images: a table or a folder, and how the images are used."""

    path: Path = key(
        "Path of the CSV file, or of the folder with a folder for each class. The source may be on a server "
        "(s3://BUCKET/FOLDER); `fieldray adapt fetch`, or the option --fetch of a step, then copies the images.",
        example="images",
    )
    layout: SourceLayout = key(
        "Layout of the source. folders: a folder for each class; csv: a table with any columns; index, chexpert and "
        "nih: published layouts.",
        default="folders",
    )
    name: str = key(
        "Name of the source. Training draws all classes of a source equally often. By default the last part of the "
        "path.",
        default="",
    )
    images: Path | None = key(
        "Folder to which the file names in a CSV file are relative. By default the folder of the CSV file.",
        default=None,
    )
    where: Mapping[str, tuple[str, ...]] = key(
        "Allowed values of columns. Table rows with other values are not used.", default_factory=dict
    )
    drop: tuple[str, ...] = key("Classes whose images are not used.", default=())
    columns: Mapping[str, str] = key(
        "Layout csv: names of the columns for path, classes, patient, split, fold, view, age, sex.",
        default_factory=dict,
    )
    splits: Mapping[str, SplitName] = key(
        "For each value in the split column: the use of its table rows (training, validation, test or none). Table "
        "rows with other values are not used.",
        default_factory=dict,
    )
    uncertain: UncertainRule | None = key(
        "Layout chexpert: the meaning of the value -1. Needed for this layout.", default=None
    )
    patient: str = key(
        "Layout folders: regular expression that finds the patient number in the file name, as the first group. By "
        "default each file counts as a separate patient.",
        default="",
        check=pattern_problem,
    )
    group: str = key(
        "With average_sources: name of the group of sources that train one network. For lung fields: name of the "
        "hospital that `adapt cross` leaves out. By default the value of the key name.",
        default="",
    )
    share: float = key(
        "How often training uses images of this source, relative to other sources. 0: images are never used for "
        "training, only for evaluation.",
        default=1.0,
        low=0,
    )
    evaluated: bool = key(
        "Whether figures are measured on images of this source. Set false if the source betrays the label.",
        default=True,
    )

    def defaults(self) -> Mapping[str, Any]:
        """Return the default values of the keys `name` and `group`, which are made from the source's path."""
        return {"name": self.path.stem or "data", "group": self.name or self.path.stem or "data"}

    @property
    def server_addresses(self) -> tuple[str, ...]:
        """The addresses of the source's folders on servers, such as s3://BUCKET/FOLDER."""
        return server_addresses(self.path if self.layout == "folders" else self.path.parent, self.images)

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        wanted = "is needed for the layout chexpert: positive, negative, unknown or drop"
        return ((self.layout != "chexpert" or self.uncertain is not None, "uncertain", wanted),)


@recipe_table
class Split:
    """The division of the patients into the parts training, validation and test."""

    by: Literal["random", "column", "fold"] = key(
        "What decides whether a patient's images are for training, validation or test. column: the split column of the "
        "source; fold: the fold column; random: a hash of patient number and seed, so that new patients do not move "
        "other patients.",
        default="random",
    )
    validation_folds: tuple[int, ...] = key("With by = fold: numbers of the folds for validation.", default=())
    test_folds: tuple[int, ...] = key("With by = fold: numbers of the folds for the test.", default=())
    cross_folds: tuple[int, ...] = key(
        "Numbers of the folds of a cross-validation. A network trained on all other folds scores each fold.", default=()
    )
    validation_share: float = key(
        "With by = random: share of the patients for validation.", default=0.15, above=0, high=0.9
    )
    test_share: float = key("With by = random: share of the patients for the test.", default=0.15, above=0, high=0.9)
    seed: int = key("With by = random: seed of the hash. Another seed gives another split.", default=0)
    table: Path | None = key(
        "With by = random: a CSV file that assigns some patients by hand, with the columns patient and part (training, "
        "validation, test or none). If the starting weights learnt from images of a patient, assign this patient to "
        "training. A column "
        "patient_sha256 in place of patient hides the numbers. Only for classifiers without cross_folds.",
        default=None,
    )

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        return (
            (self.table is None or self.by == "random", "table", "needs by = random"),
            (self.table is None or not self.cross_folds, "table", "is not possible with a cross-validation"),
            (self.validation_share + self.test_share < 1, "test_share", "and validation_share leave none to train on"),
            (self.by != "fold" or bool(self.validation_folds), "validation_folds", "is needed for a split by fold"),
            (self.by != "fold" or bool(self.test_folds), "test_folds", "is needed for a split by fold"),
        )


@recipe_table
class ProfileChoice:
    """Settings of a profile, which measures the time of a training step by batch size and image size."""

    batch_sizes: tuple[int, ...] = key(
        "Numbers of images in a training step to measure.", default=(8, 16, 32, 64), unit="images", low=1
    )
    sides: tuple[int, ...] = key(
        "Sides of the images to measure. By default the side of the network's input.", default=(), unit="pixels", low=8
    )
    iterations: int = key(
        "Number of measured training steps for each size. The first two are reported separately.", default=6, low=3
    )

    def validity_rules(self) -> ValidityRules:
        """Return the conditions that the values of this table must fulfil (see `tables.ValidityRules`)."""
        return ((bool(self.batch_sizes), "batch_sizes", "must have one or more"),)
