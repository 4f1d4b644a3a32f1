"""Images with lung masks: layouts, and mistakes, which are named with file and row before training starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drawn_data import draw_lungs
from fieldray_adapt.lungs.masks import find_pairs, mask_share_grid, read_mask
from fieldray_adapt.lungs.recipe import MaskSource
from fieldray_adapt.recipe_actions import check_recipe, run_recipe
from fieldray_adapt.recipes.tables import RecipeProblems

pytestmark = pytest.mark.adapt
_RECIPE = """
kind = "lung-fields"
[pack]
id = "mine"
[[masks]]
path = "shared/data/lungs.csv"
where = {{ use = ["train"] }}
{more}
[split]
validation_share = 0.3
test_share = 0.3
[training]
[[training.stages]]
side = 224
epochs = 1
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write lungs.csv with twelve images for training (rows 2 to 13) and two for evaluation."""
    draw_lungs(tmp_path, learnt=12, evaluated=2, side=32)
    return tmp_path / "shared" / "data"


def _problems(tmp_path: Path, *, more: str = "") -> list[str]:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(_RECIPE.format(more=more))
    with pytest.raises(RecipeProblems) as found:
        check_recipe(recipe)
    with pytest.raises(RecipeProblems):  # a run reports the same before it trains
        run_recipe("train", recipe, say=lambda _: None, progress=lambda *_: None)
    assert not (tmp_path / "run" / "train").exists()
    return list(found.value.lines)


def _replace(data: Path, number: int, pixels: np.ndarray) -> None:
    Image.fromarray(pixels).save(data / "lungs" / f"mask{number}.png")


def test_a_table_names_images_masks_and_patients(data: Path) -> None:
    pairs, wrong = find_pairs(MaskSource(path=data / "lungs.csv", where={"use": ("evaluate",)}, evaluate_only=True))
    assert (len(pairs), wrong) == (2, [])
    first = pairs[0]
    assert (first.row.patient, first.mask_path.name, first.line, first.is_only_evaluated) == (
        "person12",
        "mask12.png",
        14,
        True,
    )
    mask = read_mask(first.mask_path)
    assert mask.shape == (32, 32) and 0.1 < mask.mean() < 0.5
    assert (
        mask_share_grid(mask, 16).shape == (16, 16) and abs(mask_share_grid(mask, 16).mean() / 255 - mask.mean()) < 0.01
    )


def test_two_folders_with_files_of_the_same_name(tmp_path: Path, data: Path) -> None:
    for kind in ("film", "mask"):
        (tmp_path / kind).mkdir()
        for number in range(3):
            shutil.copy(data / "lungs" / f"{kind}{number}.png", tmp_path / kind / f"{number}.png")
    source = MaskSource(path=tmp_path / "film", layout="folders", masks=tmp_path / "mask")
    pairs, wrong = find_pairs(source)
    assert ([pair.mask_path.name for pair in pairs], wrong) == (["0.png", "1.png", "2.png"], [])
    (tmp_path / "mask" / "1.png").unlink()
    _, (missing,) = find_pairs(source)
    assert "film/1.png" in missing.text.replace("\\", "/") and "the mask 1.png does not exist" in missing.text


def test_a_recipe_without_faults_has_none(tmp_path: Path, data: Path) -> None:
    (tmp_path / "mine.toml").write_text(_RECIPE.format(more=""))
    check_recipe(tmp_path / "mine.toml")


def test_masks_that_cannot_be_used_are_named_with_file_and_row(tmp_path: Path, data: Path) -> None:
    _replace(data, 0, np.zeros((32, 32), np.uint8))
    _replace(data, 1, np.full((16, 32), 255, np.uint8))
    shutil.copy(data / "lungs" / "film2.png", data / "lungs" / "mask2.png")  # as if image and mask were swapped
    (data / "lungs" / "mask3.png").unlink()
    (data / "lungs" / "mask4.png").write_bytes(b"no picture")
    (data / "lungs" / "film5.png").unlink()
    _replace(data, 8, np.uint8(255) - np.asarray(Image.open(data / "lungs" / "mask8.png").convert("L")))
    found = "\n".join(_problems(tmp_path))
    assert "line 10: the mask mask8.png is white in all four corners" in found
    assert "lungs.csv, line 2: the mask mask0.png is empty" in found
    assert "line 3: the mask mask1.png has 32 x 16 pixels, but the image has 32 x 32" in found
    assert "line 4: the mask mask2.png is not black and white" in found
    assert "line 5: the mask mask3.png does not exist" in found
    assert "line 6: the mask mask4.png cannot be read" in found
    assert "line 7: the image film5.png does not exist" in found


def test_one_image_of_two_patients_would_be_on_two_sides(tmp_path: Path, data: Path) -> None:
    shutil.copy(data / "lungs" / "film0.png", data / "lungs" / "film7.png")
    (line,) = _problems(tmp_path)
    assert "line 9: the image film7.png is listed twice, first as lungs.csv, line 2 of the patient person0" in line
    assert "two parts of the split" in line


def test_a_patient_in_training_and_evaluation_is_refused(tmp_path: Path, data: Path) -> None:
    text = (data / "lungs.csv").read_text().replace("evaluate,drawn", "evaluate,drawn").replace("person12", "person3")
    (data / "lungs.csv").write_text(text)
    only = '[[masks]]\npath = "shared/data/lungs.csv"\nwhere = { use = ["evaluate"] }\nevaluate_only = true\n'
    (line,) = _problems(tmp_path, more=only)
    assert "person3" in line and "lungs.csv, line 14" in line


def test_a_column_with_a_typo_and_a_table_without_rows(tmp_path: Path, data: Path) -> None:
    text = (data / "lungs.csv").read_text()
    (data / "lungs.csv").write_text(text.replace("patient_id", "patientid"))
    assert "patient_id" in _problems(tmp_path)[0]
    (data / "lungs.csv").write_text(text.replace(",train,", ",trian,"))
    assert "none of the images" in _problems(tmp_path)[0]


@pytest.mark.parametrize(
    ("said", "instead", "complaint"),
    [
        ("side = 224", "side = 128", "end with the size of the input"),
        ("[pack]\n", 'network = { kind = "published" }\n[pack]\n', "188 and steps of 16"),
        ("[pack]\n", "input = { height = 250, width = 250 }\n[pack]\n", "end with the size"),
        ("[pack]\n", 'input = { height = 224, width = 224, fit = "pad" }\n[pack]\n', "whole image"),
        ("[split]\n", '[split]\ntable = "split.csv"\n', "is not possible for lung fields"),
    ],
)
def test_recipes_that_do_not_fit_together(tmp_path: Path, data: Path, said: str, instead: str, complaint: str) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(_RECIPE.format(more="").replace(said, instead, 1))
    with pytest.raises(RecipeProblems) as found:
        check_recipe(recipe)
    assert complaint in "\n".join(found.value.lines)
