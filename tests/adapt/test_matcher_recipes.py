"""The quick matcher recipe, on drawn pairs: from images to a pack that describes images, a card and a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drawn_data import draw_pairs, project
from fieldray.packs.library import PackLibrary
from fieldray.packs.manifest import MatcherManifest, parse
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray_adapt.command import adapt, check
from fieldray_adapt.tables import RecipeProblems
from tiny_recipe import adapted

pytestmark = pytest.mark.adapt


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_pairs_to_a_pack(tmp_path: Path, home: Path) -> None:
    draw_pairs(tmp_path, patients=10)
    recipe = project(tmp_path, "matcher-quick")
    adapted("run", recipe)

    runs = tmp_path / "project" / "runs"
    run, pack = runs / "matcher-quick", runs / "packs" / "matcher-quick-0.1.0"
    manifest = parse((pack / "manifest.json").read_bytes())
    assert isinstance(manifest, MatcherManifest) and manifest.local_radius == 4
    metrics = json.loads((run / "evaluate" / "metrics.json").read_text())
    tables = metrics["false_matches"]
    assert list(tables) == ["raw", "band-pass", "normalised", "NCCNet", "NCCNet int8"]
    counts = {name: {group: found["16"]["of"] for group, found in table.items()} for name, table in tables.items()}
    assert all(own == counts["raw"] for own in counts.values()) and {"near", "far"} <= set(counts["raw"])
    assert metrics["collapse"]["chance"] == pytest.approx((7 / 33) ** 2)
    assert metrics["rejection"]["raw"]["near"][0][0] == 0
    card = (pack / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "Asked: at most half of the band-pass's false matches" in card and "no displacement was ever given" in card
    assert "has no file compiled for the Edge TPU.\n\n- Forecast for the Edge TPU" in card
    assert "P1 other patient" in (run / "report.html").read_text(encoding="utf-8")
    assert {"train: done before", "pack: done before"} <= set(adapted("run", recipe))

    library = PackLibrary(home, builtin_root=runs / "nothing")
    library.trust(read_verified_manifest(pack).fingerprint)
    installed = library.install(pack)
    model = read_files(installed, read_verified_manifest(installed)).companion("signed", kind="matcher")
    assert model is not None and not model.manifest.labels


def test_a_matcher_begins_anew_and_has_no_table_of_patients(tmp_path: Path) -> None:
    recipe = project(tmp_path, "matcher-quick")
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("[split]\n", '[split]\ntable = "split.csv"\n'), encoding="utf-8")
    with pytest.raises(RecipeProblems, match="is for a network that goes on from another"):
        check(recipe)


def test_everything_wrong_with_the_pairs_is_said_before_the_training(tmp_path: Path) -> None:
    draw_pairs(tmp_path, patients=10)
    recipe = project(tmp_path, "matcher-quick")
    check(recipe)
    table = tmp_path / "shared" / "data" / "pairs.csv"
    text = table.read_text()
    (tmp_path / "shared" / "data" / "pairs" / "prior1.png").unlink()
    table.write_text(
        text.replace("person0,PA,PA,-,-,1,", ",PA,PA,-,-,1,").replace("person3,PA,PA,-,-,5,", "person3,PA,PA,-,-,soon,")
    )
    with pytest.raises(RecipeProblems) as found:
        check(recipe)
    said = "\n".join(found.value.lines)
    assert "it names no patient" in said and "'soon' is no number" in said and "prior1.png" in said
    with pytest.raises(RecipeProblems):
        adapt("train", recipe, say=lambda _: None, progress=lambda *_: None)
