"""Forty unusable label tables, each refused before anything is screened, with its faulty lines or columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.audit.cases import ReferenceLabels, check_label_table, labels_from_table
from fieldray.domain.image import ImageRef
from fieldray.errors import UsageProblem
from fieldray.pipeline.auditing import AuditRequest, require_usable_request

NAMES = ("a", "b", "c", "d")
CHEXPERT = "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Edema,Pneumonia\n"
VINDR = "image_id,rad_id,Nodule/Mass,No finding\n"
BOXES = "image_id,class_name,class_id,rad_id,x_min\n"


def refs(folder: Path) -> list[ImageRef]:
    return [ImageRef(path=folder / f"{name}.png") for name in NAMES]


def read(folder: Path, text: str | bytes, **options: object) -> ReferenceLabels:
    table = folder / "labels.csv"
    data = text if isinstance(text, bytes) else text.replace("{folder}", str(folder)).encode()
    table.write_bytes(data)
    return labels_from_table(table, refs(folder), **options)  # type: ignore[arg-type]


WRONG = {
    "nothing": ("", "no rows"),
    "one line": ("image,label\n", "no rows"),
    "blank lines": ("image,label\n\n\n", "no rows"),
    "no header": ("a.png,1\nb.png,0\n", "no column named path"),
    "no image column": ("what,label\na.png,1\n", "no column named path"),
    "no label column": ("image,kind\na.png,1\n", "no column named label"),
    "doubled column": ("image,label,LABEL \na.png,1,0\n", "several columns with the same name: label"),
    "a picture": (b"\x89PNG\r\n\0\0", "not a text file"),
    "an open quotation mark": ('image,label\n"a.png,1\nb.png,0\n', "without an image or a label: 3."),
    "label missing": ("image,label\na.png,1\nb.png,\n", "without an image or a label: 3."),
    "image missing": ("image,label\n,1\nb.png,0\n", "without an image or a label: 2."),
    "short row": ("image,label\na.png,1\nb.png\n", "without an image or a label: 3."),
    "only blanks": ("image,label\na.png,1\nb.png,  \n", "without an image or a label: 3."),
    "another separator": ("image;label\na.png,1\nb.png,0\n", "without an image or a label: 2; 3."),
    "other images": ("image,label\nx.png,1\ny.png,0\n", "matches a screened image"),
    "another folder": ("image,label\ntrain/a.png,1\ntest/b.png,0\n", "matches a screened image"),
    "another suffix": ("image,label\na.dcm,1\nb.dcm,0\n", "matches a screened image"),
    "one class": ("image,label\na.png,1\nb.png,1\n", "All labels are equal (1)"),
    "one class of the images": ("image,label\na.png,1\nx.png,0\n", "All labels are equal (1)"),
    "a typing error": ("image,label\na.png,normal\nb.png,normall\n", "which of these labels mean “with the condition”"),
    "three classes": (
        "image,label\na.png,mass\nb.png,nodule\nc.png,normal\n",
        "which of these labels mean “with the condition”",
    ),
    "two unknown classes": (
        "image,label\na.png,mild\nb.png,severe\n",
        "which of these labels mean “with the condition”",
    ),
    "scores": ("image,label\na.png,0.7\nb.png,0.2\n", "which of these labels mean “with the condition”"),
    "only uncertain": ("image,label\na.png,-1\nb.png,-1\n", "All labels are equal"),
    "two labels": ("image,label\na.png,1\nb.png,0\na.png,0\n", "two labels: 2, 4 (a.png: 1, 0)."),
    "two labels by two names": ("image,label\na.png,1\nb.png,0\n{folder}/a.png,0\n", "two labels: 2, 4"),
    "patient in another case": (
        "image,label,patient\na.png,1,p1\nb.png,0,P1\n",
        "look alike: 2, 3 (p1, P1).",
    ),
    "patient with a blank inside": ("image,label,patient\na.png,1,p 1\nb.png,0,p1\n", "look alike: 2, 3 (p 1, p1)."),
    "patient with leading zeros": ("image,label,patient\na.png,1,007\nb.png,0,7\n", "look alike: 2, 3 (007, 7)."),
    "patient with zeros inside": ("image,label,patient\na.png,1,p007\nb.png,0,p7\n", "look alike: 2, 3 (p007, p7)."),
    "patient with a Cyrillic letter": (
        "image,label,patient\na.png,1,АB1\nb.png,0,AB1\n",
        "look alike: 2, 3 (АB1, AB1).",
    ),
    "patient with a Greek letter": ("image,label,patient\na.png,1,Α1\nb.png,0,A1\n", "look alike: 2, 3 (Α1, A1)."),
    "patient in wide letters": ("image,label,patient\na.png,1,\uff211\nb.png,0,A1\n", "look alike: 2, 3"),
    "a wrong class of NIH": (
        "Image Index,Finding Labels,Patient ID\na.png,Mass|Edema,1\nb.png,Mass,2\n",
        "All labels are equal",
    ),
    "no finding of CheXpert": (
        CHEXPERT + "a.png,F,50,Frontal,PA,1,,\nb.png,M,50,Frontal,PA,1,,\n",
        "All labels are equal",
    ),
    "a wrong value of CheXpert": (
        CHEXPERT + "a.png,F,50,Frontal,PA,,yes,\nb.png,M,50,Frontal,PA,1,,\n",
        "1, 0, -1 or empty: 2 (edema: yes).",
    ),
    "only lateral images of CheXpert": (CHEXPERT + "a.png,F,50,Lateral,,1,,\n", "matches a screened image"),
    "a wrong value of VinDr": (VINDR + "a,R1,2,0\nb,R1,0,1\n", "or empty: 2 (nodule/mass: 2)."),
    "two rows of one VinDr reader": (VINDR + "a.png,R1,1,0\nb.png,R1,0,1\na.png,R1,0,1\n", "two labels: 2, 4"),
    "boxes of other images": (BOXES + "x,Nodule,8,R1,1\ny,No finding,14,R1,\n", "matches a screened image"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_table_that_cannot_be_used_is_refused_before_anything_is_screened(tmp_path: Path, kind: str) -> None:
    text, said = WRONG[kind]
    with pytest.raises(UsageProblem) as problem:
        read(tmp_path, text)
    assert said in problem.value.reason.text
    for ref in refs(tmp_path):
        ref.path.write_bytes(b"GIF89a")
    with pytest.raises(UsageProblem):
        require_usable_request(AuditRequest(label_source=tmp_path / "labels.csv"), [tmp_path])


@pytest.mark.parametrize("folders", [("normal",), ("mild", "severe"), ("normal", "normall"), ("a", "b", "normal")])
def test_folders_that_are_no_labels_are_refused_before_anything_is_screened(
    tmp_path: Path, folders: tuple[str, ...]
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(UsageProblem):
        require_usable_request(AuditRequest(label_source="folders"), [tmp_path])
    (tmp_path / "abnormal").mkdir()
    (tmp_path / "abnormal" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    require_usable_request(AuditRequest(label_source="folders", positive_classes=("abnormal",)), [tmp_path])


def truths(folder: Path, text: str, **options: object) -> dict[str, bool]:
    return {Path(key).stem: truth for key, truth in read(folder, text, **options).truth_by_image.items()}


def test_nih_s_table_has_several_labels_a_cell_and_its_own_column_names(tmp_path: Path) -> None:
    text = "Image Index,Finding Labels,Follow-up #,Patient ID\na.png,Mass|Effusion,0,1\nb.png,No Finding,0,2\n"
    text += "c.png,Effusion,1,2\n"
    assert truths(tmp_path, text) == {"a": True, "b": False, "c": True}
    assert truths(tmp_path, text, positive=["mass"]) == {"a": True, "b": False, "c": False}
    assert sorted(read(tmp_path, text).patient_by_image.values()) == ["1", "2", "2"]
    with pytest.raises(UsageProblem, match="No image is labelled nodule"):
        read(tmp_path, text, positive=["nodule"])


def test_chexpert_s_table_has_a_column_for_each_class_and_uncertain_ones_are_left_out(tmp_path: Path) -> None:
    images = [ImageRef(path=tmp_path / f"patient0000{number}" / f"{name}.png") for number, name in enumerate(NAMES)]
    rows = ["0/a.png,F,50,Frontal,PA,,1,", "1/b.png,F,50,Frontal,PA,1.0,,", "2/c.png,F,50,Frontal,AP,,-1.0,0"]
    rows += ["3/d.png,F,50,Lateral,,,1,"]
    table = tmp_path / "train.csv"
    table.write_text(CHEXPERT + "\n".join(f"patient0000{row}" for row in rows))
    found = labels_from_table(table, images)
    assert {Path(key).stem: truth for key, truth in found.truth_by_image.items()} == {"a": True, "b": False}
    assert set(found.patient_by_image.values()) == {"patient00000", "patient00001", "patient00002"}
    assert "audit_rows_uncertain" in {note.code for note in found.notes}


def test_vindr_s_readers_are_counted_by_majority_and_kept_apart(tmp_path: Path) -> None:
    rows = ["a.png,Nodule/Mass,8,R1,1", "a.png,Cardiomegaly,3,R1,5", "a.png,Nodule/Mass,8,R2,1"]
    rows += [
        "a.png,No finding,14,R3,",
        "b.png,No finding,14,R1,",
        "b.png,No finding,14,R2,",
        "c.png,Cardiomegaly,3,R1,2",
    ]
    rows += ["c.png,No finding,14,R2,"]
    found = read(tmp_path, BOXES + "\n".join(rows))
    assert {Path(key).stem: truth for key, truth in found.truth_by_image.items()} == {"a": True, "b": False}  # c: a tie
    assert {name: len(own) for name, own in found.reader_labels.items()} == {"R1": 3, "R2": 3, "R3": 1}
    assert {note.code for note in found.notes} >= {"audit_readers_split", "audit_images_unlabelled"}
    wide = read(tmp_path, VINDR + "a.png,R1,1,0\na.png,R2,1,0\nb.png,R1,0,1\nb.png,R2,0,1\n")
    assert sorted(wide.truth_by_image.values()) == [False, True] and list(wide.reader_labels) == ["R1", "R2"]


def test_an_image_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    found = read(tmp_path, "image,label\na.png,1\nb.png,0\na.png,1\n")
    assert len(found.truth_by_image) == 2
    assert "1 row of the table repeats an earlier row" in " ".join(note.text for note in found.notes)
    check_label_table(tmp_path / "labels.csv")
