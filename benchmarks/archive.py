"""Write the image archive for the benchmarks: a set of images, each as files of several kinds, in a folder.

<root>/<kind>/NNN.dcm     the images of one kind
<root>/rounds/<kind>/     links to these images under many names, enough to time a fast program
<root>/mixed/             links to the six usual kinds in turn
<root>/first/             one small image of each kind, for the warm-up
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydicom.pixels import get_decoder

from benchmarks.image_files import IMAGE_KINDS, GreyImage, ImageKind, enlarge_image, read_image, write_image
from fieldray.domain.image import ImageRef
from fieldray.errors import InputProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import chest_phantom
from fieldray.process_environment import usable_cores

USUAL_KINDS: Final = ("uncompressed", "RLE", "JPEG-LS", "JPEG 2000", "PNG", "JPEG")
_IMAGE_SIZES: Final = 6  # number of image sizes, from the smallest to the largest
_MAX_SOURCES: Final = 24
# Each kind has about this many file names, so that a run of a fast program lasts long enough to be measured.
_NAMES_OF_EACH_KIND: Final = 96
_MIN_REPEATS, _MAX_REPEATS = 4, 16
_WARM_UP_MEGAPIXELS: Final = 1.0
_OWN_PLUGINS: Final = frozenset({"libjpeg-turbo"})  # decoders that this program adds to pydicom

Notify = Callable[[str], None]
MakeImage = Callable[[float, int], GreyImage]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFile:
    """An image file of the archive: path, kind (such as "JPEG 2000"), and number of pixels."""

    path: Path
    kind: str
    pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A complete archive of image files: the root folder, and the files of each kind."""

    root: Path
    files: Mapping[str, tuple[ImageFile, ...]]

    @property
    def mixed_files(self) -> tuple[ImageFile, ...]:
        """Return the files of the six most common kinds, such as JPEG 2000 (see `USUAL_KINDS`)."""
        return tuple(file for kind in USUAL_KINDS for file in self.files.get(kind, ()))

    def folder(self, kind: str) -> Path:
        """Return the folder that has the images of the kind `kind`, each under many file names."""
        return self.root / "rounds" / _slug(kind)

    @property
    def mixed_folder(self) -> Path:
        """Return the folder that has files of the six most common kinds (see `USUAL_KINDS`), alternating by kind."""
        return self.root / "mixed"

    @property
    def warm_up_folder(self) -> Path:
        """Return the folder that has one small image of each kind, for the warm-up."""
        return self.root / "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """The description of an archive to write: numbers, kinds and sizes of the image files.

    Attributes
    ----------
    files
        Total number of files of the six usual kinds.
    files_per_other_kind
        Number of files of each other kind.
    megapixels
        Smallest and largest size of an image, in megapixels.
    kinds
        The kinds of files to write; all kinds if empty.
    age_years
        Age of the patients in DICOM files; None for the age of a child.
    """

    files: int = 144
    files_per_other_kind: int = 6
    megapixels: tuple[float, float] = (1.0, 7.0)
    kinds: tuple[str, ...] = ()
    age_years: int | None = None

    def count(self, kind: str) -> int:
        """Return the number of files of the kind `kind`."""
        if self.kinds and kind not in self.kinds:
            return 0
        usual = [name for name in USUAL_KINDS if name in self.kinds or not self.kinds]
        return max(1, self.files // len(usual)) if kind in usual else self.files_per_other_kind

    def image_numbers(self, kind: str) -> tuple[int, ...]:
        """Return the numbers (from 1) of the images that are written as the kind `kind`.

        The number decides the size of an image. If there are only a few images, they are spread over all sizes.
        """
        count = self.count(kind)
        if count >= _IMAGE_SIZES:
            return tuple(range(1, count + 1))
        return tuple(round(1 + (_IMAGE_SIZES - 1) * (index + 0.5) / count) for index in range(count))


def make_archive(
    root: Path,
    plan: ArchivePlan,
    *,
    source: Path | None,
    notify: Notify,
    is_readable: Callable[[ImageKind], bool] | None = None,
) -> Archive:
    """Write an archive of image files to a new folder.

    Parameters
    ----------
    root
        The path of the new folder, which must not exist.
    source
        A file or folder with images to enlarge. None to draw synthetic images.
    notify
        A function that is called with messages about the progress.
    is_readable
        A function that returns whether files of a kind are written. None for `is_readable_by_scripts`.

    Raises
    ------
    OSError
    UsageProblem
        `source` does not exist (nothing_to_screen).
    """
    is_readable = is_readable or is_readable_by_scripts
    kinds = [kind for name, kind in IMAGE_KINDS.items() if plan.count(name) and is_readable(kind)]
    files: dict[str, list[ImageFile]] = {kind.name: [] for kind in kinds}
    images = _images(source)
    image_count = max(max(plan.image_numbers(kind.name)) for kind in kinds)
    with ThreadPoolExecutor(usable_cores()) as threads:
        for number in range(1, image_count + 1):
            notify(f"writing image {number} of {image_count}")
            image = next(images)(_megapixels(number, plan.megapixels), number)
            due = [kind for kind in kinds if number in plan.image_numbers(kind.name)]
            write = functools.partial(_write, root=root, image=image, number=number, age_years=plan.age_years)
            for kind, file in zip(due, threads.map(write, due), strict=True):
                files[kind.name].append(file)
    _link(root, files)
    _write_first(root / "first", kinds, next(images)(_WARM_UP_MEGAPIXELS, 0), age_years=plan.age_years)
    return Archive(root=root, files={name: tuple(found) for name, found in files.items()})


def is_readable_by_scripts(kind: ImageKind) -> bool:
    """Return whether the usual scripts can read a kind of file: pydicom without this program's decoders."""
    if kind.syntax is None or not kind.syntax.is_encapsulated:
        return True
    return bool(set(get_decoder(kind.syntax).available_plugins) - _OWN_PLUGINS)


