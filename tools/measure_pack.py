"""Measure a shipped pack again, because the program now judges some images differently:

    python tools/measure_pack.py models/recipes/NAME.toml models/NAME-VERSION NEW-VERSION KEY

The script screens the test images of the recipe, and the images of another hospital if the recipe names any. It then
writes a new version of the pack with the new figures in card and manifest. The private key in the file KEY signs the
new version. If the file does not exist, the script makes a key. Networks, thresholds and calibration stay unchanged.
Figures of the network alone (validation, shortcuts, int8 against float, evidence) are copied.

The script refuses a pack that was made from other images or another split.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fieldray.domain.model import Estimate, Model
from fieldray.errors import FieldrayError
from fieldray.packs.library import PackLibrary
from fieldray.packs.manifest import parse_manifest
from fieldray.packs.signing import load_or_create_key
from fieldray.packs.verified import manifest_file_entries, read_pack, write_pack_of_any_kind
from fieldray.typed_json import to_type
from fieldray_adapt.data.dataset import label_targets
from fieldray_adapt.data.image_set import read_rows, rows_digest
from fieldray_adapt.data.layouts import Row, assign_leak_free_parts, leave_out_unlabelled_images
from fieldray_adapt.evaluation.evaluate import (
    CARD_COUNTING_RULE,
    auc_by_group,
    data_part_figures,
    select_labelled_images,
    with_measured_figures,
)
from fieldray_adapt.evaluation.figures import (
    DataPartFigures,
    EvidenceFigures,
    HospitalFigures,
    Int8Comparison,
    LabelFigures,
)
from fieldray_adapt.evaluation.screening import ScreeningResults, screen_rows
from fieldray_adapt.files import digest, to_builtins
from fieldray_adapt.pack.card import label_section
from fieldray_adapt.pack.figures import PackDataPartFigures
from fieldray_adapt.recipes.classifier import ClassifierRecipe, with_absolute_paths
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.recipes.tables import RecipeDocument

_ELSEWHERE: Final = "external_test"
_ESTIMATE: Final = r"(\d\.\d+) \((\d\.\d+) to (\d\.\d+)\)"


def recipe_at(path: Path) -> ClassifierRecipe:
    """Read the recipe file at `path` and make the paths in the recipe absolute. Raises UsageProblem if invalid."""
    return with_absolute_paths(RecipeDocument.read(path).parse_as(ClassifierRecipe), path)


def rows_of_parts(recipe: ClassifierRecipe, provenance: Mapping[str, str], *, folder: Path) -> dict[str, list[Row]]:
    """Return the images on which figures are measured, by part of the data: "test" and "external_test".

    "external_test" is present only if the recipe names another hospital. `provenance` has the digests in the manifest
    of the pack. Digests of image files are cached in `folder`. Raises UsageProblem if the data cannot be read.
    Raises ValueError if images, tables or split differ from those from which the pack was made.
    """
    rows = read_rows(recipe.data, folder=folder)
    parts = leave_out_unlabelled_images(
        assign_leak_free_parts(rows, recipe.split, recipe.data), label_targets(rows, recipe.labels)
    )
    lines = [
        {"source": row.source, "sha256": row.sha256, "patient": row.patient, "fold": row.fold, "part": part}
        for row, part in zip(rows, parts, strict=True)
    ]
    if (rows_digest(rows), digest(lines)) != (provenance["data_sha256"], provenance["split_sha256"]):
        raise ValueError("the images, their tables or their split are not those that the pack was made of")
    found = {"test": [row for row, part in zip(rows, parts, strict=True) if part == "test"]}
    if recipe.evaluation.elsewhere:
        found[_ELSEWHERE] = read_rows([recipe.evaluation.elsewhere], folder=folder)
    return found


def _counted(model: Model, label: LabelRule, screening: ScreeningResults) -> DataPartFigures:
    """Return the figures of a label on the screened images, with its operating points in the manifest of `model`."""
    points = [point for point in model.manifest.operating_points if point.label == label.code]
    return data_part_figures(
        screening.cases_by_operating_point(label.code, label_targets(screening.rows, [label])[:, 0]), points=points
    )


def _figures(model: Model, label: LabelRule, screened: Mapping[str, ScreeningResults]) -> LabelFigures:
    """Return all figures of a label: new figures of the screened images, and the earlier figures of the network alone.

    `screened` has the results by part of the data: "test", and "external_test" if another hospital was screened.
    """
    metrics: Any = model.manifest.metrics
    before, section, own = metrics["labels"][label.code], _section(model.card, label), screened["test"]
    elsewhere = None
    if _ELSEWHERE in screened:
        ((border, thumbnail),) = re.findall(r"as above, (\d\.\d+), a 16 x 16 thumbnail (\d\.\d+)", section)
        there = _counted(model, label, screened[_ELSEWHERE])
        values = {name: getattr(there, name) for name in there.__struct_fields__}
        elsewhere = HospitalFigures(**values, shortcuts={"border": float(border), "thumbnail": float(thumbnail)})
    (validation,) = re.findall(rf"\(validation(?:, the network alone:)? {_ESTIMATE}", section)
    targets = label_targets(own.rows, [label])[:, 0]
    is_first = label.code == model.manifest.labels[0].code
    return LabelFigures(
        validation_auc=Estimate(*map(float, validation)),
        test=_counted(model, label, own),
        by_group=auc_by_group(select_labelled_images(own.scores(label.code), targets, own.rows)),
        shortcuts=before["shortcuts"],
        external_test=elsewhere,
        float_against_int8=to_type(before["float_against_int8"], Int8Comparison),
        evidence_inside=to_type(metrics["evidence_inside"], EvidenceFigures) if is_first else None,
    )


def _section(card: str, label: LabelRule) -> str:
    """Return the section of a pack's card (Markdown) that reports the figures of `label`. Raises ValueError if absent.

    The figures are those on the test images and at another hospital.
    """
    start = card.index(f"## {label.meaning['en']} (`{label.code}`): measured on the test images\n")
    return card[start : card.index("\n## ", start) + 1]


def _as_now(text: str, before: float, after: float) -> str:
    """Replace the AUC `before` in a text by the AUC `after`, each with two decimals and a point or a comma."""
    was, now = f"{before:.2f}", f"{after:.2f}"
    return text.replace(was, now).replace(was.replace(".", ","), now.replace(".", ","))


def measure(recipe: ClassifierRecipe, pack: Path, version: str, key: Path, *, threads: int) -> Path:
    """Measure the pack in the folder `pack`, and write a new version with the new figures, signed with the key.

    If the file `key` does not exist, a key is made. `threads` is the number of CPU threads. Returns the folder of the
    new version. Raises FieldrayError or ValueError if the recipe does not fit the pack.
    """
    with tempfile.TemporaryDirectory() as home:
        model = PackLibrary(Path(home)).load(pack)
        parts = rows_of_parts(recipe, model.manifest.provenance, folder=Path(home))
    screened = {part: screen_rows(model, rows, threads=threads, progress=_progress) for part, rows in parts.items()}
    labels = {label.code: _figures(model, label, screened) for label in recipe.pack_labels}
    document, card = json.loads((pack / "manifest.json").read_bytes()), model.card
    card = card.replace(f"({model.manifest.pack_id} {model.manifest.version})", f"({model.manifest.pack_id} {version})")
    document["version"] = version
    document["metrics"]["counted"] = asdict(CARD_COUNTING_RULE)
    for label in recipe.pack_labels:
        found, of_label = labels[label.code], document["metrics"]["labels"][label.code]
        before = of_label["test"]["auc"]["value"]
        of_label["test"] = to_builtins(PackDataPartFigures.from_figures(found.test))
        of_label["reference"] = {"scores": list(found.test.score_counts)}
        if found.external_test:
            of_label[_ELSEWHERE] = to_builtins(PackDataPartFigures.from_figures(found.external_test))
        section = label_section(label.code, label.meaning["en"], found).strip() + "\n\n"
        card = card.replace(_section(card, label), section)
        areas = before, found.test.auc.value
        document["warnings"] = {language: _as_now(text, *areas) for language, text in document["warnings"].items()}
        head, made = card.split("## The network\n", 1)
        card = f"{_as_now(head, *areas)}## The network\n{made}"
    points = [
        with_measured_figures(point, figures=labels[point.label].test, measured_on=recipe.evaluation.measured_on)
        for point in model.manifest.operating_points
    ]
    document["operating_points"] = [to_builtins(point) for point in points]
    whole = read_pack(pack)
    names = {role: file["name"] for role, file in document["files"].items()}
    contents = {role: whole.file_contents[name] for role, name in names.items()} | {"card": card.encode()}
    document["files"] = {role: to_builtins(file) for role, file in manifest_file_entries(contents).items()}
    return write_pack_of_any_kind(
        recipe.packs_folder,
        manifest=parse_manifest(json.dumps(document).encode()),
        contents=contents,
        key=load_or_create_key(key),
    )


def _progress(what: str, done: int, total: int) -> None:
    if done == total or done % 50 == 0:
        sys.stderr.write(f"{what}: {done} of {total}\n")


def main(arguments: Sequence[str]) -> int:
    """Measure the pack that is named on the command line, and print the folder of the new version. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("recipe", "pack"):
        parser.add_argument(name, type=Path)
    parser.add_argument("version")
    parser.add_argument("key", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        recipe = recipe_at(options.recipe.resolve())
        folder = measure(recipe, options.pack, options.version, options.key, threads=options.threads)
    except (FieldrayError, ValueError) as problem:
        parser.error(str(problem))
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
