"""Lungs in training: found by a pack, cropped to, kept beside the images, and named in the pack that comes of it."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from fieldray.domain.image import Image
from fieldray.domain.model import HeaderRules, InputSpec, Requirement
from fieldray.errors import UsageProblem
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray_adapt.command import adapt, check
from fieldray_adapt.image_set import LungFinder, read_images, read_rows
from fieldray_adapt.recipe_data import Source
from phantoms import write_dicom
from shipped_packs import CHILDREN
from tiny_lungs import write_tiny_lungs
from tiny_recipe import RECIPE, read_recipe


def _chest(*, abnormal: bool, number: int) -> np.ndarray:
    """Two dark lungs, rows 16..48, columns 8..24 and 40..56 of 64; abnormal: a grey spot in each. No two are alike."""
    generator = np.random.default_rng(number)
    pixels = 200 + generator.integers(0, 50, (8, 8), np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    for left in (8, 40):
        pixels[16:48, left : left + 16] = (
            generator.integers(0, 40, (4, 2), np.uint8).repeat(8, axis=0).repeat(8, axis=1)
        )
        if abnormal:
            pixels[24:36, left + 4 : left + 12] = 90
    pixels[:2] = 255
    return pixels.astype(np.uint8)


def _draw(folder: Path, *, images: int) -> Path:
    with (folder / "images.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label", "patient", "fold"])
        for number in range(images):
            Picture.fromarray(_chest(abnormal=number % 2 == 1, number=number)).save(folder / f"{number}.png")
            writer.writerow([f"{number}.png", number % 2, f"p{number}", number // 2 % 3])
    return folder / "images.csv"


def test_the_lungs_of_an_image_are_found_by_the_rules_of_screening(tmp_path: Path) -> None:
    finder = LungFinder(write_tiny_lungs(tmp_path))
    found = finder.find(Image(pixels=_chest(abnormal=False, number=0)))
    assert found.is_frontal_chest and found.found
    box = found.box(rows=64, columns=64, margin=0.0)
    # blocks of 16 pixels are as fine as the tiny network sees
    assert (box.top, box.rows) == pytest.approx((16, 32), abs=1.5) and box.left <= 8 and box.left + box.columns >= 56


def test_where_lung_belongs_is_found_too_and_a_pack_may_be_cropped_to_it(tmp_path: Path) -> None:
    chest = _chest(abnormal=False, number=0)
    chest[48:56, 8:56] = 170  # less than half dark: no lung that can be seen
    finder = LungFinder(write_tiny_lungs(tmp_path, masks=2))
    found = finder.find(Image(pixels=chest))
    seen, whole = (found.box(rows=64, columns=64, margin=0.0, crop=crop) for crop in ("lungs", "lung_region"))
    assert seen.top == pytest.approx(whole.top, abs=2) and whole.rows > seen.rows + 4


def test_what_is_no_lung_field_pack_is_refused() -> None:
    with pytest.raises(UsageProblem, match="lungs names a pack of another kind"):
        LungFinder(CHILDREN)


def test_images_are_cropped_and_keep_where_their_lungs_are(tmp_path: Path) -> None:
    table, finder = _draw(tmp_path, images=4), write_tiny_lungs(tmp_path)
    source = Source(path=table, layout="csv", name="drawn")
    rows = read_rows([source], folder=tmp_path)
    spec = InputSpec(height=32, width=32, crop="lungs", intensity="as_displayed")
    whole = InputSpec(height=32, width=32, intensity="as_displayed")

    def read(wanted: InputSpec, pack: Path | None):
        return read_images(rows, wanted, cache=tmp_path / "images.npz", progress=lambda *_: None, finder=pack)

    cropped, plain = read(spec, finder), read(whole, None)
    assert plain.lungs is None and cropped.lungs is not None and cropped.lungs.shape == (4, 64, 64)
    seen = LungFinder(finder).find(Image(pixels=_chest(abnormal=False, number=0)))
    assert cropped.aside[0] == ("refused" if seen.refusal else "") and plain.aside.tolist() == [""] * 4
    # all rows between the lungs' ends: much more of the picture is dark
    assert (cropped.images < 100).mean() > 1.5 * (plain.images < 100).mean()
    dark = cropped.images[0, ::, ::, 0] < 100
    share = cropped.lungs[0].reshape(32, 2, 32, 2).mean((1, 3)) / 255
    assert share[dark].mean() > 0.7
    # the lungs of the whole image, and the same again from the cache
    assert read(whole, finder).lungs is not None
    assert np.array_equal(read(whole, finder).images, plain.images)


def test_what_screening_sets_aside_whatever_its_score_is_known_of_each_image(tmp_path: Path) -> None:
    views = ("PA", "LL")
    for view in views:
        write_dicom(
            tmp_path / f"{view}.dcm", chest_phantom(64, 64, seed=1, abnormal=False), changes={"ViewPosition": view}
        )
    table = tmp_path / "rows.csv"
    table.write_text("path,patient,label\n" + "".join(f"{view}.dcm,{view},x\n" for view in views))
    rows = read_rows([Source(path=table, layout="csv", name="drawn")], folder=tmp_path)
    spec = InputSpec(height=32, width=32, intensity="as_displayed")
    found = read_images(
        rows, spec, cache=tmp_path / "images.npz", progress=lambda *_: None, accepted=HeaderRules(views=("PA", "AP"))
    )
    assert found.aside.tolist() == ["", "refused"]


@pytest.mark.adapt
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pack_that_was_trained_on_lungs_requires_the_pack_that_finds_them(tmp_path: Path) -> None:
    _draw(tmp_path, images=48)
    write_tiny_lungs(tmp_path)
    text = RECIPE[: RECIPE.index("[prune]")] + RECIPE[RECIPE.index("[evaluation]") : RECIPE.index("[[data]]")]
    text = text.replace('run = "run"', 'run = "run"\nlungs = "test-lungs-1.0.0"')
    text = text.replace("width = 32", 'width = 32\ncrop = "lungs"\ncrop_margin = 0.05')
    text = text.replace("blocks = [1]", 'blocks = [1]\nfrozen = ["conv"]')
    text = text.replace("epochs = 4", "epochs = 4\nevidence_outside = 0.1\naverage_sources = true")
    text += '[[data]]\nname = "drawn"\nlayout = "csv"\npath = "images.csv"\ncolumns = { fold = "fold" }\n'
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text, encoding="utf-8")
    check(recipe)
    adapt("run", recipe, say=lambda _: None, progress=lambda *_: None)
    folder = tmp_path / "packs" / "quick-0.1.0"
    model = read_files(folder, read_verified_manifest(folder)).model("signed")
    (required,) = model.manifest.requires
    assert required.key is not None
    assert required == Requirement(kind="lung-fields", id="test-lungs", minimum_version="1.0.0", key=required.key)
    assert model.manifest.input.crop == "lungs" and model.manifest.input.crop_margin == 0.05
    inside = model.manifest.metrics["evidence_inside"]
    assert isinstance(inside, dict) and 0 < inside["chance"] < 1
    assert "cropped to the lungs with 5% of their extent around them" in model.card
    shutil.rmtree(tmp_path / "test-lungs-1.0.0")
    with pytest.raises(UsageProblem, match="which is no pack"):
        check(recipe)
    assert read_recipe(recipe).lungs == tmp_path / "test-lungs-1.0.0"