def _write(kind: ImageKind, *, root: Path, image: GreyImage, number: int, age_years: int | None) -> ImageFile:
    folder = root / _slug(kind.name)
    folder.mkdir(parents=True, exist_ok=True)
    path = write_image(folder / f"{number:03}", image, kind, number=number, age_years=age_years)
    return ImageFile(path=path, kind=kind.name, pixels=image.size)


def _write_first(folder: Path, kinds: Sequence[ImageKind], image: GreyImage, *, age_years: int | None) -> None:
    folder.mkdir(parents=True)
    for kind in kinds:
        write_image(folder / _slug(kind.name), image, kind, number=999, age_years=age_years)


def _link(root: Path, files: Mapping[str, Sequence[ImageFile]]) -> None:
    for kind, found in files.items():
        times = max(_MIN_REPEATS, min(_MAX_REPEATS, _NAMES_OF_EACH_KIND // len(found)))
        _link_all(root / "rounds" / _slug(kind), [file.path for file in found] * times)
    usual = [[file.path for file in files[kind]] for kind in USUAL_KINDS if kind in files]
    in_turn = [path for row in itertools.zip_longest(*usual) for path in row if path]
    _link_all(root / "mixed", in_turn)


def _link_all(folder: Path, paths: Sequence[Path]) -> None:
    folder.mkdir(parents=True)
    for number, path in enumerate(paths):
        target = folder / f"{number:05}{path.suffix}"
        try:
            os.link(path, target)
        except OSError:  # the file system has no hard links
            shutil.copyfile(path, target)


def _megapixels(number: int, between: tuple[float, float]) -> float:
    """Return the size in megapixels of the image with the number `number`.

    From image to image, sizes grow by an equal factor from the lower to the upper limit, and then start again.
    """
    low, high = between
    return float(low * (high / low) ** ((number - 1) % _IMAGE_SIZES / (_IMAGE_SIZES - 1)))


def _images(source: Path | None) -> Iterator[MakeImage]:
    """Yield functions that return an image for (megapixels, seed). The iterator never ends.

    The images are enlarged copies of the images in `source`, in turn. Without `source`, synthetic images are drawn.
    """
    refs = itertools.islice(discover([source]), 10 * _MAX_SOURCES) if source else ()
    shown = tuple(itertools.islice(_readable(ref for ref in refs if ref.problem is None), _MAX_SOURCES))
    makers: list[MakeImage] = [functools.partial(_enlarged, picture) for picture in shown]
    return itertools.cycle(makers or [_drawn])


def _enlarged(shown: NDArray[np.uint8], megapixels: float, seed: int) -> GreyImage:
    return enlarge_image(shown, megapixels=megapixels, seed=seed)


def _readable(refs: Iterable[ImageRef]) -> Iterator[NDArray[np.uint8]]:
    for ref in refs:
        try:
            yield read_image(ref)
        except InputProblem:
            continue


def _drawn(megapixels: float, seed: int) -> GreyImage:
    side = round((megapixels * 1e6) ** 0.5)
    return chest_phantom(side, side, seed + 1, abnormal=seed % 3 == 0)


def _slug(kind: str) -> str:
    return kind.lower().replace(" ", "-")
