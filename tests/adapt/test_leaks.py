"""Leaks between parts: patients or copied images in two parts are refused, or put into one part before a split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from jinja2 import Template
from PIL import Image

from fieldray.errors import UsageProblem
from fieldray_adapt.data.dataset import _judged_once, describe_left_out_images
from fieldray_adapt.data.layouts import Row, assign_leak_free_parts, find_leaks, find_rows
from fieldray_adapt.recipes.shared import Source, Split
from tiny_recipe import adapted

RECIPE = """
[pack]
id = "leaky"
[[labels]]
code = "sick"
positive = ["sick"]
[[data]]
path = "rows.csv"
layout = "csv"
[split]
by = "random"
"""


def rows_of(folder: Path, text: str) -> list[Row]:
    (folder / "rows.csv").write_text("path,label,patient\n" + text, encoding="utf-8")
    rows, wrong = find_rows(Source(name="clinic", path=folder / "rows.csv", layout="csv"))
    if wrong:
        raise UsageProblem(wrong[0])
    return rows


ALIKE = [("p1", "P1"), ("p 1", "p1"), ("007", "7"), ("p007", "p7"), ("А1", "A1"), ("Α1", "A1"), ("\uff211", "A1")]


@pytest.mark.parametrize(("first", "second"), ALIKE)
@pytest.mark.parametrize("by", ["random", "column"])
def test_patient_numbers_that_look_alike_are_refused_with_both_lines(
    tmp_path: Path, first: str, second: str, by: str
) -> None:
    rows = rows_of(tmp_path, f"a.png,sick,{first}\nb.png,well,{second}\nc.png,well,q\n")
    with pytest.raises(UsageProblem) as problem:
        assign_leak_free_parts(rows, Split(by=by), [])  # type: ignore[arg-type]
    said = problem.value.reason.text
    assert f"The patient IDs {first} (rows.csv, line 2) and {second} (rows.csv, line 3) differ only by case" in said


def test_blanks_around_a_patient_number_are_ignored(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a.png,sick,p000\nb.png,well,p000 \nc.png , well, p000\n")
    assert {row.patient for row in rows} == {"p000"} and rows[2].path.name == "c.png"
    for seed in range(20):
        assert len(set(assign_leak_free_parts(rows, Split(by="random", seed=seed), []))) == 1


def test_patient_numbers_of_a_split_table_are_compared_with_the_data(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a.png,sick,p1\nb.png,well,p2\n")
    (tmp_path / "split.csv").write_text("patient,part\nP1,test\np2,training\n")
    with pytest.raises(UsageProblem, match=r"P1 \(split.csv, line 2\)"):
        assign_leak_free_parts(rows, Split(by="random", table=tmp_path / "split.csv"), [])


def test_a_repeated_row_counts_once_and_a_contradicting_row_is_named(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "a.png,sick,p1\nb.png,well,p2\na.png,sick,p1\n./a.png,sick,p1\n")
    assert [row.path.name for row in rows] == ["a.png", "b.png"]
    for other in ("a.png,well,p1", "a.png,sick,p3"):
        with pytest.raises(UsageProblem, match=r"a.png has two entries .*: rows.csv, line 2; rows.csv, line 4"):
            rows_of(tmp_path, f"a.png,sick,p1\nb.png,well,p2\n{other}\n")


def copied(*pairs: tuple[str, str]) -> list[Row]:
    """Return rows with these patients and contents."""
    return [
        Row(
            path=Path(f"{n}.png"),
            source="clinic",
            classes=frozenset({"sick"}),
            patient=who,
            origin=f"line {n}",
            sha256=content,
        )
        for n, (who, content) in enumerate(pairs)
    ]


@pytest.mark.parametrize("seed", range(30))
def test_copies_under_other_names_go_to_one_part_with_all_images_of_their_patients(seed: int) -> None:
    rows = copied(("p1", "A"), ("p2", "A"), ("p2", "B"), ("p3", "B"), ("p3", "C"), ("", "C"), ("q", "D"))
    parts = assign_leak_free_parts(rows, Split(by="random", seed=seed), [])
    assert len(set(parts[:6])) == 1
    # A copy does not move any other image.
    assert parts[6] == assign_leak_free_parts(rows[6:], Split(by="random", seed=seed), [])[0]
    # Of several copies of a file only one is evaluated.
    judged = _judged_once(rows, ["test"] * 7)
    assert judged == ["test", "none", "test", "none", "test", "none", "test"]
    assert _judged_once(rows, ["training"] * 7) == ["training"] * 7


@pytest.mark.parametrize("by", ["column", "fold", "table"])
def test_a_copy_on_the_other_side_of_a_split_that_somebody_made_is_refused(tmp_path: Path, by: str) -> None:
    rows = copied(("p1", "A"), ("p2", "A"), ("p3", "B"))
    sources, split = [], Split(by="random")
    if by == "column":
        rows = [replace(row, split=name) for row, name in zip(rows, ("train", "test", "train"), strict=True)]
        sources, split = (
            [Source(name="clinic", path=Path("x"), splits={"train": "training", "test": "test"})],
            Split(by="column"),
        )
    elif by == "fold":
        rows = [replace(row, fold=fold) for row, fold in zip(rows, "012", strict=True)]
        split = Split(by="fold", test_folds=(1,), validation_folds=(2,))
    else:
        (tmp_path / "split.csv").write_text("patient,part\np1,training\np2,test\n")
        split = Split(by="random", table=tmp_path / "split.csv")
    with pytest.raises(UsageProblem, match="Patient p1 and patient p2 have the same image"):
        assign_leak_free_parts(rows, split, sources)


def test_one_patient_in_two_parts_is_reported_as_such_and_not_as_a_copy() -> None:
    (found,) = find_leaks(copied(("p1", "A"), ("p1", "B")), ["training", "test"])
    assert found.code == "data_leak"


def leak_by_case(folder: Path) -> str:
    return "".join(f"{n}.png,{'sick' if n % 2 else 'well'},{'pP'[n % 2]}{n // 2}\n" for n in range(40))


def leak_by_copy(folder: Path) -> str:
    for n in range(0, 40, 2):
        (folder / f"{n + 1}.png").write_bytes((folder / f"{n}.png").read_bytes())
    return "".join(f"{n}.png,{'sick' if n % 4 < 2 else 'well'},p{n},{('train', 'test')[n % 2]}\n" for n in range(40))


@pytest.mark.parametrize("leak", [leak_by_case, leak_by_copy])
def test_no_card_is_made_of_data_with_a_leak(tmp_path: Path, leak: Callable[[Path], str]) -> None:
    generator = np.random.default_rng(1)
    for n in range(40):
        Image.fromarray(generator.integers(0, 255, (32, 32), np.uint8)).save(tmp_path / f"{n}.png")
    recipe = RECIPE
    header = "path,label,patient"
    if leak is leak_by_copy:
        header += ",split"
        recipe = recipe.replace('by = "random"', 'by = "column"').replace(
            'path = "rows.csv"',
            'path = "rows.csv"\nsplits = { train = "training", test = "test" }\ncolumns = { split = "split" }',
        )
    (tmp_path / "rows.csv").write_text(f"{header}\n{leak(tmp_path)}")
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    with pytest.raises(UsageProblem) as problem:
        adapted("run", tmp_path / "recipe.toml")
    assert "puts a patient into several parts" in "\n".join(problem.value.lines)  # type: ignore[attr-defined]
    assert not list(tmp_path.rglob("*CARD*"))


def test_images_that_are_left_out_are_reported(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert describe_left_out_images(tmp_path) == []
    examples = ", ".join(f'["rows.csv, line {n}", "It is no image."]' for n in range(2, 9))
    (tmp_path / "data" / "facts.json").write_text(f'{{"left_out": 7, "left_out_examples": [{examples}]}}')
    said = describe_left_out_images(tmp_path)
    assert said[0] == "Left out: rows.csv, line 2: It is no image."
    assert len(said) == 6 and said[5].startswith("Left out: 2 images more")


def test_a_card_counts_images_without_a_known_patient() -> None:
    folder = resources.files("fieldray_adapt") / "templates" / "en"
    text = (folder / "classifier_card.md").read_text(encoding="utf-8")
    block = Template(text[text.index("{% block split %}") : text.index("{% block sections %}")], trim_blocks=True)
    assert block.render(data={"without_patient": 0}).strip() == "Split by patient; no patient is on two sides."
    assert block.render(data={"without_patient": 7}).startswith("The patient of 7 images is unknown.")
    assert "no patient is on" not in block.render(data={"without_patient": 7})
    assert (folder / "card.md").read_text(encoding="utf-8").count("{% block split %}") == 1
