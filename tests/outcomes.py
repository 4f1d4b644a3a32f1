"""Outcomes for tests of the results database, the reports and the pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import numpy as np

from fieldray.domain.finding import (
    Decision,
    FailedOutcome,
    Finding,
    ImageFacts,
    RefusedOutcome,
    ScreenedOutcome,
    decide,
)
from fieldray.domain.image import CoordinateMap, ImageHeader, ImageRef
from fieldray.domain.model import Estimate, OperatingPoint
from fieldray.domain.run import PackSpec, RefusalOverrides, Run, RunSpec, StoredResult
from fieldray.reasons import reason
from fieldray.reports.exporter import StoredRun


def operating_point(**changes: object) -> OperatingPoint:
    """Return an operating point of the label `opacity`."""
    values = {
        "name": "screening",
        "label": "opacity",
        "threshold": 0.5,
        "unsure_low": 0.4,
        "unsure_high": 0.6,
        "sensitivity": Estimate(0.9, 0.8, 0.95),
        "specificity": Estimate(0.7, 0.6, 0.8),
        "titles": {"en": "screening"},
        "measured_on": {"en": "test set"},
    }
    return OperatingPoint(**{**values, **changes})


POINT = operating_point()


def pack_spec(**changes: object) -> PackSpec:
    """Return a pack with the operating point of `operating_point`."""
    values = {
        "pack_name": "tiny-1.0.0",
        "trust": "signed",
        "fingerprint": "ab",
        "model_sha256": "m" * 64,
        "settings_hash": "s" * 64,
        "operating_points": (POINT,),
        "lungs_pack": "lungs-1.0.0 0123456789ab",
    }
    return PackSpec(**{**values, **changes})


def run_spec(**changes: object) -> RunSpec:
    """Return a run of the pack of `pack_spec` over one folder. `changes` are of the run or of the pack."""
    values = {"paths": ("/images",), "program_version": "0.2.0", "overrides": RefusalOverrides()}
    own = {name: changes.pop(name) for name in [one.name for one in fields(RunSpec)] if name in changes}
    return RunSpec(**{"packs": (pack_spec(**changes),), **values, **own})


def stored_run(results: Iterable[StoredResult] = (), **changes: object) -> StoredRun:
    """Return a finished run with these results, as an exporter receives it."""
    run = Run(run_id=1, spec=run_spec(**changes), state="finished", reason=None, started_s=1.0, ended_s=2.0)
    return StoredRun(run=run, results=results)


def image_ref(name: str = "a.dcm", **changes: object) -> ImageRef:
    """Return a DICOM image with a header."""
    header = ImageHeader(sop_instance_uid=f"1.2.{name}", study_instance_uid="1.2.3", patient_age_years=41.5)
    return ImageRef(**{"path": Path("/images") / name, "kind": "dicom", "header": header, **changes})


def read_facts(content_sha256: str = "c" * 64) -> ImageFacts:
    """Return all facts of an image that was read."""
    return ImageFacts(
        content_sha256=content_sha256,
        rows=300,
        columns=200,
        thumbnail=np.arange(12, dtype=np.uint8).reshape(3, 4),
        input_to_image=CoordinateMap(1.0, 0.5, 2.0, 0.25),
        decode_ms=12.3456,
        notes=("monochrome1",),
    )


def screened(ref: ImageRef | None = None, *, score: float = 0.8, decision: Decision | None = None) -> ScreenedOutcome:
    """Return an image with one finding and a class map. By default its score decides."""
    finding = Finding(label="opacity", score=score, point=POINT, decision=decision or decide(score, POINT))
    return ScreenedOutcome(
        ref=ref or image_ref(),
        facts=read_facts(),
        findings=(finding,),
        class_maps=np.arange(8, dtype=np.float32).reshape(1, 2, 4),
        pack_name="tiny-1.0.0",
        model_sha256="m" * 64,
        backend="cpu",
        inference_ms=3.25,
        extra_figures={"gate_distance": 1.5},
    )


def refused(ref: ImageRef | None = None) -> RefusedOutcome:
    """Return a lateral view, which is refused."""
    return RefusedOutcome(ref=ref or image_ref("side.dcm"), reason=reason("view", view="LL"))


def failed(ref: ImageRef | None = None) -> FailedOutcome:
    """Return a truncated file, which failed."""
    return FailedOutcome(ref=ref or image_ref("cut.dcm"), stage="decode", reason=reason("truncated"))
