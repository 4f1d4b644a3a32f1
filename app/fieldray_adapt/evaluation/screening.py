"""Screen the images on which figures are measured, exactly as `fieldray screen` does.

So the figures of a model card count the classes that a user sees, such as Not suitable and Read first. Each operating
point is screened separately, because the threshold decides which images the program reads again in finer detail.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldray.audit.units import Case, score_and_category
from fieldray.domain.finding import Outcome, reason_of
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Manifest, Model
from fieldray.domain.pack_setup import set_up_pack
from fieldray.errors import PackProblem
from fieldray.inference.engine import Engine
from fieldray.packs.library import PackLibrary
from fieldray.packs.signing import load_or_create_key
from fieldray.packs.verified import read_verified_manifest, write_pack
from fieldray.pipeline.screen import screen_with_packs
from fieldray.settings import Settings
from fieldray.workers.pool import number_of_workers, open_workers
from fieldray.workers.readiness import ModelReadiness
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.run import Progress


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ScreeningResults:
    """The results of screening labelled images: for each operating point, the outcome of each table row's image."""

    rows: Sequence[Row]
    outcomes_by_operating_point: Mapping[str, Sequence[Outcome]]

    def cases_by_operating_point(self, label: str, targets: NDArray[np.float32]) -> dict[str, list[Case]]:
        """Return the screened images with a known label, as cases of an audit, by name of the operating point.

        Parameters
        ----------
        label
            The code of the label.
        targets
            The label of each image (n,): 1 with the label, 0 without, nan if unknown.
        """
        return {
            point: [
                _case(number, row, outcome, label=label, truth=bool(target))
                for number, (row, outcome, target) in enumerate(zip(self.rows, outcomes, targets, strict=True))
                if not np.isnan(target)
            ]
            for point, outcomes in self.outcomes_by_operating_point.items()
        }

    def scores(self, label: str) -> NDArray[np.float64]:
        """Return the calibrated score (n,) of each image for a label; nan for images without a score.

        `label` is the code of the label. The scores are taken from the screening at the first operating point.
        """
        outcomes = next(iter(self.outcomes_by_operating_point.values()))
        return np.array([np.nan if (score := score_and_category(one, label)[0]) is None else score for one in outcomes])


def _case(number: int, row: Row, outcome: Outcome, *, label: str, truth: bool) -> Case:
    score, category = score_and_category(outcome, label)
    return Case(
        image_key=outcome.ref.key,
        row_id=number,
        patient_key=row.person_id,
        truth=truth,
        score=score,
        category=category,
        header=outcome.ref.header,
        reason=reason_of(outcome),
    )


def screen_rows(model: Model, rows: Sequence[Row], *, threads: int, progress: Progress) -> ScreeningResults:
    """Screen the image of each row on the CPU, at each operating point of a pack.

    Parameters
    ----------
    model
        The pack, with the lung-field pack that it uses.
    threads
        Number of images screened at the same time; 0 for one image on each core.
    progress
        Receives the progress under the name `screened images`.

    Raises EnvironmentProblem if no image can be read or no network can run.
    """
    points = dict.fromkeys(point.name for point in model.manifest.operating_points)
    settings = Settings({})
    found: list[tuple[Outcome, ...]] = []
    with (
        open_workers(settings, threads or number_of_workers(settings)) as workers,
        Engine(lambda _: None, cpu=partial(ModelReadiness, workers)) as engine,
        ThreadPoolExecutor(workers.size) as pool,
    ):
        workers.register_model_group([model])
        engine.open(model)
        setups = [set_up_pack(model, operating_point=name) for name in points]
        screen = partial(screen_with_packs, setups=setups, workers=workers, engine=engine)
        refs = [ImageRef(path=row.path) for row in rows]
        for outcomes in pool.map(screen, refs):
            found.append(outcomes)
            progress("screened images", len(found), len(rows))
    by_point = zip(points, zip(*found, strict=True), strict=True)
    return ScreeningResults(rows=rows, outcomes_by_operating_point=dict(by_point))


def load_temporary_pack(manifest: Manifest, files: Mapping[str, bytes], *, lung_pack: Path | None) -> Model:
    """Write a pack to a temporary folder, and load it as the program loads a pack from a drive.

    A pack that needs a lung-field pack gets the lung-field pack that the program ships. If the shipped pack does not
    meet the requirement in `manifest`, the pack in `lung_pack` is used.

    Parameters
    ----------
    manifest, files
        Manifest and files of the pack, as `write_pack` takes them.
    lung_pack
        The folder of the recipe's lung-field pack; None without a lung-field pack.

    Raises PackProblem, StorageProblem.
    """
    with tempfile.TemporaryDirectory() as name:
        home, drive = Path(name, "home"), Path(name, "drive")
        key = load_or_create_key(home / "key.pem")
        folder = write_pack(drive, manifest=manifest, files=files, card="Not measured yet.", golden=None, key=key)
        library, signer = PackLibrary(home), read_verified_manifest(folder).fingerprint
        library.trust_store.trust(signer)
        try:
            return library.load(folder, signer=signer)
        except PackProblem:
            if lung_pack is None:
                raise
        library.trust_store.trust(read_verified_manifest(lung_pack).fingerprint)
        shutil.copytree(lung_pack, drive / lung_pack.name)
        return library.load(folder, signer=signer)
