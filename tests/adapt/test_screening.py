"""Screening for a model card gives the results of `fieldray screen` with the same pack."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from fieldray.domain.model import Manifest, PackRequirement
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.signing import BUILTIN_LUNG_PACK
from fieldray.packs.verified import read_verified_manifest
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.evaluation.screening import load_temporary_pack, screen_rows
from phantoms import write_dicom
from tiny_lungs import write_tiny_lungs
from tiny_models import tiny_manifest, tiny_model_bytes


def _manifest() -> Manifest:
    texts = {"en": "Bright images are abnormal.", "uk": "Світлі знімки - з відхиленням."}
    plain = tiny_manifest()
    point = plain.operating_points[0]
    return replace(
        plain,
        names=texts,
        descriptions=texts,
        intended_use=texts,
        limits=texts,
        labels=(replace(plain.labels[0], meaning={"en": "opacity", "uk": "затемнення"}),),
        operating_points=(point, replace(point, name="nothing", threshold=1.0, unsure_low=1.0, unsure_high=1.0)),
    )


def _row(path: Path) -> Row:
    return Row(path=path, source="drawn", classes=frozenset(), patient=path.stem, origin=str(path))


def test_a_pack_that_is_not_written_yet_has_the_lungs_that_the_program_gives_it(tmp_path: Path) -> None:
    files = {"litert": tiny_model_bytes()}
    plain = load_temporary_pack(_manifest(), files, lung_pack=None)
    assert plain.lungs is not None and plain.lungs.pack_name == BUILTIN_LUNG_PACK
    lungs = write_tiny_lungs(tmp_path)
    signer = read_verified_manifest(lungs).fingerprint
    required = PackRequirement(kind="lung-fields", id="test-lungs", minimum_version="1.0.0", key=signer)
    model = load_temporary_pack(replace(_manifest(), requires=(required,)), files, lung_pack=lungs)
    assert model.lungs is not None and model.lungs.pack_name == "test-lungs-1.0.0"


def test_a_refused_image_has_no_score_and_each_operating_point_decides_separately(tmp_path: Path) -> None:
    views = ("PA", "LL", "AP")
    for seed, view in enumerate(views):
        pixels = chest_phantom(128, 128, seed=seed, abnormal=False)
        write_dicom(tmp_path / f"{view}.dcm", pixels, changes={"ViewPosition": view})
    rows = [_row(tmp_path / f"{view}.dcm") for view in views]
    told = list[int]()
    model = load_temporary_pack(_manifest(), {"litert": tiny_model_bytes()}, lung_pack=None)
    found = screen_rows(model, rows, threads=1, progress=lambda _what, done, _all: told.append(done))
    assert told == [1, 2, 3]
    label = model.manifest.labels[0].code
    cases = found.cases_by_operating_point(label, np.array([1, 0, np.nan], np.float32))  # the third image has no label
    first, nothing = (cases[point.name] for point in model.manifest.operating_points)
    assert [(case.patient_key, case.truth) for case in first] == [("PA", True), ("LL", False)]
    assert first[0].score is not None and first[1].category == "refused" and first[1].score is None
    assert first[1].reason is not None and nothing[0].category == "normal"
    scores = found.scores(label)
    assert scores[0] == first[0].score and math.isnan(scores[1]) and not math.isnan(scores[2])
