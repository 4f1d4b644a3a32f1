"""The demonstration: real images whose licences allow it, with published labels, and some that are refused on purpose.

Where they are from, under which licence, and what was changed is in `assets/demonstration/CREDITS.md` and `labels.csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image as Picture
from pydicom.dataset import Dataset

from fieldray.imaging.synthetic import chest_phantom, image_dataset
from fieldray.paths import asset

_ROWS: Final = 640
_COLUMNS: Final = 540


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the demonstration: images for one pack, and whether the patients' ages are published."""

    name: str
    pack: str
    of: str
    has_ages: bool


PARTS: Final[tuple[Part, ...]] = (
    Part(name="children", pack="pneumonia-paediatric", of="children aged one to five years", has_ages=True),
    Part(name="adults", pack="adult-normal-abnormal", of="patients with COVID-19", has_ages=False),
)


def published_labels(part: Part) -> Mapping[str, str]:
    """The published label of each image of a part, by file name."""
    rows = csv.DictReader((_folder() / "labels.csv").read_text(encoding="utf-8").splitlines())
    found = ((Path(row["file"]), row["published_label"]) for row in rows)
    return {path.name: label for path, label in found if path.parent.name == part.name}


def files(part: Part) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of a part: the images, then what is to be refused."""
    for name in published_labels(part):
        yield name, (_folder() / part.name / name).read_bytes()
    for name, make in _REFUSED.items():
        yield name, make(part)


def credits_file() -> Path:
    """Sources, authors and licences, in English (Markdown)."""
    return _folder() / "CREDITS.md"


def _folder() -> Path:
    return asset("demonstration")


# ---- drawn, to be refused


def _drawn(part: Part, *, view: str = "PA", body_part: str = "CHEST", age: str | None = None) -> Dataset:
    dataset = image_dataset(chest_phantom(_ROWS, _COLUMNS, 7, abnormal=False), number=900, view=view)
    dataset.BodyPartExamined = body_part
    dataset.PatientAge = age or ("003Y" if part.name == "children" else "045Y")
    return dataset


def _other_age(part: Part) -> bytes:
    return _saved(_drawn(part, age="045Y" if part.name == "children" else "003Y"))


def _hand(part: Part) -> bytes:
    """Five fingers and a palm, in a header that says so."""
    dataset = _drawn(part, body_part="HAND")
    down, across = np.mgrid[0:_ROWS, 0:_COLUMNS].astype(np.float32)
    inside = ((down - 470) / 120) ** 2 + ((across - 270) / 115) ** 2 < 1
    for number, top in enumerate((300, 150, 110, 140, 230)):
        middle = 120 + 75 * number
        inside |= (np.abs(across - middle - (down - 400) * (2 - number) * 0.06) < 24) & (down > top) & (down < 470)
    pixels = (2800 * inside + 60 * np.cos(across / 5) * inside + 40).astype("<u2")
    dataset.PixelData = pixels.tobytes()
    return _saved(dataset)


def _turned(part: Part) -> bytes:
    """The first image of the part, lying on its side."""
    name = next(iter(published_labels(part)))
    with Picture.open(_folder() / part.name / name) as picture:
        turned = picture.convert("L").transpose(Picture.Transpose.ROTATE_90)
    stream = io.BytesIO()
    turned.save(stream, "PNG")
    return stream.getvalue()


def _saved(dataset: Dataset) -> bytes:
    stream = io.BytesIO()
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


_REFUSED: Final[Mapping[str, Callable[[Part], bytes]]] = {
    "refused-lateral-view.dcm": lambda part: _saved(_drawn(part, view="LL")),
    "refused-hand.dcm": _hand,
    "refused-other-age.dcm": _other_age,
    "refused-on-its-side.png": _turned,
}
