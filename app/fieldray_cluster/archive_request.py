"""What an archive is screened with, and what a node says of itself before it is given any work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.domain.assessment import Assessment, choose
from fieldray.domain.model import Model
from fieldray.errors import FieldrayError
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import split_name
from fieldray.packs.reading import list_drives
from fieldray.paths import VERSION, user_data
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from fieldray_cluster.objects import is_address
from fieldray_cluster.pool import result_key

# What a node has to do as the driver does it; all else is its own affair.
_SHARED_SETTINGS: Final = ("device", "policy", "decode_timeout_s", "decode_memory_mb", "keep_previews")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRequest:
    """What makes two starts the same work. Two requests that are equal give the same results.

    Attributes
    ----------
    paths
        Absolute, as the driver sees them; or the one address of objects.
    pack
        How a node finds the pack: its folder, or `id-version` with its signer.
    pack_name, model_sha256, settings_hash
        What every node has to come to with it.
    operating_point, ages_confirmed
        As for `fieldray screen`.
    settings
        Those of the driver that decide how an image is read and run, in the order of their names.
    program_version
        Of the driver.
    """

    paths: tuple[str, ...]
    pack: str
    pack_name: str
    model_sha256: str
    settings_hash: str
    operating_point: str | None
    ages_confirmed: bool
    settings: tuple[tuple[str, str | int | float | bool], ...]
    program_version: str = VERSION

    @property
    def work(self) -> str:
        """What may not change from one start to the next on the same output folder."""
        return result_key(
            sorted(self.paths), self.pack_name, self.model_sha256, self.settings_hash, self.settings,
            version=self.program_version,
        )  # fmt: skip


def make_request(
    paths: Sequence[str],
    pack: str,
    assessment: Assessment,
    *,
    operating_point: str | None,
    settings: Settings,
) -> ArchiveRequest:
    """The request for absolute paths or an address; `pack` is how nodes find the pack of the assessment."""
    model = assessment.model
    return ArchiveRequest(
        paths=tuple(paths),
        pack=pack,
        pack_name=model.pack_name,
        model_sha256=model.model_sha256,
        settings_hash=assessment.settings_hash,
        operating_point=operating_point,
        ages_confirmed=assessment.ages_confirmed,
        settings=tuple((name, settings[name]) for name in _SHARED_SETTINGS),
    )


def load_model(request: ArchiveRequest) -> Model:
    """The pack on this node, verified by what is trusted here. Raises PackProblem, StorageProblem."""
    library = PackLibrary(user_data())
    try:
        drives = [Path(drive.mount_point) for drive in list_drives() if drive.pack_folders]
    except OSError:
        drives = []
    return library.load(library.find(request.pack, drives=drives), signer=split_name(request.pack)[1])


def problem_of_node(request: ArchiveRequest, *, needs_paths: bool = True) -> Reason | None:
    """Why this process cannot work on a request, None if it can; `needs_paths` where it reads the files itself."""
    try:
        model = load_model(request)
        assessment = choose(model, operating_point=request.operating_point, ages_confirmed=request.ages_confirmed)
    except FieldrayError as error:
        return reason("cluster_no_pack", pack=request.pack_name, detail=error.reason.text)
    if model.model_sha256 != request.model_sha256:
        return reason("cluster_other_pack", pack=request.pack_name)
    if assessment.settings_hash != request.settings_hash:
        return reason("cluster_other_settings", pack=request.pack_name)
    path = lost_path(request) if needs_paths else ""
    return reason("cluster_no_path", path=path) if path else None


def lost_path(request: ArchiveRequest) -> str:
    """The first path of the request that this computer does not see, or that is an empty folder; "" if it sees all.

    A share that is not mounted leaves an empty folder.
    """
    for path in request.paths:
        try:
            if is_address(path):
                continue  # its server is asked for each object
            if not os.path.lexists(path) or (Path(path).is_dir() and next(Path(path).iterdir(), None) is None):
                return path
        except OSError:
            return path
    return ""
