"""`fieldray audit` from the command line, with the tiny network: bright drawings are abnormal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from fieldray.imaging.synthetic import chest_phantom
from program import Fieldray


def write_classes(folder: Path, *, each: int = 12) -> Path:
    """Draw darker images in `normal` and brighter ones in `abnormal`, with some overlap."""
    generator = np.random.default_rng(3)
    plain = chest_phantom(128, 128, 7, abnormal=False) / 4095
    for name, bright in (("normal", 0.5), ("abnormal", 0.7)):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            image = np.clip(plain * 255 * (bright + generator.normal(0, 0.15)), 0, 255).astype(np.uint8)
            Image.fromarray(image).save(folder / name / f"{name}-{number}.png")
    return folder


def test_labels_of_folders_are_audited_and_stored_results_are_used_again(
    tmp_path: Path, fieldray: Fieldray, run_ok: Fieldray, pack_options: list[str]
) -> None:
    images = write_classes(tmp_path / "images")
    out = tmp_path / "out"
    done = run_ok("audit", images, *pack_options, "--labels", "folders", "--out", out, "--prevalence", "0.2")
    done.prints("Area under the ROC curve (AUC)", "Positive predictive value at 20.0 % prevalence", "thresholds.csv")
    done.prints("Patients needed for confidence intervals of ± 5 percentage points", "has only 12 scores")
    assert len({found.end() for line in done.out.splitlines() if (found := re.search(r" \d+ of \d+  ", line))}) == 1
    document = json.loads((out / "audit.json").read_text("ascii"))
    lines = fieldray("screen", images, *pack_options, "--json", "-").lines
    truth = [Path(line["path"]).parent.name == "abnormal" for line in lines]
    assert document["auc"]["value"] == pytest.approx(roc_auc_score(truth, [line["score"] for line in lines]), abs=1e-9)
    run = str(document["run_id"])
    asked = ("audit", "--run", run, *pack_options, "--labels", "folders", "--json", "-")
    assert json.loads(run_ok(*asked).out)["auc"] == document["auc"]
    priced = json.loads(fieldray(*asked, "--price-test", "20", "--threshold", "0.5").out)
    assert priced["proposal"]["threshold"] == 0.5
    assert priced["plan"]["prices"] == {"screening_price": 0.0, "test_price": 20.0, "second_reading_price": 0.0}
    assert all(step["cost"] == pytest.approx(20 * step["referred"]) for step in priced["plan"]["shown"])
    assert "Choose two different runs" in fieldray(*asked, "--against", run).err
    # An audit does not screen its own outputs. It replaces them, but no other file.
    (out / "audit.json").rename(images / "audit.json")
    printed = ("audit", images, *pack_options, "--labels", "folders", "--json", images / "audit.json")
    assert "1 result file of this program" in run_ok(*printed).out
    (images / "audit.json").write_text("mine")
    fieldray(*printed).ends_with(2)


@pytest.mark.parametrize(
    ("table", "extra", "said"),
    [
        ("image,label\nnormal-1.png,normal\nabnormal-1.png,\n", [], "without an image or a label: 3."),
        ("image,kind\nnormal-1.png,normal\n", [], "--label-column"),
        ("image,label\n", ["--against", "tuberculosis-adult"], "fieldray screen FOLDER --pack tuberculosis-adult"),
        ("image,label\na.png,normal\nb.png,abnormal\n", ["--sensitivity", "3"], "not 3.0"),
        ("image,label\na.png,normal\nb.png,abnormal\n", ["--accept-local", "No!", "--name", "A"], "No!"),
        ("image,label\na.png,normal\nb.png,abnormal\n", ["--json", "labels.csv"], "labels.csv"),
    ],
)
def test_wrong_options_of_an_audit_are_reported_before_screening(
    tmp_path: Path, home: Path, fieldray: Fieldray, *, table: str, extra: list[str], said: str
) -> None:
    images = write_classes(tmp_path / "images", each=1)
    labels = tmp_path / "labels.csv"
    labels.write_text(table)
    extra = [str(labels) if part == "labels.csv" else part for part in extra]
    fieldray("audit", images, "--labels", labels, *extra).ends_with(2).complains(said)
    assert labels.read_text() == table
    assert not (home / "results.sqlite").exists()


def test_a_local_operating_point_is_accepted_used_and_removed(
    tmp_path: Path, fieldray: Fieldray, run_ok: Fieldray, pack_options: list[str]
) -> None:
    images = write_classes(tmp_path / "images")
    usual = ("audit", images, *pack_options, "--labels", "folders")
    fieldray(*usual, "--accept-local", "ours").ends_with(2)  # --name is missing
    fieldray("screen", images, *pack_options, "--operating-point", "local:ours").ends_with(2)
    done = run_ok(*usual, "--accept-local", "ours", "--name", "A. Physicist", "--sensitivity", "0.8")
    done.prints("Local operating point of A. Physicist saved. To use it: --operating-point local:ours")
    used = fieldray("screen", images, *pack_options, "--operating-point", "local:ours", "--json", "-")
    assert {line["operating_point"] for line in used.lines} == {"local:ours"}
    fieldray(*usual).prints("Operating point Local: ours")
    fieldray("audit", "--remove-local", "ours", *pack_options).prints("Removed the local operating point local:ours")
    fieldray("audit", "--remove-local", "ours", *pack_options).ends_with(2)


def test_a_damaged_file_of_local_points_is_reported_and_screening_works(
    tmp_path: Path, home: Path, fieldray: Fieldray, screen: Fieldray
) -> None:
    write_classes(tmp_path / "images", each=1)
    (home / "site_points.json").write_text("[{")
    screen().ends_with(0).complains("site_points.json cannot be read, so no local operating point is used")
    fieldray("packs", "list").ends_with(0)


def test_wrong_options_of_an_audit_have_exit_code_2(
    tmp_path: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    images = write_classes(tmp_path / "images", each=2)
    for arguments, said in (
        ((images,), "--labels says where"),
        ((), "name the folders"),
        ((images, "--run", "1", "--labels", "folders"), "name the folders"),
        (("--run", "77", "--labels", "folders"), "Run 77 was not found"),
        ((images, "--labels", "verdicts"), "has a verdict"),
        ((images, "--labels", "folders", "--pack", "tiny"), "This command works with only one pack"),
    ):
        fieldray("audit", *arguments, *pack_options).ends_with(2).complains(said)
    fieldray("audit", tmp_path / "gone", *pack_options, "--labels", "folders").ends_with(2)
