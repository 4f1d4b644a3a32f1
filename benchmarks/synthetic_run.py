"""Write a run with any number of synthetic results to a results database, without image files.

The results are stored as in screening, by `ResultStore.save_all`, with thumbnail, heat map and lungs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from fieldray.domain.finding import Finding, ImageFacts, Outcome, RefusedOutcome, ScreenedOutcome, decide
from fieldray.domain.image import CoordinateMap, Image, ImageHeader, ImageRef
from fieldray.domain.lungs import LungFields
from fieldray.domain.mask import CompressedShares
from fieldray.domain.model import Model
from fieldray.domain.run import PackSpec, RunSpec
from fieldray.imaging.preprocess import thumbnail
from fieldray.imaging.synthetic import chest_phantom, lung_mask
from fieldray.reasons import reason
from fieldray.store.results import ResultStore

_CELLS: Final = 14
_LUNG_SIDE: Final = 128
_IMAGES_PER_SAVE: Final = 2000
_FAMILY: Final = ("Adeyemi", "Brandt", "Chen", "Duarte", "Eriksen", "Farouk", "Garcia", "Havel", "Ivanenko", "Jansen")
_GIVEN: Final = ("Ana", "Boris", "Carla", "Dmytro", "Elif", "Finn", "Grace", "Hugo", "Iryna", "Jun")


class SyntheticRun:
    """Makes synthetic outcomes by number. Equal seeds give equal outcomes.

    The thumbnails, heat maps and lungs of a few synthetic chests are used in turn.
    """

    def __init__(self, model: Model, *, seed: int = 1, chest_count: int = 24) -> None:
        self.spec = RunSpec(
            paths=("/archive",),
            packs=(
                PackSpec(
                    pack_name=model.pack_name,
                    trust=model.trust,
                    fingerprint=model.fingerprint,
                    model_sha256=model.model_sha256,
                    settings_hash="benchmark",
                    operating_points=model.manifest.operating_points[:1],
                ),
            ),
        )
        self._model, self._seed = model, seed
        self._chests = [(thumbnail(image), lungs) for image, lungs in map(_chest, range(chest_count))]

    def save(self, database: Path, count: int, *, progress: Callable[[int], None]) -> int:
        """Store `count` outcomes in a new run of the results database `database`. Returns the run's id.

        The run is marked as cancelled. `progress` is called with the number of stored outcomes.
        """
        with ResultStore(database) as store:
            run_id = store.open_run(self.spec)
            for start in range(0, count, _IMAGES_PER_SAVE):
                images = [([outcome], ()) for outcome in self.outcomes(start, min(start + _IMAGES_PER_SAVE, count))]
                store.save_all(run_id, images, spec=self.spec)
                progress(min(start + _IMAGES_PER_SAVE, count))
            store.set_run_state(run_id, "cancelled")
        return run_id

    def outcomes(self, start: int, end: int) -> Iterator[Outcome]:
        """Yield the outcomes with the numbers from `start` to `end` - 1."""
        return map(self.outcome, range(start, end))

    def outcome(self, number: int) -> Outcome:
        """Return the outcome with the number `number`.

        Each patient has three images, in one or two studies. One image in thirty is not suitable.
        """
        draws, person = random.Random(f"{self._seed} {number}"), random.Random(f"{self._seed} {number // 3}")
        content = f"{draws.getrandbits(256):064x}"
        day = f"{person.randrange(2012, 2026)}{person.randrange(1, 13):02}{person.randrange(1, 29):02}"
        header = ImageHeader(
            modality="DX",
            body_part_examined="CHEST",
            view_position=draws.choice(("PA", "AP", "")),
            patient_name=f"{person.choice(_FAMILY)}^{person.choice(_GIVEN)}{person.randrange(10**5)}",
            patient_id=f"PID{person.randrange(10**8):08}",
            patient_sex=person.choice("FM"),
            study_date=day,
            study_instance_uid=f"1.2.826.0.1.{self._seed}.{number // 2}",
            sop_instance_uid=f"1.2.826.0.1.{self._seed}.{number}.1",
            rows=2048,
            columns=1720,
        )
        ref = ImageRef(path=Path(f"/archive/{number // 1000:05}/image-{number:08}.dcm"), kind="dicom", header=header)
        if draws.random() < 1 / 30:
            return RefusedOutcome(ref=ref, reason=reason("view", view="LL"), facts=ImageFacts(content_sha256=content))
        return self._screened(ref, content, draws)

    def _screened(self, ref: ImageRef, content: str, draws: random.Random) -> ScreenedOutcome:
        picture, lungs = draws.choice(self._chests)
        point, score = self._model.manifest.operating_points[0], draws.betavariate(1.2, 3.0)
        spot = np.zeros((1, _CELLS, _CELLS), np.float32)
        spot[0, draws.randrange(_CELLS), draws.randrange(_CELLS)] = 8 * score
        seen = self._model.manifest.input
        return ScreenedOutcome(
            ref=ref,
            facts=ImageFacts(
                content_sha256=content,
                rows=ref.header.rows,
                columns=ref.header.columns,
                thumbnail=picture,
                input_to_image=CoordinateMap(ref.header.rows / seen.height, 0.0, ref.header.columns / seen.width, 0.0),
                decode_ms=round(draws.uniform(20, 120), 3),
            ),
            findings=(Finding(label=point.label, score=score, point=point, decision=decide(score, point)),),
            class_maps=spot,
            pack_name=self._model.pack_name,
            model_sha256=self._model.model_sha256,
            backend="edgetpu" if draws.random() < 0.2 else "cpu",
            inference_ms=round(draws.uniform(6, 14), 3),
            lungs=lungs,
        )


def _chest(number: int) -> tuple[Image, LungFields]:
    """Draw a synthetic chest image. Returns the image, and its lungs as a lung-field pack would find them."""
    rows, columns = (1024, 860) if number % 2 else (960, 960)
    pixels = chest_phantom(rows, columns, number, abnormal=number % 3 == 0)
    lungs = LungFields(
        is_frontal_chest=True,
        has_lungs=True,
        left_lung_area_share=0.14,
        right_lung_area_share=0.16,
        cut_off_sides=(),
        rotation_degrees=0,
        is_inverted=False,
        is_mirrored=False,
        compressed_shares=CompressedShares.compress(lung_mask(_LUNG_SIDE, _LUNG_SIDE, number), 128),
        cells_to_image=CoordinateMap(rows / _LUNG_SIDE, 0.0, columns / _LUNG_SIDE, 0.0),
        evidence_inside=0.8,
    )
    return Image(pixels=pixels, window=None), lungs
