"""Reference labels: matched to images only without doubt, and every problem reported with its line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fieldray.audit.cases import (
    ReferenceLabels,
    check_label_table,
    labels_from_folders,
    labels_from_table,
    truth_by_class,
)
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.errors import UsageProblem
from fieldray.pipeline.auditing import usual_class_names
from fieldray.reasons import reason


def refs(folder: Path) -> list[ImageRef]:
    return [
        ImageRef(path=folder / "train" / "a.png"),
        ImageRef(path=folder / "test" / "a.png"),
        ImageRef(path=folder / "b.dcm", header=ImageHeader(sop_instance_uid="1.2.3")),
        ImageRef(path=folder / "c.zip", zip_member="inner/Знімок.png"),
    ]


def read(folder: Path, text: str | bytes, **options: object) -> ReferenceLabels:
    table = folder / "labels.csv"
    table.write_bytes(text if isinstance(text, bytes) else text.encode())
    return labels_from_table(table, refs(folder), **options)  # type: ignore[arg-type]


def problem(folder: Path, text: str | bytes, **options: object) -> str:
    with pytest.raises(UsageProblem) as caught:
        read(folder, text, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["{folder}/train/a.png", "train/a.png", "'train/a.png"])
def test_a_label_matches_an_image_by_its_path_or_the_end_of_it(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, f"path,label\n{name.format(folder=tmp_path)},abnormal\nb.dcm,normal\n")
    assert found.truth_by_image == {str(tmp_path / "train" / "a.png"): True, str(tmp_path / "b.dcm"): False}


def test_a_label_matches_an_image_by_uid_or_zip_member(tmp_path: Path) -> None:
    found = read(tmp_path, "image;label;patient\n1.2.3;1;P1\nЗнімок.png;0;P2\n")
    assert sorted(found.truth_by_image.values()) == [False, True] and sorted(found.patient_by_image.values()) == [
        "P1",
        "P2",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1251"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_tables_of_every_spreadsheet_are_read(tmp_path: Path, encoding: str, separator: str) -> None:
    rows = [("Image", "Label"), ("Знімок.png", "abnormal"), ("b.dcm", "normal")]
    text = "\r\n".join(separator.join(row) for row in rows)
    assert sorted(read(tmp_path, text.encode(encoding)).truth_by_image.values()) == [False, True]


def test_a_name_shared_by_two_images_is_refused(tmp_path: Path) -> None:
    said = problem(tmp_path, "path,label\na.png,1\nb.dcm,0\n")
    assert "(write more of the path): 2 (a.png)." in said and "two labels: –." in said


def test_a_path_in_another_folder_is_another_image(tmp_path: Path) -> None:
    found = read(tmp_path, "path,label\nvalidation/a.png,1\ntrain/a.png,1\nb.dcm,0\n")
    assert len(found.truth_by_image) == 2
    assert [note.code for note in found.notes] == ["audit_images_unlabelled", "audit_rows_unknown"]
    first = tmp_path / "test" / "a.png"
    assert f"Line: 2 (validation/a.png ≠ {first})." in found.notes[1].text
    assert found.notes[0].text == "2 screened images have no label and were left out of the audit."


def test_two_labels_for_one_image_are_refused_and_the_same_twice_counts_once(tmp_path: Path) -> None:
    said = problem(tmp_path, "path,label\ntrain/a.png,1\nb.dcm,0\ntrain/a.png,0\n,1\nb.dcm,\n")
    assert "used: 3." in said and "label: 5; 6." in said and "two labels: 2, 4 (train/a.png: 1, 0)." in said
    found = read(tmp_path, "path,label\ntrain/a.png,1\nb.dcm,0\ntrain/a.png,1\n")
    assert len(found.truth_by_image) == 2 and [note.code for note in found.notes] == [
        "audit_images_unlabelled",
        "audit_rows_doubled",
    ]


def test_an_ambiguous_negative_value_must_be_named(tmp_path: Path) -> None:
    found = read(tmp_path, "path,label\ntrain/a.png,ill\nb.dcm,maybe\n", positive=("ill",))
    assert found.notes[-1].text == "Labels counted as negative: maybe."
    plain = read(tmp_path, "path,label\ntrain/a.png,ill\nb.dcm,Normal\n", positive=("ill",))
    assert "audit_counted_negative" not in {note.code for note in plain.notes}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("path,label\n", "no rows"),
        (
            "path,grade\nb.dcm,1\n",
            "no column named label. The columns are: path, grade. Give the right column this name",
        ),
        ("what,label\nb.dcm,1\n", "no column named path"),
        ("path,label\nx.png,1\n", "matches a screened image"),
        (b"\x89PNG\r\n\0\0", "not a text file"),
        ("path,label\nb.dcm,1\ntrain/a.png,1\n", "All labels are equal"),
        ("path,label\nb.dcm,mass\ntrain/a.png,nodule\n", "which of these labels mean “with the condition”"),
    ],
)
def test_a_faulty_table_is_refused_with_its_fault(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in problem(tmp_path, text)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"none.csv cannot be read: No such file"):
        labels_from_table(tmp_path / "none.csv", [])


def test_columns_can_be_named(tmp_path: Path) -> None:
    found = read(tmp_path, "Datei,Befund\nb.dcm,1\ntest/a.png,0\n", columns={"image": "datei", "label": "Befund"})
    assert len(found.truth_by_image) == 2


def test_folders_are_labels(tmp_path: Path) -> None:
    images = [ImageRef(path=tmp_path / kind / f"{n}.png") for kind in ("NORMAL", "tuberculosis") for n in range(2)]
    zipped = ImageRef(path=tmp_path / "more.zip", zip_member="x/normal/9.png")
    found = labels_from_folders([*images, zipped])
    assert [found.truth_by_image[ref.key] for ref in (*images, zipped)] == [False, False, True, True, False]


def test_unknown_class_names_need_a_positive_class() -> None:
    with pytest.raises(UsageProblem, match="mean “with the condition”"):
        truth_by_class({"mild", "severe"}, positive=())
    assert truth_by_class({"mild", "severe", "none"}, positive=("Severe", "mild")) == {
        "mild": True,
        "severe": True,
        "none": False,
    }
    with pytest.raises(UsageProblem, match="No image is labelled grave"):
        truth_by_class({"mild", "severe"}, positive=("grave",))


@pytest.mark.parametrize(
    "header", ["image,label,label", "image,label, Label", "image;LABEL ;label", "Image,image,label"]
)
def test_two_columns_of_one_name_are_refused_and_named(tmp_path: Path, header: str) -> None:
    separator = ";" if ";" in header else ","
    rows = [separator.join(("b.dcm", "normal", "abnormal")), separator.join(("train/a.png", "abnormal", "normal"))]
    said = problem(tmp_path, "\n".join((header, *rows)))
    assert "several columns with the same name" in said
    assert ("image" if header.startswith("Image") else "label") in said


def test_a_misspelt_label_is_refused_and_positives_are_listed(tmp_path: Path) -> None:
    assert "Choose which of these labels" in problem(tmp_path, "path,label\nb.dcm,normal\ntrain/a.png,normall\n")
    found = read(tmp_path, "path,label\nb.dcm,normal\ntrain/a.png,tuberculosis\n")
    assert reason("audit_counted_positive", names="tuberculosis") in found.notes


def test_minus_one_means_uncertain_not_positive(tmp_path: Path) -> None:
    text = "path,label\nb.dcm,0.0\ntrain/a.png,1.0\ntest/a.png,-1.0\n"
    found = read(tmp_path, text)
    assert sorted(found.truth_by_image.values()) == [False, True]
    assert "audit_rows_uncertain" in {note.code for note in found.notes}
    asked = read(tmp_path, text, positive=("1.0", "-1.0"))
    assert sorted(asked.truth_by_image.values()) == [False, True, True]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices of POSIX")
def test_a_table_that_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageProblem) as problem:
            check_label_table(place)
        assert problem.value.reason.code == "audit_table_no_text"


def test_separator_lines_and_empty_rows_are_skipped(tmp_path: Path) -> None:
    text = "sep=;\r\nimage;label,of\r\nb.dcm;1\r\n;\r\nЗнімок.png;0\r\n;\r\n;;\r\n"
    assert sorted(read(tmp_path, text, columns={"label": "label,of"}).truth_by_image.values()) == [False, True]
    assert "label: 5." in problem(tmp_path, "sep=,\nimage,label\nb.dcm,1\n,\ntrain/a.png,\n")


def test_a_name_without_suffix_matches_a_single_image(tmp_path: Path) -> None:
    found = read(tmp_path, "image,label\nb,1\ntrain\\a,0\nc.zip!inner/Знімок,1\n")
    assert found.truth_by_image[str(tmp_path / "b.dcm")] and not found.truth_by_image[str(tmp_path / "train" / "a.png")]
    assert len(found.truth_by_image) == 3
    assert "more of the path): 2 (a)" in problem(tmp_path, "image,label\na,1\nb,0\n")
    assert "matches a screened image" in problem(
        tmp_path, "image,label\n1.2,1\n1.2.3.4,0\n"
    )  # UIDs must match as a whole


def test_a_longer_path_in_the_table_is_reported_with_the_screened_path(tmp_path: Path) -> None:
    said = problem(tmp_path, "image,label\nD:\\set\\b.dcm,1\n/mnt/set/x.dcm,0\n")
    assert f"2 (D:\\set\\b.dcm ≠ {tmp_path / 'b.dcm'}); 3 (/mnt/set/x.dcm)." in said


@pytest.mark.parametrize(("positive", "negative"), [("ІСТИНА", "ХИБНІСТЬ"), ("так", "ні"), ("Відхилення", "норма")])
def test_ukrainian_class_names_are_understood(tmp_path: Path, positive: str, negative: str) -> None:
    text = f"image;label\nb.dcm;{positive}\nЗнімок.png;{negative}\n"
    found = read(tmp_path, text, known_names=usual_class_names())
    assert found.truth_by_image[str(tmp_path / "b.dcm")] and sorted(found.truth_by_image.values()) == [False, True]
    assert [note.code for note in found.notes] == ["audit_images_unlabelled"]
