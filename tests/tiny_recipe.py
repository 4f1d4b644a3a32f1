"""A recipe that trains within seconds, its images, and samples of equal size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fieldray.imaging.synthetic import chest_phantom
from fieldray_adapt.recipe_actions import run_recipe
from fieldray_adapt.recipes.classifier import ClassifierRecipe, with_absolute_paths
from fieldray_adapt.recipes.tables import RecipeDocument
from fieldray_adapt.training.classifier import Samples

RECIPE = """
run = "run"
signing_key = "key.pem"
packs_folder = "packs"
labels = [{ code = "bright", meaning = { en = "Bright", uk = "Світле" }, positive = ["1"], negative = ["0"] }]
[pack]
id = "quick"
version = "0.1.0"
credits = "Drawn by code."
data_licence = "CC0"
names = { en = "Quick", uk = "Швидкий" }
descriptions = { en = "A trial.", uk = "Спроба." }
intended_use = { en = "Tests.", uk = "Тести." }
limits = { en = "All.", uk = "Усі." }
[input]
height = 32
width = 32
[network]
blocks = [1]
width = 0.125
[split]
by = "fold"
validation_folds = [0]
test_folds = [1]
cross_folds = [0, 1, 2]
[training]
epochs = 4
batch_size = 16
learning_rate = 3e-3
average_epochs = 0.5
images_per_epoch = 128
threads = 1
[prune]
batch_size = { start = 16 }
epochs = { start = 1.0 }
learning_rate = { start = 3e-3 }
cut_kind = "level"
cut_off = { start = 0.9 }
minimum_channels = { start = 4 }
calibration = 16
stop = { iterations = 1 }
[evaluation]
points = [{ name = "balanced", rule = "balance", titles = { en = "Balanced", uk = "Збалансована" } }]
[[data]]
name = "clean"
layout = "csv"
path = "clean.csv"
columns = { fold = "fold" }
[[data]]
name = "confounded"
layout = "csv"
path = "confounded.csv"
columns = { fold = "fold" }
evaluated = false
"""


def draw(folder: Path, name: str, *, images: int, first: int) -> None:
    """Write name.csv and its images: drawn chests, odd numbers with a bright centre."""
    lines = ["path,label,patient,fold"]
    for number in range(first, first + images):
        pixels = chest_phantom(80, 80, number, abnormal=False) / 16
        pixels[:4], pixels[-4:] = 0, 255  # so that stretching the grey levels does not change the others
        pixels[20:60, 20:60] += 90 * (number % 2)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{number % 2},p{number},{number // 2 % 3}")
    (folder / f"{name}.csv").write_text("\n".join(lines))


def read_recipe(path: Path, kind: type[Any] = ClassifierRecipe) -> Any:
    """Read a recipe with absolute paths, by default of a classifier. Raises UsageProblem with all problems."""
    return with_absolute_paths(RecipeDocument.read(path).parse_as(kind), path)


def adapted(step: str, recipe: Path) -> list[str]:
    """Perform a step and those before it. Returns the printed lines."""
    said = list[str]()
    run_recipe(step, recipe, say=said.append, progress=lambda *_: None)
    return said


class Killed(BaseException):
    """Raised by a test at the moment at which a training is to be killed."""


def bright_or_dark(count: int, *, source: str = "made", lungs: bool = False) -> Samples:
    """Return images with a bright or a dark centre, which a small network learns
    within seconds. The left half is lung.
    """
    generator = np.random.default_rng(count)
    targets = (np.arange(count) % 2).astype(np.float32)[:, None]
    images = generator.integers(60, 120, (count, 32, 32, 1), np.uint8)
    images[:, 8:24, 8:24] += (targets * 60).astype(np.uint8)[:, :, None, None]
    shares = np.zeros((count, 64, 64), np.uint8)
    shares[:, :, :32] = 255
    return Samples(
        images=images,
        targets=targets,
        sources=(source,) * count,
        patients=tuple(f"{source} {number}" for number in range(count)),
        lungs=shares if lungs else None,
    )
