"""`fieldray compare` from the command line: what it writes, what it refuses, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fieldray.imaging.synthetic import chest_phantom
from phantoms import write_dicom
from program import Fieldray

KEYS = [
    "comparable", "reason_code", "similarity_before", "similarity_after", "displacement_median_px",
    "displacement_p95_px", "matches", "rejected", "regions", "doubts", "notice",
]  # fmt: skip
OUTPUTS = {"warped_prior.png", "overlay.png", "displacement.npy"}

CHEST = (chest_phantom(512, 512, 1, abnormal=False) >> 4).astype(np.uint8)


def save(path: Path, pixels: np.ndarray = CHEST) -> Path:
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def current(tmp_path: Path) -> Path:
    return save(tmp_path / "current.png")


def test_a_pair_is_compared_and_then_one_that_must_not_be(tmp_path: Path, run_ok: Fieldray, current: Path) -> None:
    prior = save(tmp_path / "prior.png", np.roll(CHEST, (6, -4), axis=(0, 1)))
    mirrored = save(tmp_path / "mirrored.png", np.ascontiguousarray(CHEST[:, ::-1]))
    out, answer = tmp_path / "out", tmp_path / "answer.json"

    run_ok("compare", prior, current, "--out", out, "--json", answer)
    found = json.loads(answer.read_text(encoding="utf-8"))
    assert list(found) == KEYS
    assert found["comparable"]
    assert "not show the course of a disease" in found["notice"]
    assert {path.name for path in out.iterdir()} == OUTPUTS
    displacement = np.load(out / "displacement.npy")
    assert (displacement.shape, displacement.dtype) == ((512, 512, 2), np.float32)
    # The prior is shifted by 6 rows down and 4 columns left: 7.2 px
    assert np.median(displacement[150:350, 100:400], axis=(0, 1)) == pytest.approx((6, -4), abs=0.5)
    assert found["displacement_median_px"] == pytest.approx(7.2, abs=0.5)
    with Image.open(out / "warped_prior.png") as picture:
        assert picture.size == (512, 512)
        assert "not show the course of a disease" in str(picture.info["Comment"])

    found = json.loads(run_ok("compare", mirrored, current, "--out", out, "--json", "-").out)
    assert (found["comparable"], found["reason_code"]) == (False, "compare_mirrored")
    assert list(out.iterdir()) == []  # the output of the earlier pair is removed


def test_compare_prints_the_warnings_of_the_window(tmp_path: Path, run_ok: Fieldray) -> None:
    pixels, out = chest_phantom(512, 512, 1, abnormal=False), tmp_path / "out"
    who = {"PatientID": "1", "PatientName": "DOE^JANE", "PatientBirthDate": "19500101", "PatientSex": "F"}
    dates = {"earlier": "20240101", "later": "20250101"}
    earlier, later = (
        write_dicom(tmp_path / f"{name}.dcm", pixels, number=number, changes={**who, "StudyDate": day})
        for number, (name, day) in enumerate(dates.items(), 1)
    )
    (tmp_path / "copy.dcm").write_bytes(later.read_bytes())

    def warnings(prior: Path, current: Path) -> list[str]:
        done = run_ok("compare", prior, current, "--out", out, "--json", "-")
        found = json.loads(done.out)["doubts"]
        assert all(doubt["text"] in done.err for doubt in found)
        return [doubt["code"] for doubt in found]

    assert warnings(earlier, later) == []
    assert warnings(later, earlier) == ["prior_later"]
    assert "prior_same_image" in warnings(later, tmp_path / "copy.dcm")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"PresentationIntentType": "FOR PROCESSING"}, "for_processing"),
        ({"ImageType": ["DERIVED", "PRIMARY", "BONE"]}, "image_type"),
        ({"ViewPosition": "", "PatientOrientation": ["A", "F"]}, "view"),
    ],
)
def test_an_image_that_is_not_a_single_exposure_is_not_compared(
    changes: dict[str, object], code: str, tmp_path: Path, run_ok: Fieldray, current: Path
) -> None:
    prior = write_dicom(tmp_path / "prior.dcm", chest_phantom(512, 512, 1, abnormal=False), changes=changes)
    found = json.loads(run_ok("compare", prior, current, "--out", tmp_path / "out", "--json", "-").out)
    assert (found["comparable"], found["reason_code"]) == (False, code)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, fieldray: Fieldray, current: Path) -> None:
    (tmp_path / "cut.png").write_bytes(current.read_bytes()[:3000])
    done = fieldray("compare", tmp_path / "cut.png", current, "--out", tmp_path / "out", "--json", "-").ends_with(1)
    assert json.loads(done.out)["reason_code"] in ("truncated", "damaged")
    assert "The prior image" in done.err


def test_a_pair_without_two_files_is_wrong_usage(tmp_path: Path, fieldray: Fieldray, current: Path) -> None:
    fieldray("compare", tmp_path, current, "--out", tmp_path / "out").ends_with(2)
    fieldray("compare", tmp_path / "nothing.png", current, "--out", tmp_path / "out").ends_with(2)
    fieldray("compare", current, current, "--out", tmp_path / "out", "--json", current).ends_with(2)
    assert current.read_bytes().startswith(b"\x89PNG")


def test_compare_replaces_no_other_picture(tmp_path: Path, fieldray: Fieldray, current: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    theirs = save(out / "overlay.png")
    before = theirs.read_bytes()
    fieldray("compare", current, current, "--out", out).ends_with(2)
    assert theirs.read_bytes() == before
