"""Choices of a site: its local operating points for a pack, and the pack for each folder of images.

Both are stored on this computer, next to the packs, never inside a pack. A local operating point belongs to one version
of a pack, by name and by hash of the model, because the manifest defines the meaning of a score. The name of a local
operating point begins with `local:`, which no pack may use. Lists, exports and images therefore show that the point is
the site's own.

The pack chosen for a folder applies to later runs and to sub-folders. Folders are often named after patients, so the
file contains a digest of each path instead of the path. An unreadable file counts as empty: the user is asked again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fieldray.domain.metrics import ReferralRule, Unit
from fieldray.domain.model import LOCAL_POINT_PREFIX, Estimate, Model, OperatingPoint
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.persistence import (
    exclusive_write_access,
    make_folder,
    require_regular_file,
    storage_problem,
    write_atomically,
)
from fieldray.reasons import Reason, reason
from fieldray.typed_json import parse_json

log = logging.getLogger(__name__)

LOCAL_POINTS_FILE_NAME: Final = "site_points.json"
_LARGEST_BYTES: Final = 1 << 20
REMEMBERED_PACKS_FILE_NAME: Final = "folders.json"
_LARGEST_FOLDERS_BYTES: Final = 4 << 20
_MAX_FOLDERS: Final = 10_000

_Text = Annotated[str, Meta(min_length=1, max_length=200)]
_Share = Annotated[float, Meta(ge=0, le=1)]


_COUNTED: Final[Mapping[Unit, tuple[str, str]]] = {
    "image": ("image", "зображеннями"),
    "exam": ("examination", "дослідженнями"),
    "patient": ("patient", "пацієнтами"),
}


class LocalOperatingPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One local operating point as stored.

    name                      name without the prefix `local:`; `a-z`, `0-9` and hyphens
    threshold, unsure_low, unsure_high
                              the threshold and the ends of the uncertain zone, 0..1
    sensitivity, specificity  (value, low, high), measured on the images with which the point was chosen
    images, patients          number of images with which the point was chosen, and number of their patients
    chosen_by                 the person who confirmed the point
    chosen_on                 the day, YYYY-MM-DD
    counted                   the unit of which sensitivity and specificity are shares: "image", "exam" or "patient"
    refers                    the lowest score that counts as referred in sensitivity and specificity: "above" for the
                              threshold, "unsure" for `unsure_low` (see `audit.units.CountingRule`)
    """

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]{0,39}$")]
    label: _Text
    model_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    pack: _Text
    threshold: _Share
    unsure_low: _Share
    unsure_high: _Share
    sensitivity: tuple[_Share, _Share, _Share]
    specificity: tuple[_Share, _Share, _Share]
    images: Annotated[int, Meta(ge=1)]
    patients: Annotated[int, Meta(ge=1)]
    chosen_by: _Text
    chosen_on: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    counted: Unit = "image"
    refers: ReferralRule = "above"

    @property
    def key(self) -> tuple[str, str, str]:
        """The unique key of the point: name of the point, name of its pack, and hash of the pack's model."""
        return self.name, self.pack, self.model_sha256

    @property
    def operating_point(self) -> OperatingPoint:
        """The point as an `OperatingPoint` of a model. Its name gets the prefix `local:`."""
        who, who_uk = _COUNTED[self.counted]
        also, also_uk = ("", "") if self.refers == "above" else (", Uncertain referred", ", «Невизначено» направлено")
        measured = f"{self.images} images of {self.patients} patients of this site, counted by {who}{also}; "
        measured += f"chosen {self.chosen_on}, "
        measured_uk = f"{self.images} зображень {self.patients} пацієнтів цього закладу, облік за {who_uk}{also_uk}; "
        measured_uk += f"вибрано {self.chosen_on}, "
        return OperatingPoint(
            name=f"{LOCAL_POINT_PREFIX}{self.name}",
            titles={"en": f"Local: {self.name}", "uk": f"Місцева: {self.name}"},
            label=self.label,
            threshold=self.threshold,
            unsure_low=self.unsure_low,
            unsure_high=self.unsure_high,
            sensitivity=Estimate(*self.sensitivity),
            specificity=Estimate(*self.specificity),
            measured_on={"en": f"{measured}{self.chosen_by}", "uk": f"{measured_uk}{self.chosen_by}"},
        )


