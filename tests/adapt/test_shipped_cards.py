"""The figures of a shipped card are those of an audit of the same images. Skipped where the data folder is absent."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldray.packs.verified import read_pack
from fieldray_adapt.data.dataset import label_targets
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.recipes.classifier import ClassifierRecipe
from measure_pack import recipe_at, rows_of_parts
from program import command
from radiologists import write_table
from shipped_packs import ADULTS, CHILDREN, MODELS, TUBERCULOSIS

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = [
    pytest.mark.adapt,
    pytest.mark.slow,
    pytest.mark.skipif(not (DATA / "index.csv").is_file(), reason="no data folder here"),
]


def _recipe(pack: Path, *, folder: Path) -> ClassifierRecipe:
    """Return the recipe of a pack, with the folder of the radiologists' table, which runs write themselves."""
    recipe = recipe_at(MODELS / "recipes" / f"{pack.name.rpartition('-')[0]}.toml")
    table = folder / "read-by-radiologists.csv"
    write_table(DATA, table)
    return replace(
        recipe, data=[replace(one, path=table) if one.path.name == table.name else one for one in recipe.data]
    )


def _audited(rows: list[Row], recipe: ClassifierRecipe, pack: Path, *, folder: Path) -> Any:
    """Return the counts of `fieldray audit` for these images."""
    folder.mkdir()
    (label,) = recipe.pack_labels
    truths = label_targets(rows, [label])[:, 0]
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "label", "patient"])
        writer.writerows(
            [row.path.resolve(), int(truth), row.person_id] for row, truth in zip(rows, truths, strict=True)
        )
    asked = [
        "--labels",
        folder / "labels.csv",
        "--by",
        "image",
        "--json",
        folder / "audit.json",
        "--pack",
        pack,
        "--jobs",
        "1",
    ]
    done = subprocess.run(
        command("audit", *(row.path.resolve() for row in rows), *asked, "--jobs", 1),
        env={"FIELDRAY_HOME": str(folder / "home"), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "audit.json").is_file(), done.stderr
    return json.loads((folder / "audit.json").read_text(encoding="utf-8"))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("pack", [TUBERCULOSIS, ADULTS, CHILDREN], ids=lambda pack: pack.name)
def test_a_shipped_card_has_the_counts_of_an_audit_of_the_same_images(pack: Path, tmp_path: Path) -> None:
    model, recipe = read_pack(pack).model, _recipe(pack, folder=tmp_path)
    (label,), metrics = recipe.pack_labels, model.manifest.metrics
    found: Any = metrics["labels"]
    point = model.manifest.operating_points[0]
    for part, rows in rows_of_parts(recipe, model.manifest.provenance, folder=tmp_path).items():
        audited, own = _audited(rows, recipe, pack, folder=tmp_path / part), found[label.code][part]
        at = audited["operating_points"][0]
        assert audited["counted"]["unit"] == metrics["counted"]["unit"]  # type: ignore[index]
        assert (at["name"], audited["auc"]) == (point.name, own["auc"])
        assert at["classes"] == own["classes"][point.name]
        if part == "test":
            assert at["sensitivity"]["value"] == point.sensitivity.value
            assert at["specificity"]["value"] == point.specificity.value
        shown = [
            f"{share['count']} of {share['of']}: {share['value']:.3f}"
            for share in (at["sensitivity_of_all"], at["falsely_referred_of_all"], at["sensitivity"], at["specificity"])
        ]
        (line,) = [
            line
            for line in model.card.splitlines()
            if line.startswith(f"| {point.name} | {point.threshold:.3f}") and f"{shown[0]} (" in line
        ]
        assert all(text in line for text in shown)
