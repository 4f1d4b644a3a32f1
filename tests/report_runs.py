"""Runs for tests of reports: real files, read by the real decoders, with made-up results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydicom import dcmread

from fieldray.domain.finding import Finding, ImageFacts, ScreenedOutcome
from fieldray.domain.image import CoordinateMap, ImageRef, ShownImage
from fieldray.domain.lungs import LungFields
from fieldray.domain.mask import CompressedShares
from fieldray.domain.run import StoredResult, Verdict
from fieldray.errors import InputProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.preprocess import thumbnail
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.synthetic import chest_phantom
from fieldray.imaging.whole_file import read_bytes
from fieldray.reasons import Reason
from fieldray.reports.exporter import PackOfStoredRun, ReportOptions, StoredRun
from outcomes import POINT, stored_run
from phantoms import write_dicom

KEY = b"k" * 32
_MAP_SIDE = 8
_LUNG_SIDE = 64
# Names of people as in files, and as drawn in a document. The first eight follow the rules of DICOM.
NAMES = {
    "Yamada^Tarou=山田^太郎=やまだ^たろう": "Yamada Tarou",
    "=山田^太郎": "山田 太郎",
    "홍^길동": "홍 길동",
    "สมชาย": "สมชาย",
    "Διονυσιος": "Διονυσιος",
    "Люкceмбypг": "Люкceмбypг",
    "Ґалаґан^Їжак": "Ґалаґан Їжак",
    "Buc^Jérôme": "Buc Jérôme",
    "Nguyễn^Văn": "Nguyễn Văn",
    "देवनागरी": "",  # drawn letter by letter, and in another order than stored
    "שרון": "שרון",
    "קפלן^שרון": "קפלן שרון",
    "قباني^محمد": "قباني محمد",
    "خٹک^فاطمہ": "خٹک فاطمہ",  # letters of Urdu
    "\ufffd\ufffd^\ufffd": "[not readable]",
    "M\ufffdller^Hans": "M[not readable]ller Hans",
    "𒀀": "\\U00012000",
    "\u202eevil": "\\u202eevil",
    "a\x00\x1b[2J\nb": "a\\x00\\x1b[2J\\nb",
    "\udcff": "\\udcff",
    "{nb}^<b>": "{nb} <b>",  # fpdf2's placeholder for the number of pages
}


def lungs_in(rows: int, columns: int) -> LungFields:
    """Return two ellipses as lungs, with the resolution of a 64 x 64 mask."""
    down, across = np.mgrid[0:_LUNG_SIDE, 0:_LUNG_SIDE] / _LUNG_SIDE
    shares = np.zeros((_LUNG_SIDE, _LUNG_SIDE), np.uint8)
    for middle in (0.3, 0.7):
        shares[((down - 0.5) / 0.3) ** 2 + ((across - middle) / 0.14) ** 2 < 1] = 255
    return LungFields(
        is_frontal_chest=True,
        has_lungs=True,
        left_lung_area_share=0.13,
        right_lung_area_share=0.13,
        cut_off_sides=(),
        rotation_degrees=0,
        is_inverted=False,
        is_mirrored=False,
        compressed_shares=CompressedShares.compress(shares, 128),
        cells_to_image=CoordinateMap(rows / _LUNG_SIDE, 0.0, columns / _LUNG_SIDE, 0.0),
        evidence_inside=0.75,
    )


def screened_file(ref: ImageRef, *, score: float = 0.8) -> ScreenedOutcome | None:
    """Return a file as if a pack had scored it; None for a file without an image."""
    if ref.problem is not None:
        return None
    try:
        data = read_bytes(ref)
        image = decode_image_bytes(data, ref)
    except InputProblem:
        return None
    rows, columns = image.size
    pixel_map = CoordinateMap(rows / _MAP_SIDE, 0.0, columns / _MAP_SIDE, 0.0)
    facts = ImageFacts(
        content_sha256=hashlib.sha256(data).hexdigest(),
        rows=rows,
        columns=columns,
        thumbnail=thumbnail(image),
        input_to_image=pixel_map,
    )
    return ScreenedOutcome(
        ref=ref,
        facts=facts,
        findings=(Finding(label="opacity", score=score, point=POINT, decision="above"),),
        class_maps=np.zeros((1, _MAP_SIDE, _MAP_SIDE), np.float32),
        pack_name="tiny-1.0.0",
        model_sha256="m" * 64,
        backend="cpu",
        inference_ms=1.0,
        lungs=lungs_in(rows, columns),
    )


def screened_files(paths: Sequence[Path]) -> list[ScreenedOutcome]:
    """Return all images in these files and folders, with scores."""
    return [found for ref in discover(paths) if (found := screened_file(ref)) is not None]


def with_header(outcome: ScreenedOutcome, **changes: object) -> ScreenedOutcome:
    """Return an outcome with other values in its header."""
    header = replace(outcome.ref.header, **changes)  # type: ignore[arg-type]
    return replace(outcome, ref=replace(outcome.ref, header=header))


def write_frames(path: Path, count: int, *, sop_class_uid: str = "1.2.840.10008.5.1.4.1.1.7.3") -> None:
    """Write a DICOM file of several frames, by default of a multi-frame class."""
    write_dicom(path, chest_phantom(160, 128, seed=1, abnormal=True))
    dataset = dcmread(path)
    dataset.NumberOfFrames = count
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = sop_class_uid
    dataset.PixelData = dataset.PixelData * count
    dataset.save_as(path)


def results_of(outcomes: Iterable[ScreenedOutcome], *, verdict: Verdict | None = None) -> list[StoredResult]:
    """Return outcomes as the results database gives them."""
    return [
        StoredResult(result_id=number, row_id=number, run_id=1, outcome=outcome, is_reused=False, verdict=verdict)
        for number, outcome in enumerate(outcomes, 1)
    ]


def read_here(results: Iterable[StoredResult], side: int) -> Iterator[tuple[StoredResult, ShownImage | Reason]]:
    """Yield images read in this process, as decoders give them."""
    for result in results:
        outcome = result.outcome
        try:
            image = decode_image_bytes(read_bytes(outcome.ref), outcome.ref).corrected(outcome.ref.correction)
        except InputProblem as error:
            yield result, error.reason
            continue
        pixels = thumbnail(image, min(side, max(image.pixels.shape)))
        yield result, ShownImage(pixels=pixels, file_rows=outcome.facts.rows, file_columns=outcome.facts.columns)


def run_with(results: Iterable[StoredResult], *, options: ReportOptions | None = None, **changes: object) -> StoredRun:
    """Return a run that an exporter can write, with images."""
    made = replace(stored_run(results), pseudonym_key=KEY, read_images=read_here, options=options or ReportOptions())
    of_pack = {name: changes.pop(name) for name in ("counts", "warnings", "manifest") if name in changes}
    return replace(made, packs=(PackOfStoredRun(**of_pack),), **changes)  # type: ignore[arg-type]