class LocalPointFile:
    """The file of local operating points of one user.

    home  the user's data folder
    """

    def __init__(self, home: Path) -> None:
        self.path = home / LOCAL_POINTS_FILE_NAME

    def all_points(self) -> tuple[LocalOperatingPoint, ...]:
        """Return all local operating points of this site, the oldest first.

        Raises StorageProblem for an unreadable file.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(_LARGEST_BYTES + 1)
            points = parse_json(data, tuple[LocalOperatingPoint, ...])
            for point in points:
                _ = point.operating_point  # raises ValueError for an invalid uncertain zone
            if len({point.key for point in points}) != len(points):
                raise ValueError("a name stands twice for one pack")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise storage_problem(error, self.path) from error
        except ValueError as error:
            raise StorageProblem(reason("site_points_unreadable", path=self.path, detail=error)) from error
        return points

    def points_for(self, model: Model) -> tuple[OperatingPoint, ...]:
        """Return the local operating points of one pack. Raises StorageProblem."""
        its = model.pack_name, model.model_sha256
        return tuple(point.operating_point for point in self.all_points() if point.key[1:] == its)

    def problem(self) -> Reason | None:
        """Return the reason why the site's operating points cannot be read; None if they can be read."""
        try:
            self.all_points()
        except StorageProblem as problem:
            return problem.reason
        return None

    def add_to_model(self, model: Model) -> Model:
        """Return a model with the site's local operating points added.

        If the file of local operating points cannot be read, the problem is logged and the unchanged model is returned.
        """
        try:
            return with_local_points(model, self.points_for(model))
        except StorageProblem as problem:
            log.warning("%s", problem.reason.text)
            return model

    def add(self, point: LocalOperatingPoint) -> None:
        """Store a local operating point.

        Raises UsageProblem (site_point_name) for a name in use. Raises StorageProblem.
        """
        with exclusive_write_access(self.path):
            points = self.all_points()
            if any(known.key == point.key for known in points):
                raise UsageProblem(reason("site_point_name", name=point.name))
            self._write((*points, point))

    def remove(self, name: str, pack: str, model_sha256: str) -> None:
        """Remove a local operating point.

        name                name of the point, without the prefix `local:`
        pack, model_sha256  name of the point's pack, and SHA-256 of the pack's model

        Raises StorageProblem. Raises UsageProblem (site_point_unknown) if the point is not stored.
        """
        with exclusive_write_access(self.path):
            points = self.all_points()
            kept = [known for known in points if known.key != (name, pack, model_sha256)]
            if len(kept) == len(points):
                raise UsageProblem(reason("site_point_unknown", name=name))
            self._write(kept)

    def _write(self, points: Sequence[LocalOperatingPoint]) -> None:
        write_atomically(self.path, msgspec.json.format(msgspec.json.encode(points), indent=2))


def with_local_points(model: Model, points: tuple[OperatingPoint, ...]) -> Model:
    """Return a model with these local operating points. Local operating points already in the model are removed.

    The pack's own points come first, so that a local point never becomes the default.
    """
    labels = {label.code for label in model.manifest.labels}
    fitting = tuple(point for point in points if point.label in labels)
    own = (*(point for point in model.manifest.operating_points if not point.is_local), *fitting)
    return dataclasses.replace(model, manifest=dataclasses.replace(model.manifest, operating_points=own))


# ---- the pack of a folder


@dataclass(frozen=True, slots=True)
class RememberedPack:
    """The pack that a person chose for a folder, as `RememberedPacks` stores it.

    pack             the pack's id with its signer
    operating_point  name of the operating point; "" for the pack's first operating point
    ages_confirmed   whether a person or the demonstration has confirmed that the patients' ages suit the pack
    additional       further packs that screened in the same run, each named like `pack`
    """

    pack: str
    operating_point: str = ""
    ages_confirmed: bool = False
    additional: tuple[str, ...] = ()


_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class RememberedPacks:
    """The file that stores which pack a user chose for each folder.

    If two programs write at the same time, the later choice is kept.

    home  the user's data folder
    """

    def __init__(self, home: Path) -> None:
        self._path = home / REMEMBERED_PACKS_FILE_NAME

    def find(self, paths: Sequence[Path]) -> RememberedPack | None:
        """Return the pack stored for these paths; None if no pack is stored, or if the paths have different packs.

        If no pack is stored for a path, the pack of the nearest folder above counts.
        """
        known = self._read()
        found = {next((known[digest] for digest in _digests(path) if digest in known), None) for path in paths}
        return found.pop() if len(found) == 1 else None

    def remember(
        self,
        paths: Sequence[Path],
        pack: str,
        *,
        operating_point: str = "",
        ages_confirmed: bool = False,
        additional: Sequence[str] = (),
    ) -> None:
        """Store the pack that a person chose for these paths and for all folders below. Raises StorageProblem.

        The other parameters are the fields of `RememberedPack`.
        """
        chosen = RememberedPack(pack, operating_point, ages_confirmed, tuple(additional))
        digests = [next(_digests(path)) for path in paths]
        try:
            make_folder(self._path.parent)
            with exclusive_write_access(self._path):
                known = {digest: entry for digest, entry in self._known().items() if digest not in digests}
                latest = [*known.items(), *((digest, chosen) for digest in digests)][-_MAX_FOLDERS:]
                write_atomically(self._path, msgspec.json.encode(dict(latest)))
        except OSError as error:
            raise storage_problem(error, self._path) from error

    def _read(self) -> Mapping[str, RememberedPack]:
        try:
            return self._known()
        except (OSError, StorageProblem) as error:
            log.warning("%s is not used: %r", REMEMBERED_PACKS_FILE_NAME, error)
            return {}

    def _known(self) -> Mapping[str, RememberedPack]:
        """Read the stored choices by digest; empty for a damaged file.

        Raises OSError for an unreadable file, StorageProblem.
        """
        require_regular_file(self._path)
        try:
            with self._path.open("rb") as file:
                return parse_json(file.read(_LARGEST_FOLDERS_BYTES), dict[_Digest, RememberedPack])
        except FileNotFoundError:
            return {}
        except ValueError as error:
            log.warning("%s is not used: %r", REMEMBERED_PACKS_FILE_NAME, error)
            return {}


def _digests(path: Path) -> Iterator[str]:
    """Yield the digests of a path and of every folder above it, the nearest folder first. Links are resolved."""
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        yield hashlib.sha256(os.fsencode(os.path.normcase(folder))).hexdigest()
