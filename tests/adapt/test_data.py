"""Reading of published data layouts as rows, labels and splits, and the message for every mistake in them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fieldray.domain.model import InputSpec
from fieldray.errors import UsageProblem
from fieldray_adapt.data.dataset import label_targets, require_all_classes
from fieldray_adapt.data.image_set import IMAGE_DIGESTS_FILE_NAME, ImageSet, read_images, read_rows
from fieldray_adapt.data.layouts import (
    Row,
    assign_leak_free_parts,
    leave_out_unlabelled_images,
    read_source,
    require_no_patient_in_split_table,
)
from fieldray_adapt.files import file_sha256
from fieldray_adapt.patients import patient_sha256
from fieldray_adapt.recipes.shared import LabelRule, Source, Split
from tiny_recipe import read_recipe

A = patient_sha256("a")
TEXTS = {"en": "Abnormal", "uk": "Зміни"}
CHEXPERT = """Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Edema,Fracture
CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg,Female,68,Frontal,AP,1.0,,
CheXpert-v1.0-small/train/patient00002/study1/view1_frontal.jpg,Male,87,Frontal,PA,,-1.0,1.0
CheXpert-v1.0-small/train/patient00002/study1/view2_lateral.jpg,Male,87,Lateral,,,-1.0,1.0
"""
NIH = """Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position
00000001_000.png,Cardiomegaly|Emphysema,0,1,058Y,M,PA
00000002_000.png,No Finding,0,2,81,F,AP
"""


def _source(path: Path, text: str, **keys: object) -> Source:
    path.write_text(text, encoding="utf-8")
    return Source(name="set", path=path, **keys)  # type: ignore[arg-type]


def _label(**keys: object) -> LabelRule:
    return LabelRule(**{"code": "abnormal", "meaning": TEXTS, "positive": ("abnormal",)} | keys)  # type: ignore[arg-type]


def _row(number: int, *, split: str = "", fold: str = "", patient: str = "", classes: str = "abnormal") -> Row:
    return Row(
        path=Path(f"{number}.png"),
        source="set",
        classes=frozenset({classes}),
        patient=patient or f"p{number}",
        origin=f"set.csv, line {number}",
        split=split,
        fold=fold,
    )


def test_nih_rows(tmp_path: Path) -> None:
    first, second = read_source(_source(tmp_path / "Data_Entry_2017.csv", NIH, layout="nih", images=tmp_path / "png"))
    assert first.path == tmp_path / "png" / "00000001_000.png"
    assert first.classes == {"Cardiomegaly", "Emphysema"} and first.patient == "1"
    assert (first.age_years, first.sex, first.view, second.age_years) == (58, "M", "PA", 81)
    targets = label_targets([first, second], [_label(positive=("Cardiomegaly",)), _label(positive=("No Finding",))])
    assert targets.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("rule", "expected"), [("positive", [0, 1]), ("negative", [0, 0]), ("unknown", [0, np.nan]), ("drop", [0])]
)
def test_uncertain_labels_of_chexpert_follow_the_rule(tmp_path: Path, rule: str, expected: list[float]) -> None:
    rows = read_source(_source(tmp_path / "train.csv", CHEXPERT, layout="chexpert", uncertain=rule))
    np.testing.assert_array_equal(label_targets(rows, [_label(positive=("Edema",))])[:, 0], expected)
    assert rows[0].patient == "patient00001" and rows[0].sex == "F"


def test_class_folders_with_the_patient_in_the_name(tmp_path: Path) -> None:
    for name in ("normal/IM-1-a.png", "abnormal/person7_1.png", "abnormal/person7_2.png", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    source = Source(name="set", layout="folders", path=tmp_path, patient=r"^(?:person|IM-)(\d+)")
    rows = read_source(source)
    assert [(row.classes, row.patient) for row in rows] == [*[({"abnormal"}, "7")] * 2, ({"normal"}, "1")]
    with pytest.raises(UsageProblem, match=re.escape("IM-1-a.png")):
        read_source(Source(name="set", layout="folders", path=tmp_path, patient=r"person(\d+)"))


def test_own_columns_where_and_drop(tmp_path: Path) -> None:
    text = "file,kind,who,site\na.png,normal,1,A\nb.png,abnormal|old,2,A\nc.png,abnormal,3,B\nd.png,lateral,4,A\n"
    columns = {"path": "file", "classes": "kind", "patient": "who"}
    source = _source(
        tmp_path / "images.csv", text, layout="csv", columns=columns, where={"site": ("A",)}, drop=("lateral",)
    )
    assert [row.path.name for row in read_source(source)] == ["a.png", "b.png"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("path,label,patient\n", "has none of the images that the recipe asks for"),
        ("path,label\na.png,normal\n", "has no column named patient. The columns are: path, label"),
        ("path,label,patient\na.png,normal\n", "line 2: it has another number of cells"),
        (None, "cannot be read"),
    ],
)
def test_a_mistake_in_a_table_is_named(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "images.csv"
    source = _source(path, text, layout="csv") if text else Source(name="set", layout="csv", path=path)
    with pytest.raises(UsageProblem, match=re.escape(sentence)):
        read_source(source)


def test_a_patient_in_two_parts_is_refused_by_name() -> None:
    rows = [_row(1, split="train", patient="x"), _row(2, split="test", patient="x")]

    def parts(**splits: Any) -> list[str]:
        return assign_leak_free_parts(
            rows, Split(by="column"), [Source(name="set", layout="csv", path=Path("a"), splits=splits)]
        )

    with pytest.raises(UsageProblem, match=r"[Pp]atient x .* line 1 \(training\) and set.csv, line 2 \(test\)"):
        parts(train="training", test="test")
    assert parts(train="training") == ["training", "none"]
    with pytest.raises(UsageProblem, match="values test, train"):
        parts()


def test_folds_and_random_splits_go_by_patient() -> None:
    rows = [_row(number, fold=str(number % 4)) for number in range(8)]
    by_fold = assign_leak_free_parts(rows, Split(by="fold", validation_folds=(1,), test_folds=(0,)), [])
    assert by_fold == ["test", "validation", "training", "training"] * 2
    rows = [_row(number, patient=f"p{number // 3}") for number in range(300)]
    parts = assign_leak_free_parts(rows, Split(by="random", validation_share=0.2, test_share=0.1, seed=3), [])
    assert all(len({parts[3 * patient + image] for image in range(3)}) == 1 for patient in range(100))


def test_a_random_split_keeps_its_shares_and_no_patient_moves_when_another_is_added() -> None:
    split = Split(by="random", validation_share=0.2, test_share=0.1, seed=3)
    rows = [_row(number) for number in range(2000)]
    parts = assign_leak_free_parts(rows, split, [])
    # of 2000 patients 200 and 400, give or take four standard deviations: sqrt(2000 x 0.1 x 0.9) = 13 and 18
    assert abs(parts.count("test") - 200) < 54 and abs(parts.count("validation") - 400) < 72
    assert assign_leak_free_parts([_row(3000), *rows], split, [])[1:] == parts
    assert assign_leak_free_parts(rows[:900] + rows[901:], split, []) == parts[:900] + parts[901:]
    assert assign_leak_free_parts(rows, replace(split, seed=4), []) != parts
    # a larger test part takes patients from the other parts and keeps all of its own
    larger = assign_leak_free_parts(rows, replace(split, test_share=0.2), [])
    assert {part for part, before in zip(larger, parts, strict=True) if before == "test"} == {"test"}


@pytest.mark.parametrize(("column", "named"), [("patient", str), ("patient_sha256", patient_sha256)])
def test_patients_of_a_split_table_are_not_drawn(tmp_path: Path, column: str, named: Callable[[str], str]) -> None:
    rows, table = [_row(number) for number in range(40)], tmp_path / "split.csv"
    drawn = assign_leak_free_parts(rows, Split(by="random", validation_share=0.2, test_share=0.2), [])
    others = {"training": "test", "validation": "none", "test": "validation"}
    settled = {row.patient: others[part] for row, part in zip(rows[:20], drawn, strict=False)}
    lines = [f"{named(patient)},{part}" for patient, part in {**settled, "nobody": "test"}.items()]
    table.write_text("\n".join([f"{column},part", *lines]), encoding="utf-8")
    split = Split(by="random", validation_share=0.2, test_share=0.2, table=table)
    assert assign_leak_free_parts(rows, split, []) == [*settled.values(), *drawn[20:]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("patient,part\na,training\nb,learn\n", "Row 3 of"),
        ("patient,part\na,training\na,test\n", "Row 3 of"),
        ("patient,part\n,training\n", "Row 2 of"),
        ("person,part\na,training\n", "no column named patient"),
        ("patient,part\na\n", "another number of cells"),
        ("patient\na\n", "no column named part"),
        ("patient,part,part\na,training,test\n", "two columns named part"),
        ("patient,part\n a,training\na ,test\n", "Row 3 of"),
        (f"patient_sha256,part\n {A},training\n", "lists none of the patients of the data"),
        ("patient_sha256,part\na,training\n", "Row 2 of"),
        (f"patient_sha256,part\n{patient_sha256('')},training\n", "Row 2 of"),
        (f"patient_sha256,part\n{A},training\n{A.upper()},test\n", "Row 3 of"),
        (f"patient,patient_sha256,part\nb,{A},training\n", "Row 2 of"),
        ("patient,part\n", "lists none of the patients of the data"),
        ("patient,part\na,training\n", "lists none of the patients of the data"),
        (None, "cannot be read"),
    ],
)
def test_a_mistake_in_a_split_table_is_named(tmp_path: Path, text: str | None, sentence: str) -> None:
    table = tmp_path / "split.csv"
    if text:
        table.write_text(text, encoding="utf-8")
    with pytest.raises(UsageProblem, match=sentence):
        assign_leak_free_parts([_row(1)], Split(by="random", table=table), [])


def test_a_patient_digest_may_have_capitals_and_stand_beside_the_patient_number(tmp_path: Path) -> None:
    table = tmp_path / "split.csv"
    table.write_text(f"patient,patient_sha256,part\n,{A.upper()},test\np1,{patient_sha256('p1')},none\n")
    rows = [_row(0, patient="a"), _row(1)]
    assert assign_leak_free_parts(rows, Split(by="random", table=table), []) == ["test", "none"]


def test_patients_of_a_split_table_are_evaluated_in_its_part_only(tmp_path: Path) -> None:
    table = tmp_path / "split.csv"
    table.write_text("patient,part\np1,none\n", encoding="utf-8")
    require_no_patient_in_split_table([_row(2)], Split(by="random", table=table))
    require_no_patient_in_split_table([_row(1)], Split(by="random"))
    with pytest.raises(UsageProblem, match=r"p1 .*split\.csv \(none\).*\(elsewhere\)"):
        require_no_patient_in_split_table([_row(1), _row(2)], Split(by="random", table=table))


@pytest.mark.parametrize(
    "keys", [{"by": "fold", "validation_folds": (0,), "test_folds": (1,)}, {"cross_folds": (0, 1)}]
)
def test_a_split_table_needs_a_random_split_without_folds(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="table"):
        Split(table=Path("split.csv"), **keys)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_place_of_a_table_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "split.csv")
    with pytest.raises(UsageProblem, match="the path is not a file"):
        assign_leak_free_parts([_row(1)], Split(by="random", table=tmp_path / "split.csv"), [])


def test_images_of_a_source_that_is_not_evaluated_are_for_training_only() -> None:
    rows = [_row(number, fold=str(number)) for number in range(4)]
    source = Source(name="set", layout="csv", path=Path("set.csv"), evaluated=False)
    parts = assign_leak_free_parts(rows, Split(by="fold", validation_folds=(1,), test_folds=(0,)), [source])
    assert parts == ["none", "none", "training", "training"]


def test_a_class_without_images_is_named() -> None:
    targets = np.array([[1], [0], [1], [0], [1]], np.float32)
    parts = ["training", "training", "validation", "validation", "test"]
    with pytest.raises(UsageProblem, match="The test part of the data has no negative images for the label abnormal"):
        require_all_classes(parts, targets, [_label()])


def test_training_images_without_a_known_label_are_left_out() -> None:
    targets = np.array([[np.nan, np.nan], [np.nan, 0], [1, 0], [np.nan, np.nan]], np.float32)
    parts = ["training", "training", "training", "test"]
    assert leave_out_unlabelled_images(parts, targets) == ["none", "training", "training", "test"]


def _images(folder: Path, count: int) -> list[Row]:
    generator = np.random.default_rng(0)
    rows = []
    for number in range(count):
        path = folder / f"{number}.png"
        Image.fromarray(generator.integers(0, 255, (80, 70), np.uint8)).save(path)
        rows.append(Row(path=path, source="set", classes=frozenset({"x"}), patient=str(number), origin=path.name))
    return rows


def _known(rows: list[Row]) -> list[Row]:
    """Return the rows with the digest of each file's present content."""
    return [replace(row, sha256=file_sha256(row.path)) for row in rows]


