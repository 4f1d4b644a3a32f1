"""Fit the weights of `fieldray.domain.lungs` to lungs painted white: `python -m benchmarks.white_lungs DATA`.

DATA has index.csv (path, set, part, label, patient_id, fold, split) and lungs.csv (set, patient_id) next to the images.
Normal images of five sources are painted white in lungs that the network finds, so that no other mask is needed: a
whole lung, its upper or lower part, or an effusion. Used are one half of the patients of Shenzhen and Montgomery, folds
0 and 1 of NIH, and the training part of Kermany.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from sklearn.linear_model import LogisticRegression

from benchmarks.processes import temporary_home
from fieldray.domain.image import Image, ImageRef
from fieldray.domain.lung_thirds import THIRDS_PER_LUNG, features_of_thirds, split_into_halves, split_into_thirds
from fieldray.domain.lungs import column_between_lungs, remove_non_lung_parts
from fieldray.domain.mask import Mask
from fieldray.domain.model import LUNG_NETWORK_CHECKS
from fieldray.imaging.preprocess import to_network_input, with_default_window
from fieldray.imaging.reading import decode_image_bytes
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray.packs.library import PackLibrary
from fieldray_adapt.data.augmentation import WHITE_AREA_KINDS, draw_white_area, lung_hulls, paint_white

_SIDE: Final = 256
_MAX_IMAGES_OF_A_SOURCE: Final = 500
# Painted share of a third of a lung: below 0.05 the third is normal, above 0.6 not visible, otherwise not used.
_PAINTED: Final = (0.05, 0.6)
_FALSE_ALARMS: Final = 0.02  # largest share of normal images that is reported: mean over sources, outside the fit
_FOLDS: Final = 5
Row = dict[str, str]


class LungFinder:
    """Finds lungs with the shipped lung-field network, which runs in this process."""

    def __init__(self, home: Path) -> None:
        model = PackLibrary(home).load_shipped_lung_pack()
        assert model is not None and model.manifest.lung_rules is not None
        spec = NetworkSpec(
            input=model.manifest.input, outputs=model.manifest.outputs, label_count=len(LUNG_NETWORK_CHECKS)
        )
        self._input, self._rules = model.manifest.input, model.manifest.lung_rules
        self._network = Network(model.files["litert"], spec, runtime=load_runtime(), threads=1)

    def find(self, image: Image) -> tuple[NDArray[np.float32], NDArray[np.uint8]] | None:
        """Return the share of lung in each cell of the mask, and the network's input image.

        None if the image is not an upright frontal chest.
        """
        grey = to_network_input(with_default_window(image), self._input).values[0]
        answer = self._network.run(grey)
        passed = {n for n, s in zip(LUNG_NETWORK_CHECKS, answer.scores, strict=True) if s >= self._rules.thresholds[n]}
        assert answer.mask is not None
        return (answer.mask, grey[:, :, 0]) if passed - {"mirrored"} == {"frontal_chest"} else None


def training_rows(data: Path) -> dict[str, list[Row]]:
    """Return the table rows of normal images for the fit, by source. These images are not used for measurements."""
    with (data / "index.csv").open(encoding="utf-8") as lines:
        normal = [row for row in csv.DictReader(lines) if row["label"] == "normal"]
    with (data / "lungs.csv").open(encoding="utf-8") as lines:
        patients = sorted({r["patient_id"] for r in csv.DictReader(lines) if r["set"] in ("shenzhen", "montgomery")})
    random.Random(37).shuffle(patients)
    half = set(patients[: len(patients) // 2])
    wanted: dict[str, Callable[[Row], bool]] = {
        "kermany_224": lambda row: row["split"] == "train",
        "rsna_normal": lambda row: row["part"] == "nih_no_finding" and row["fold"] in "01",
        "nih_224": lambda row: row["fold"] in "01",
        "shenzhen": lambda row: row["patient_id"] in half,
        "montgomery": lambda row: row["patient_id"] in half,
    }
    drawn = {}
    for name, is_wanted in wanted.items():
        drawn[name] = sorted((r for r in normal if r["set"] == name and is_wanted(r)), key=lambda r: r["path"])
        random.Random(37).shuffle(drawn[name])
    return {name: rows[:_MAX_IMAGES_OF_A_SOURCE] for name, rows in drawn.items()}


def third_features(
    mask: NDArray[np.float32], grey: NDArray[np.uint8], place: Mask
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features of each third of both lungs (2, 3, features), and the share of each third painted white (2, 3).

    `place` is the mask of the area that was painted white.
    """
    shares = np.rint(255 * mask.clip(0, 1)).astype(np.uint8)
    is_lung = remove_non_lung_parts(shares, 128)[1] > 0
    middle = column_between_lungs(np.flatnonzero(is_lung.any(axis=0)), np.arange(is_lung.shape[1]))
    step = _SIDE // len(is_lung)
    white, outer = (
        split_into_halves(place[::step, ::step], middle),
        [lateral for _, lateral in split_into_thirds(split_into_halves(is_lung, middle))],
    )
    covered = [[float(half[where].mean()) if where.any() else 0.0 for where in outer] for half in white]
    return features_of_thirds(shares, is_lung, grey, middle), np.array(covered)


