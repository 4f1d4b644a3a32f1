"""What is wrong with a recipe's data, all of it, before anything is read for hours or trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fieldray.errors import UsageProblem
from fieldray.packs.naming import MANIFEST_NAME
from fieldray_adapt.dataset import empty_classes, targets_of
from fieldray_adapt.files import content_digest
from fieldray_adapt.layouts import Row, evaluated_parts, find_rows, leaks, parts_of, refuse_foreign_table
from fieldray_adapt.recipe import NAMED_WEIGHTS, NetworkChoice, Recipe
from fieldray_adapt.recipe_data import LabelRule, Source
from fieldray_adapt.tables import Location, Problem

_MOST: Final = 20
_SHORTEST_WORD: Final = 4


def data_problems(recipe: Recipe, *, every_image: bool) -> list[Problem]:
    """What is wrong with the files and tables that a recipe names.

    Parameters
    ----------
    recipe
        With whole paths.
    every_image
        Whether images that are not there count; a run leaves them out, and its report says so.

    Returns
    -------
    list of Problem
        Each at the recipe's key that it is about. Of one kind of problem in one source the first twenty are named.
    """
    problems: list[Problem] = []
    rows: list[Row] = []
    for number, source in enumerate(recipe.data):
        found, wrong = _source_problems(source, ("data", number), every_image)
        rows += found
        problems += wrong
        problems += _single_class(recipe.kept_labels, source, found, ("data", number))
        problems += _first([*_misspelt(recipe, source, found), *_contradictions(found)], ("data", number))
    for key in ("ood_images", "elsewhere"):
        source = getattr(recipe.evaluation, key)
        problems += _source_problems(source, ("evaluation", key), every_image)[1] if source else []
    problems += _weights_problems(recipe.network, ("network",))
    if recipe.lungs is not None and not (recipe.lungs / MANIFEST_NAME).is_file():
        problems.append(Problem(("lungs",), f"names {recipe.lungs}, which is no pack"))
    if recipe.comparison is not None:
        problems += _weights_problems(recipe.comparison.network, ("comparison", "network"))
    # What is missing for a source whose table cannot be read would only be named twice.
    return problems or [
        *_class_problems(recipe.labels, rows),
        *_single_class_groups(recipe, rows),
        *_split_problems(recipe, rows),
    ]


def _single_class_groups(recipe: Recipe, rows: Sequence[Row]) -> Iterator[Problem]:
    """A network that learns from one class alone, to be averaged with others, learns nothing."""
    for group, shares in recipe.groups.items() if recipe.training.average_sources else ():
        targets = targets_of([row for row in rows if row.source in shares], recipe.kept_labels)
        for column, label in enumerate(recipe.kept_labels):
            if len({value for value in targets[:, column] if value in (0, 1)}) < 2:
                yield Problem(("data",), f"has one class of {label.code} alone in the group {group}")


def _source_problems(source: Source, at: Location, every_image: bool) -> tuple[list[Row], list[Problem]]:
    rows, wrong = find_rows(source)
    details = [found.text for found in wrong]
    missing = [row for row in rows if every_image and not row.path.is_file()]
    files = [f"names an image that is not there: {row.path} ({row.origin})" for row in missing]
    return rows, [*_first(details, at, lead="cannot be used: "), *_first(files, at)]


def _first(details: Sequence[str], at: Location, *, lead: str = "") -> Iterator[Problem]:
    for detail in details[:_MOST]:
        yield Problem(at, lead + detail.removesuffix("."))  # it is told inside a sentence
    if len(details) > _MOST:
        yield Problem(at, f"has {len(details) - _MOST} more problems of this kind")


def _single_class(labels: Sequence[LabelRule], source: Source, rows: Sequence[Row], at: Location) -> Iterator[Problem]:
    """A source of one class alone teaches, and measures, where an image comes from and not what it shows."""
    if not source.evaluated or not rows:
        return
    targets = targets_of(rows, labels)
    known = [{value for value in column if value in (0, 1)} for column in targets.T]
    if all(len(values) < 2 for values in known):
        named = {name for label in labels for name in (*label.positive, *label.negative)}
        found = set().union(*(row.classes for row in rows))
        classes = ", ".join(sorted(found & named or found)[:8])
        told = f"from {rows[0].origin} on, classes: {classes}"
        yield Problem(at, f"has images of one side of every label only ({told}); set evaluated = false")


def _misspelt(recipe: Recipe, source: Source, rows: Sequence[Row]) -> Iterator[str]:
    """Rows with a class, or a value of the split column, that is one keystroke away from one that the recipe names.

    Such a row would say nothing of the label, or be in no part, and nobody would hear of it.
    """
    labels = [label for label in recipe.labels if label.column == "classes"]
    classes = {name for label in labels for name in (*label.positive, *label.negative)}
    splits = set(source.splits) if recipe.split.by == "column" else set()
    for row in rows:
        said = (("class", row.classes - set(source.drop), classes), ("split", {row.split} - {""}, splits))
        for what, values, named in said:
            for value in sorted(values - named):
                if near := [name for name in sorted(named) if _one_keystroke_apart(value, name)]:
                    yield f"has a row with the {what} {value} ({row.origin}); is {near[0]} meant?"


def _one_keystroke_apart(first: str, second: str) -> bool:
    """Whether two words of four letters or more differ in capitals, or in one letter added, changed or swapped."""
    one, other = sorted((first.casefold(), second.casefold()), key=len)
    if one == other or len(one) < _SHORTEST_WORD:
        return one == other
    start = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    rest, other_rest = one[start:], other[start:]
    if len(one) < len(other):
        return rest == other_rest[1:]
    return rest[1:] == other_rest[1:] or (rest[1::-1] == other_rest[:2] and rest[2:] == other_rest[2:])


def _contradictions(rows: Sequence[Row]) -> Iterator[str]:
    """Rows that name one file and differ in its classes or in whose it is."""
    seen: dict[Path, Row] = {}
    for row in rows:
        first = seen.setdefault(row.path, row)
        if first.classes != row.classes:
            yield f"names {row.path} twice, with other classes ({first.origin}; {row.origin})"
        elif first.patient != row.patient:
            yield f"names {row.path} twice, of other patients ({first.origin}; {row.origin})"


def _class_problems(labels: Sequence[LabelRule], rows: Sequence[Row]) -> Iterator[Problem]:
    """Classes of a label that no image has."""
    for number, label in enumerate(labels):
        if label.column == "age":
            continue
        known = {cell for row in rows for cell in _cells(row, label.column)} - {""}
        for key in ("positive", "negative"):
            for value in sorted(set(getattr(label, key)) - known):
                some = ", ".join(sorted(known)[:12])
                yield Problem(("labels", number, key), f"names {value}, which no image has; there are {some or 'none'}")


def _cells(row: Row, column: str) -> frozenset[str]:
    return {"view": frozenset({row.view}), "sex": frozenset({row.sex}), "classes": row.classes}[column]


def _split_problems(recipe: Recipe, rows: Sequence[Row]) -> Iterator[Problem]:
    if recipe.split.by == "random":  # an image without a patient is drawn by its content
        rows = [row if row.patient else replace(row, sha256=content_digest(row.path)) for row in rows]
    try:
        refuse_foreign_table(rows, recipe.split)
        parts = parts_of(rows, recipe.split, recipe.data)
    except UsageProblem as problem:
        yield Problem(("split",), f"cannot be made: {problem.reason.text}")
        return
    yield from _first([found.text for found in leaks(rows, parts)], ("split",), lead="is no split by patient: ")
    used = evaluated_parts(rows, parts, recipe.data)
    for found in empty_classes(used, targets_of(rows, recipe.labels), recipe.labels):
        yield Problem(("split",), f"leaves a part without a class: {found.text}")


def _weights_problems(network: NetworkChoice, at: Location) -> Iterator[Problem]:
    if network.weights not in NAMED_WEIGHTS and not Path(network.weights).exists():
        yield Problem((*at, "weights"), f"names {network.weights}, which is not there")