def test_images_are_read_once_and_bad_ones_left_out_with_a_reason(tmp_path: Path) -> None:
    rows, spec = _images(tmp_path, 4), InputSpec(height=32, width=32)
    rows[1].path.write_bytes(b"not an image")
    rows[2].path.unlink()
    seen: list[int] = []

    def read(rows: list[Row]) -> ImageSet:
        """Read the images, and record the progress, which counts only images that are not in the cache."""
        cache = tmp_path / "run" / "images.npz"
        return read_images(rows, spec, cache=cache, progress=lambda what, done, all: seen.append(done))

    image_set = read(_known(rows))
    assert seen == [1, 2, 3, 4] and len(image_set.rows) == len(image_set.images) == 2
    assert image_set.left_out_reasons == (
        ("1.png", "This file is not a DICOM, PNG or JPEG image."),
        ("2.png", "The file no longer exists."),
    )
    seen.clear()
    again = read(_known(rows))
    assert not seen and np.array_equal(again.images, image_set.images)
    Image.fromarray(np.zeros((80, 70), np.uint8) + np.arange(70, dtype=np.uint8)).save(rows[0].path)
    changed = read(_known(rows))
    assert seen and not np.array_equal(changed.images[0], image_set.images[0])
    rows[3].path.unlink()
    rows[3].path.write_bytes(b"changed since")
    with pytest.raises(UsageProblem, match=r"so .*3\.png no longer matches"):
        read([*_known(rows[:3]), replace(rows[3], sha256="as it was")])


