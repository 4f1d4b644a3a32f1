"""A comparison's figures on made-up scores, and what is said where there is nothing to compare."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.comparisons import areas, compare_step
from fieldray_adapt.recipe import read_recipe
from fieldray_adapt.run import Run
from shipped_packs import CHILDREN

RECIPE = Path(__file__).parents[2] / "models" / "recipes" / "pneumonia-paediatric.toml"


def test_the_difference_is_the_packs_less_the_unpruned_networks() -> None:
    truth = np.array([True, True, False, False] * 10)
    # the pack has one of four pairs of each kind the wrong way round: 3/4; the unpruned network none
    pack, whole = [0.9, 0.4, 0.5, 0.1] * 10, [0.9, 0.8, 0.2, 0.1] * 10
    found = areas(
        np.column_stack([pack, whole]), truth, names=("pack", "whole"), patients=[f"p{n}" for n in range(len(truth))]
    )
    assert found["auc"]["pack"]["value"] == 0.75
    # 20 against 20 images without a mistake leave room for an area of 0.9
    assert found["auc"]["whole"]["value"] == found["auc"]["whole"]["high"] == 1.0
    assert 0.85 < found["auc"]["whole"]["low"] < 0.95
    assert found["images"] == 40 and found["positive"] == 20
    assert (
        found["difference"]["value"] == -0.25 and found["difference"]["low"] < -0.25 < found["difference"]["high"] < 0
    )


def _run(tmp_path: Path, text: str) -> Run:
    (tmp_path / "models" / "recipes").mkdir(parents=True)
    (tmp_path / "models" / "recipes" / "recipe.toml").write_text(text, encoding="utf-8")
    recipe = read_recipe(tmp_path / "models" / "recipes" / "recipe.toml")
    return Run(recipe=recipe, progress=lambda *_: None)


def test_a_recipe_without_a_comparison_says_so(tmp_path: Path) -> None:
    before, _, rest = RECIPE.read_text(encoding="utf-8").partition("[comparison]")
    run = _run(tmp_path, before + rest[rest.index("[evaluation]") :])
    with pytest.raises(UsageProblem, match="The recipe's comparison is missing"):
        compare_step(run)


def test_a_pack_of_another_input_is_not_compared(tmp_path: Path) -> None:
    run = _run(tmp_path, RECIPE.read_text(encoding="utf-8").replace("width = 256", "width = 128"))
    shutil.copytree(CHILDREN, tmp_path / "models" / CHILDREN.name)
    with pytest.raises(UsageProblem, match=r"pack is not the one in .*: input or labels differ"):
        compare_step(run)
    assert not run.recipe.run.exists()  # said before anything is trained
