"""Train a recipe from a server of objects and from local files, and compare the time of each part and the weights.

The recipe is trained as a user does: `fieldray adapt train RECIPE`, with `--fetch` where its images are on a server.
The server (moto) is a process on the cores of this computer. The images are synthetic. Each round trains from both in
new folders. Then `fieldray adapt fetch` is timed again, when no object has changed and nothing must be downloaded.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from benchmarks.objects import s3_server
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.imaging.synthetic import chest_phantom
from fieldray.paths import program_command
from fieldray_adapt.files import file_sha256

_SIDE: Final = 512
_TO_BYTE: Final = 4  # shift of 12-bit grey levels to 8 bits
_RECIPE: Final = """
run = "run"
labels = [{{ code = "opacity" }}]
pack = {{ id = "drawn" }}
input = {{ height = 64, width = 64 }}
network = {{ blocks = [1, 1], width = 0.25 }}
data = [{{ path = '{place}', patient = '^(p\\d+)' }}]
training = {{ epochs = {epochs}, batch_size = 16, threads = 1 }}
"""

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTimes:
    """The figures of one training.

    Attributes
    ----------
    total_s
        Seconds from the start of the command to its end.
    data_s
        Seconds of the step that reads the images.
    epochs_s
        Seconds of each epoch but the first, which compiles.
    sha256
        The SHA-256 of the trained weights.
    """

    total_s: float
    data_s: float
    epochs_s: tuple[float, ...]
    sha256: str


def run_benchmark(*, patients: int, epochs: int, rounds: int, notify: Notify) -> BenchmarkReport:
    """Train from a server and from local files in turn. Returns the report."""
    with tempfile.TemporaryDirectory() as scratch:
        images = Path(scratch, "images")
        notify("draws the images")
        files = _draw(images, patients)
        with s3_server({path.relative_to(scratch).as_posix(): path for path in files}):
            found: dict[str, list[TrainingTimes]] = {"local": [], "remote": []}
            again_s = list[float]()
            for number in range(rounds):
                for name, place in (("local", str(images)), ("remote", "s3://box/images")):
                    notify(f"{name}: round {number + 1}")
                    recipe = Path(scratch, f"{name}-{number}", "recipe.toml")
                    recipe.parent.mkdir()
                    recipe.write_text(_RECIPE.format(place=place, epochs=epochs), encoding="utf-8")
                    found[name].append(_trained(recipe, has_fetch=name == "remote"))
                again_s.append(_seconds("adapt", "fetch", str(recipe)))
        size_mb = sum(path.stat().st_size for path in files) / 2**20
    weights = {one.sha256 for own in found.values() for one in own}
    said = "equal weights" if len(weights) == 1 else f"{len(weights)} DIFFERENT sets of weights"
    return BenchmarkReport(
        file_stem="object-training",
        title="A recipe trained from an object server and from local files",
        blocks=(
            BulletList("Results", (f"{2 * rounds} trainings gave {said} (SHA-256: {', '.join(sorted(weights))}).",)),
            Table(
                "Seconds (medians)",
                ("source of the images", "whole command", "reading the images", "an epoch (fastest, slowest)"),
                tuple(_cells(name, own) for name, own in found.items()),
            ),
            BulletList(
                "How it was measured",
                (
                    f"{len(files)} synthetic images of {size_mb:.0f} MB in all, {epochs} epochs, {rounds} rounds.",
                    f"`adapt fetch` if no object has changed (median): {statistics.median(again_s):.1f} s.",
                ),
            ),
        ),
        json_values={name: [asdict(one) for one in own] for name, own in found.items()} | {"again_s": again_s},
    )


def _draw(folder: Path, patients: int) -> list[Path]:
    found = list[Path]()
    for number in range(2 * patients):
        name = "opacity" if number // 2 % 2 else "normal"
        path = folder / name / f"p{number // 2:04}-{number % 2}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = chest_phantom(_SIDE, _SIDE, number, abnormal=name == "opacity")
        Image.fromarray((pixels >> _TO_BYTE).astype(np.uint8)).save(path)
        found.append(path)
    return found


def _trained(recipe: Path, *, has_fetch: bool) -> TrainingTimes:
    total_s, run = _seconds("adapt", "train", str(recipe), *(["--fetch"] if has_fetch else [])), recipe.parent / "run"
    history = json.loads((run / "train" / "history.json").read_bytes())
    return TrainingTimes(
        total_s=total_s,
        data_s=json.loads((run / "status.json").read_bytes())["data"]["seconds"],
        epochs_s=tuple(row["seconds"] for row in history[1:]),
        sha256=file_sha256(run / "train" / "weights.npz"),
    )


def _seconds(*arguments: str) -> float:
    """Run `fieldray` and return the seconds that it takes. Raises CalledProcessError."""
    began_s = time.perf_counter()
    subprocess.run(program_command(*arguments), env=os.environ, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def _cells(name: str, own: list[TrainingTimes]) -> tuple[str, ...]:
    epochs_s = [second for one in own for second in one.epochs_s]
    total_s, data_s = (
        statistics.median(figures) for figures in zip(*((o.total_s, o.data_s) for o in own), strict=True)
    )
    epoch = f"{statistics.median(epochs_s):.2f} ({min(epochs_s):.2f}, {max(epochs_s):.2f})"
    return name, f"{total_s:.1f}", f"{data_s:.1f}", epoch
