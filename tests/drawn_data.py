"""Drawn data with the layout of the shared data, so that the shipped recipes run unchanged.

FOLDER/shared/data/index.csv, mnist.npz, images/*.png      the files that the recipes read
FOLDER/project/models/recipes/*.toml                      the recipes; their runs are in FOLDER/project/runs
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from fieldray.imaging.synthetic import chest_phantom, lung_mask
from shipped_packs import CHILDREN_BEFORE, MODELS

_HEAD = "path,set,part,label,finding,patient_id,view,age,sex,fold,split,licence"
_SIDE = 96


def project(folder: Path, recipe: str) -> Path:
    """Copy a recipe to a folder in which its relative paths lead to drawn data. Returns its path."""
    recipes = folder / "project" / "models" / "recipes"
    recipes.mkdir(parents=True)
    shutil.copytree(CHILDREN_BEFORE, recipes.parent / "lineage" / CHILDREN_BEFORE.name)
    credits_file = MODELS / "recipes" / f"{recipe}.credits.md"
    if credits_file.is_file():
        shutil.copy(credits_file, recipes)
    return Path(shutil.copy(MODELS / "recipes" / f"{recipe}.toml", recipes))


def draw_digits(folder: Path, *, training: int, test: int) -> None:
    """Write mnist.npz: 28 x 28 noise, brighter by class."""
    generator, parts = np.random.default_rng(0), {}
    for name, count in (("train", training), ("test", test)):
        classes = (np.arange(count) % 10).astype(np.uint8)
        noise = generator.integers(0, 60, (count, 28, 28))
        parts |= {f"x_{name}": (noise + classes[:, None, None] * 15).astype(np.uint8), f"y_{name}": classes}
    (folder / "shared" / "data").mkdir(parents=True, exist_ok=True)
    np.savez(folder / "shared" / "data" / "mnist.npz", **parts)


def draw_images(folder: Path, *, children: int, adults: int, ood_images: int) -> None:
    """Write index.csv with images of the sets that the recipes name. Every second image is abnormal."""
    (folder / "shared" / "data" / "images").mkdir(parents=True)
    lines = [_HEAD]
    for number in range(children):
        split = ("train", "train", "val", "test")[number // 2 % 4]
        finding = "Pneumonia|viral" if number % 4 == 1 else "Pneumonia" if number % 2 else "No finding"
        lines.append(_image(folder, f"child{number}", "kermany_224,", finding, number=number, rest=f"AP,,,,{split}"))
    for number in range(adults):
        fold, part = number // 2 % 4, ("jrzech", "talo_Pneumonia")[number // 8 % 2]
        finding = ("Effusion", "Infiltration")[number // 2 % 2] if number % 2 else "No Finding"
        rest = f"{('PA', 'AP')[number // 2 % 2]},{30 + number},{'FM'[number // 3 % 2]},{fold},"
        lines.append(_image(folder, f"adult{number}", f"nih_1024,{part}", finding, number=number, rest=rest))
    for number in range(0, adults, 4):
        lines.append(_image(folder, f"small{number}", "nih_kcr64,", "Effusion", number=10_001 + number, rest="PA,,,2,"))
        lines.append(
            _image(folder, f"small{number + 1}", "nih_kcr64,", "No Finding", number=10_000 + number, rest="PA,,,3,")
        )
    for number in range(ood_images):
        noise = np.random.default_rng(number).integers(0, 256, (64, 64), np.uint8)
        Image.fromarray(noise).save(folder / "shared" / "data" / "images" / f"noise{number}.png")
        lines.append(f"images/noise{number}.png,ood_medmnist64,Hand,ood,Hand,,,,,,,")
    (folder / "shared" / "data" / "index.csv").write_text("\n".join(lines))


def draw_lungs(folder: Path, *, learnt: int, evaluated: int, regions: int = 0, side: int = _SIDE) -> None:
    """Write lungs.csv with drawn chests and masks of their lungs, one image for each patient.

    `regions` of them are of another set.
    """
    root = folder / "shared" / "data"
    (root / "lungs").mkdir(parents=True, exist_ok=True)
    lines = ["film,mask,set,patient_id,label,use,licence"]
    for number in range(learnt + evaluated + regions):
        pixels = (chest_phantom(side, side, 500 + number, abnormal=False) / 257).astype(np.uint8)
        Image.fromarray(pixels).save(root / "lungs" / f"film{number}.png")
        Image.fromarray(lung_mask(side, side, 500 + number)).save(root / "lungs" / f"mask{number}.png")
        use, of = ("train", "montgomery") if number < learnt else ("evaluate", "shenzhen")
        if number >= learnt + evaluated:
            use, of = "heart included", "kermany"
        lines.append(f"lungs/film{number}.png,lungs/mask{number}.png,{of},person{number},normal,{use},drawn")
    (root / "lungs.csv").write_text("\n".join(lines))


def _image(folder: Path, name: str, where: str, finding: str, *, number: int, rest: str) -> str:
    """Draw one image. Returns its line of the table. An odd number is abnormal; `where` is set and part."""
    pixels = (chest_phantom(_SIDE, _SIDE, number, abnormal=number % 2 == 1) / 257).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "shared" / "data" / "images" / f"{name}.png")
    label = "abnormal" if number % 2 else "normal"
    return f"images/{name}.png,{where},{label},{finding},{name},{rest},"