def make_samples(data: Path, finder: LungFinder) -> list[tuple[str, str, str, NDArray[Any], NDArray[Any]]]:
    """Return for each image: source, patient, kind of white area, features (2, 3, n), and painted shares (2, 3).

    The kind is "" for an unchanged image. Features and shares are those of `third_features`.
    """
    made = []
    for name, rows in training_rows(data).items():
        for number, row in enumerate(rows):
            path = data / row["path"]
            plain = finder.find(decode_image_bytes(path.read_bytes(), ImageRef(path=path)))
            if plain is None:
                continue
            hulls = lung_hulls(np.asarray(Picture.fromarray(plain[0]).resize((_SIDE, _SIDE))) >= 0.5)
            for order, kind in enumerate(("", *WHITE_AREA_KINDS)):
                generator = np.random.default_rng([37, len(name), number, order])
                here = int(generator.integers(2))
                if kind and len(hulls) < 2:
                    continue
                place = (
                    draw_white_area(hulls[here], kind, generator, is_left=here == 0)
                    if kind
                    else np.zeros_like(hulls[0])
                )
                seen = finder.find(Image(pixels=paint_white(plain[1], place, generator))) if kind else plain
                if seen is not None:
                    made.append((name, f"{name} {row['patient_id']}", kind, *third_features(*seen, place)))
    return made


def fit_weights(samples: list[Any]) -> list[str]:
    """Fit weights by which at most the share `_FALSE_ALARMS` of normal images is falsely reported.

    Returns lines with the weights, and with results on images that were not used in the fit.
    """
    source, patient, kind = (np.array([sample[place] for sample in samples]) for place in range(3))
    facts, covered = (np.array([sample[place] for sample in samples]) for place in (3, 4))
    hot = np.zeros((*covered.shape, THIRDS_PER_LUNG + 1))
    hot[..., range(THIRDS_PER_LUNG), range(THIRDS_PER_LUNG)] = 1
    hot[:, 1, :, THIRDS_PER_LUNG] = 1  # 1 for the patient's left lung
    inputs = np.concatenate([facts, hot], axis=-1)
    weights = np.zeros(covered.shape)
    for name in np.unique(source):
        for is_group, share in (((source == name) & (kind == ""), 1.0), ((source == name) & (kind != ""), 2.0)):
            weights[is_group] = share / max(1, int(np.count_nonzero(is_group)))
    weights[(covered > _PAINTED[0]) & (covered < _PAINTED[1])] = 0
    weights *= np.count_nonzero(weights) / weights.sum()

    def learnt(of: NDArray[Any]) -> LogisticRegression:
        known = of[:, None, None] & (weights > 0)
        model = LogisticRegression(C=10, fit_intercept=False, max_iter=5000)
        return model.fit(inputs[known], covered[known] > _PAINTED[1], sample_weight=weights[known])

    patients = np.unique(patient)
    fold = np.random.default_rng(37).permutation(len(patients))[np.searchsorted(patients, patient)] % _FOLDS
    score = np.zeros(len(samples))
    for number in range(_FOLDS):
        out = fold == number
        score[out] = (inputs[out] @ learnt(~out).coef_[0]).max(axis=(1, 2))
    sources = [score[(source == name) & (kind == "")] for name in np.unique(source)]
    steps = np.arange(0, 9, 0.01).tolist()
    limit = next(at for at in steps if np.mean([(of > at).mean() for of in sources]) <= _FALSE_ALARMS)
    found, above = learnt(np.ones(len(samples), bool)).coef_[0].round(2).tolist(), score > limit
    counted = [(name, (source == name) & (kind == "")) for name in np.unique(source)]
    counted += [(name, kind == name) for name in WHITE_AREA_KINDS]
    return [
        *(f"{name}: {np.count_nonzero(above & of)} of {np.count_nonzero(of)}" for name, of in counted),
        f"WEIGHTS {found[:-4]}",
        f"THIRD_INTERCEPTS {[round(value - limit, 2) for value in found[-4:-1]]}",
        f"LEFT_LUNG_INTERCEPT {found[-1]}",
    ]


def main() -> None:
    """Fit the weights on the data of the command line, and print weights and results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    data = parser.parse_args().data
    with temporary_home() as home:
        sys.stdout.write("\n".join(fit_weights(make_samples(data, LungFinder(home)))) + "\n")


if __name__ == "__main__":
    main()
