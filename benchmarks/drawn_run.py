"""A run to save: drawn studies, and results as if a pack had given them, each with a heat map and lungs."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from fieldray.domain.finding import Finding, ReadFacts, Screened, decide
from fieldray.domain.image import Image, PixelMap
from fieldray.domain.lungs import LungFields
from fieldray.domain.mask import KeptShares
from fieldray.domain.model import Model
from fieldray.domain.run import RunSpec
from fieldray.domain.study import ImageHeader, ImageRef
from fieldray.imaging.preprocess import thumbnail
from fieldray.imaging.synthetic import chest_phantom, image_dataset, lung_mask
from fieldray.paths import results_path
from fieldray.store.results import ResultStore

_CELLS: Final = 14
_LUNG_SIDE: Final = 128


def make_run(folder: Path, model: Model, count: int, *, drawn: int = 24) -> int:
    """Draw `count` studies into a folder and put a result with heat map and lungs for each into the store.

    `drawn` chests are drawn and used in turn. Returns the run and its number. Raises OSError, StorageProblem.
    """
    folder.mkdir(parents=True)
    spec = benchmark_spec(model, str(folder))
    chests = [drawn_chest(number) for number in range(min(drawn, count))]
    with ResultStore(results_path()) as store:
        run_id = store.open_run(spec)
        for number in range(1, count + 1):
            image, lungs = chests[number % len(chests)]
            store.save(run_id, _outcome(folder, number, image, lungs, model), spec=spec)
        store.finish(run_id)
    return run_id


def benchmark_spec(model: Model, path: str) -> RunSpec:
    """The specification of a run of this pack over a path, with the pack's first operating point."""
    return RunSpec(
        paths=(path,),
        pack_name=model.pack_name,
        trust=model.trust,
        fingerprint=model.fingerprint,
        model_sha256=model.model_sha256,
        settings_hash="benchmark",
        operating_points=model.manifest.operating_points[:1],
    )


def drawn_chest(number: int) -> tuple[Image, LungFields]:
    """A chest and its lungs, as a lung-field pack would find them."""
    rows, columns = (1024, 860) if number % 2 else (960, 960)
    pixels = chest_phantom(rows, columns, number, abnormal=number % 3 == 0)
    lungs = LungFields(
        is_frontal_chest=True,
        found=True,
        left_share=0.14,
        right_share=0.16,
        cut_off=(),
        rotation_degrees=0,
        is_inverted=False,
        is_mirrored=False,
        kept=KeptShares.of(lung_mask(_LUNG_SIDE, _LUNG_SIDE, number), 128),
        pixel_map=PixelMap(rows / _LUNG_SIDE, 0.0, columns / _LUNG_SIDE, 0.0),
        evidence_inside=0.8,
    )
    return Image(pixels=pixels, window=None), lungs


def _outcome(folder: Path, number: int, image: Image, lungs: LungFields, model: Model) -> Screened:
    """A file, and a result as if the model had given it: the scores run through the range."""
    dataset, path = image_dataset(image.pixels, number=number), folder / f"study-{number:05}.dcm"
    dataset.save_as(path, enforce_file_format=True)
    point, score = model.manifest.operating_points[0], (number * 7919 % 1000) / 1000
    (rows, columns), seen = image.pixels.shape, model.manifest.input
    spot = np.zeros((1, _CELLS, _CELLS), np.float32)
    spot[0, 4 + number % 6, 3 + number % 8] = 8 * score
    return Screened(
        ref=ImageRef(
            path=path,
            kind="dicom",
            header=ImageHeader(
                modality="DX",
                body_part_examined="CHEST",
                view_position="PA",
                patient_name=str(dataset.PatientName),
                patient_id=str(dataset.PatientID),
                study_date=str(dataset.StudyDate),
                study_instance_uid=str(dataset.StudyInstanceUID),
                sop_instance_uid=str(dataset.SOPInstanceUID),
                rows=rows,
                columns=columns,
            ),
        ),
        facts=ReadFacts(
            content_sha256=sha256(path.read_bytes()).hexdigest(),
            rows=rows,
            columns=columns,
            thumbnail=thumbnail(image),
            pixel_map=PixelMap(rows / seen.height, 0.0, columns / seen.width, 0.0),
            decode_ms=40.0,
        ),
        findings=(Finding(label=point.label, score=score, point=point, decision=decide(score, point)),),
        class_maps=spot,
        pack_name=model.pack_name,
        model_sha256=model.model_sha256,
        backend="cpu",
        inference_ms=8.0,
        lungs=lungs,
    )