def test_the_content_of_a_file_is_read_again_only_when_the_file_has_changed(tmp_path: Path) -> None:
    rows = _images(tmp_path, 2)
    source = _source(tmp_path / "set.csv", "path,label,patient\n0.png,x,a\n1.png,x,b\n", layout="csv")
    folder, expected = tmp_path / "run", [file_sha256(row.path) for row in rows]

    def found() -> list[str]:
        return [row.sha256 for row in read_rows([source], folder=folder)]

    assert found() == expected
    kept = json.loads((folder / IMAGE_DIGESTS_FILE_NAME).read_text(encoding="utf-8"))
    kept[str(rows[0].path)][-1] = "kept"
    (folder / IMAGE_DIGESTS_FILE_NAME).write_text(json.dumps(kept), encoding="utf-8")
    assert found() == ["kept", expected[1]]
    rows[0].path.write_bytes(rows[1].path.read_bytes())
    rows[1].path.unlink()
    assert found() == [expected[1], ""]


def test_a_folder_without_any_readable_image_is_an_error(tmp_path: Path) -> None:
    row = _row(1)
    with pytest.raises(UsageProblem, match="None of the images in the data set can be read"):
        read_images([row], InputSpec(height=32, width=32), cache=tmp_path / "images.npz", progress=lambda *_: None)


RECIPE = Path(__file__).parents[2] / "models" / "recipes" / "pneumonia-paediatric.toml"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (('id = "pneumonia-paediatric"', ""), "pack.id is missing"),
        (("crop_margin = 0.05", 'crop_margin = "thin"'), "input.crop_margin must be a number"),
        (('en = "Pneumonia"', ""), "labels[1].meaning needs the language en"),
        (('uk = "Пневмонія"', 'ukrainisch = "Пневмонія"'), "must have language tags"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, wrong: tuple[str, str], sentence: str) -> None:
    text = RECIPE.read_text(encoding="utf-8")
    assert wrong[0] in text
    (tmp_path / "recipe.toml").write_text(text.replace(*wrong, 1), encoding="utf-8")
    with pytest.raises(UsageProblem, match=re.escape(sentence)):
        read_recipe(tmp_path / "recipe.toml")


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.read_text(encoding="utf-8"), encoding="utf-8")
    recipe = read_recipe(tmp_path / "recipe.toml")
    assert recipe.data[0].path == tmp_path / "../../../shared/data/index.csv"
    assert recipe.run == (tmp_path / "../../runs/pneumonia-paediatric").resolve()
