"""Recipes: templates, checks and the reference all come from the types of a recipe. Wrong keys are named with line."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from PIL import Image

from fieldray.cli import run as run_command
from fieldray.errors import UsageProblem
from fieldray_adapt.recipe_actions import RECIPE_KINDS, check_recipe, run_recipe, write_new_recipe
from fieldray_adapt.recipes.classifier import training_description
from fieldray_adapt.recipes.tables import (
    Key,
    KeyProblems,
    RecipeDocument,
    RecipeProblems,
    ValidityRules,
    key,
    parse_table,
    recipe_table,
    recipe_template,
    require_allowed_values,
    require_fulfilled_rules,
)
from tiny_recipe import read_recipe

ROOT = Path(__file__).parents[2]
FIRST = """
[pack]
id = "first"

[[labels]]
code = "sick"
positive = ["sick"]

[[data]]
path = "images"
"""


def draw_folders(folder: Path, *, count: int, side: int = 16, classes: tuple[str, ...] = ("healthy", "sick")) -> None:
    """Draw images in a folder for each class. Later classes have a brighter middle."""
    generator = np.random.default_rng(0)
    for number in range(count):
        name = classes[number % len(classes)]
        pixels = generator.integers(60, 120, (side, side), np.uint8)
        pixels[0], pixels[-1] = 250, 0  # so that stretching the grey levels does not change the middle
        pixels[side // 4 : 3 * side // 4, side // 4 : 3 * side // 4] += 100 * classes.index(name)
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name / f"{number}.png")


def _problems(folder: Path, text: str) -> list[str]:
    """Return the problems of a recipe with this text in the folder."""
    (folder / "recipe.toml").write_text(text)
    with pytest.raises(RecipeProblems) as found:
        check_recipe(folder / "recipe.toml")
    return list(found.value.lines)


def _grey(folder: Path, *names: str) -> None:
    for name in names:
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(folder / f"{name}.png")


def test_a_first_recipe_for_a_folder_of_two_classes_fits_on_a_screen(tmp_path: Path) -> None:
    assert len(FIRST.splitlines()) < 12
    draw_folders(tmp_path / "images", count=40)
    (tmp_path / "first.toml").write_text(FIRST)
    check_recipe(tmp_path / "first.toml")
    recipe = read_recipe(tmp_path / "first.toml")
    assert recipe.labels[0].meaning == {"en": "Sick"} and recipe.pack.names == {"en": "first"}
    assert recipe.data[0].name == "images" and recipe.run == tmp_path / "run"
    assert recipe.evaluation.points[0].titles == {"en": "Balanced"}


@pytest.mark.parametrize("kind", RECIPE_KINDS)
def test_a_template_is_a_recipe_and_so_is_one_with_every_key_set(tmp_path: Path, kind: str) -> None:
    text = recipe_template(RECIPE_KINDS[kind].recipe_class)
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    RecipeDocument.read(path).parse_as(RECIPE_KINDS[kind].recipe_class)
    full = re.sub(r"^#(?=[a-z_]+ = |\[)", "", re.sub(r"(?m)^#?[a-z_]+ = \.\.\.\n", "", text), flags=re.MULTILINE)
    assert "\n#epochs" not in full and len(full) > 1000
    path.write_text(full, encoding="utf-8")
    RecipeDocument.read(path).parse_as(RECIPE_KINDS[kind].recipe_class)
    assert all(line.startswith("#") for line in text.splitlines() if "(" in line and ")" in line and "=" not in line)


def test_new_writes_a_recipe_and_its_credits_and_replaces_nothing(tmp_path: Path) -> None:
    written = write_new_recipe("classifier", tmp_path / "mine.toml")
    assert [path.name for path in written] == ["mine.toml", "mine.credits.md"]
    (tmp_path / "mine.credits.md").write_text("Drawn by code.\n")
    assert read_recipe(tmp_path / "mine.toml").pack.credits_text == "Drawn by code."
    with pytest.raises(UsageProblem, match="already exists"):
        write_new_recipe("classifier", tmp_path / "mine.toml")
    assert write_new_recipe("pruning-study", tmp_path / "study.toml") == [tmp_path / "study.toml"]
    with pytest.raises(UsageProblem, match=r"no recipe of the kind segmenter\. The kinds are: classifier"):
        write_new_recipe("segmenter", tmp_path / "other.toml")


def test_the_command_names_every_problem_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(FIRST.replace('id = "first"', 'id = "First pack"\nnames = { uk = "Перший" }') + '\nlayuot = "csv"')
    assert run_command(["adapt", "check", str(path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[2] for line in lines] == ["pack.id", "pack.names", "data[1].layuot"]
    assert lines[2].startswith("line 13: data[1].layuot is not known (is layout meant?)")
    draw_folders(tmp_path / "images", count=40)
    path.write_text(FIRST)
    assert run_command(["adapt", "check", str(path)]) == 0
    assert "no problems found" in capsys.readouterr().out


TABLE = """path,lable,patient,split
a.png,sick,p1,train
b.png,healthy,p1,test
missing.png,sick,p2,train
"""
CSV = """
[pack]
id = "first"
[network]
weights = "start.npz"
[[labels]]
code = "sick"
positive = ["sick", "very sick"]
[[data]]
path = "rows.csv"
layout = "csv"
columns = { classes = "label", split = "split" }
splits = { train = "training", test = "test" }
[[data]]
path = "nowhere"
[split]
by = "column"
"""


ROWS = CSV.replace('[[data]]\npath = "nowhere"\n', "").replace('weights = "start.npz"', "")


def test_missing_requirements_of_a_training_are_named_before_it_begins(tmp_path: Path) -> None:
    draw_folders(tmp_path / "images", count=40)
    found = _problems(tmp_path, FIRST + '[training]\nteacher = "lite0.npz"\n')
    assert [line for line in found if "training.teacher names" in line and "which does not exist" in line]
    found = _problems(tmp_path, FIRST + "share = 0\n")
    assert [line for line in found if "training part of the data has no positive images" in line]


def test_equal_problems_are_one_with_their_number(tmp_path: Path) -> None:
    draw_folders(tmp_path / "images", count=40)
    (found,) = _problems(tmp_path, FIRST + 'patient = "nobody(x+)"\n')
    assert "The pattern's first group in parentheses must match the patient ID (and 39 more like it)" in found
    rows = "".join(f"gone{number}.png,sick,p{number}\n" for number in range(9))
    (tmp_path / "rows.csv").write_text("path,label,patient\na.png,sick,p\na.png,healthy,p\n" + rows)
    _grey(tmp_path, "a")
    found = _problems(tmp_path, FIRST.replace('"images"', '"rows.csv"\nlayout = "csv"'))
    assert [line for line in found if "gone0.png" in line and line.endswith("(and 8 more like it)")]
    assert len([line for line in found if ".png" in line]) == 2  # the other problem is the contradiction


def test_the_description_of_a_recipe_without_a_teacher_is_unchanged() -> None:
    """Otherwise a pack made again would lose the figures of an earlier cross-validation."""
    models = Path(__file__).parents[2] / "models"
    published = json.loads((models / "studies" / "tuberculosis-adult" / "cross.json").read_text(encoding="utf-8"))
    trained = training_description(read_recipe(models / "studies" / "tuberculosis-adult" / "single-hospitals.toml"))
    assert json.loads(json.dumps(trained)) == published["trained"]


def test_problems_of_the_data_are_named_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(TABLE)
    _grey(tmp_path, "a", "b")
    found = _problems(tmp_path, CSV)
    assert found[0].startswith("line 5: network.weights names") and "start.npz, which does not exist" in found[0]
    assert "line 9: data[1] cannot be used" in found[1] and "no column named label" in found[1]
    assert "The columns are: path, lable, patient, split" in found[1]
    assert "line 14: data[2] cannot be used" in found[2] and "the folder does not exist" in found[2]
    assert len(found) == 3
    with pytest.raises(UsageProblem, match="3 problems"):
        run_recipe("run", tmp_path / "recipe.toml", say=lambda _: None, progress=lambda *_: None)
    assert not (tmp_path / "run" / "data").exists()

    (tmp_path / "rows.csv").write_text(TABLE.replace("lable", "label"))
    assert [line for line in _problems(tmp_path, ROWS) if "missing.png" in line and "rows.csv, line 4" in line]
    _grey(tmp_path, "missing")
    found = _problems(tmp_path, ROWS)
    unheard_of = "labels[1].positive names very sick, which no image has. Known: healthy, sick"
    assert [line for line in found if unheard_of in line]
    assert [line for line in found if "p1 is in two parts" in line and "rows.csv, line 2" in line]
    assert sum("leaves a part without a class" in line for line in found) == 4
    (tmp_path / "rows.csv").write_text(TABLE.replace("lable", "label").replace("healthy", "sick") + "d.png,sick\n")
    found = _problems(tmp_path, ROWS)
    assert [
        line
        for line in found
        if "(the table has only the class sick, first row: rows.csv, line 2, classes: sick)" in line
    ]
    assert [line for line in found if "line 5: it has another number of cells" in line]


@pytest.mark.parametrize(
    ("said", "instead", "complaint"),
    [
        ("b.png,healthy", "b.png,heatlhy", "has a row with the class heatlhy (rows.csv, line 3); is healthy meant?"),
        ("b.png,healthy", "b.png,Healthy", "has a row with the class Healthy (rows.csv, line 3); is healthy meant?"),
        ("c.png,sick,p3,train", "c.png,sick,p3,trains", "the split trains (rows.csv, line 4); is train meant?"),
        (
            "c.png,sick,p3",
            "b.png,sick,p3",
            "differ in class, patient or part of the split: rows.csv, line 3; rows.csv, line 4",
        ),
        (
            "c.png,sick,p3",
            "a.png,sick,p3",
            "differ in class, patient or part of the split: rows.csv, line 2; rows.csv, line 4",
        ),
    ],
)
def test_mistakes_in_a_row_are_named_with_file_and_row(tmp_path: Path, said: str, instead: str, complaint: str) -> None:
    table = (
        "path,label,patient,split\na.png,sick,p1,train\nb.png,healthy,p2,test\nc.png,sick,p3,train\nd.png,lame,p4,\n"
    )
    (tmp_path / "rows.csv").write_text(table.replace(said, instead))
    _grey(tmp_path, "a", "b", "c", "d")
    found = _problems(tmp_path, ROWS.replace('["sick", "very sick"]', '["sick"]\nnegative = ["healthy"]'))
    assert [line for line in found if complaint in line]
    assert not [line for line in found if "lame" in line]


def test_each_group_of_averaged_networks_needs_images_of_both_classes(tmp_path: Path) -> None:
    draw_folders(tmp_path / "images", count=40)
    draw_folders(tmp_path / "ill", count=4, classes=("sick",))
    other = '[[data]]\npath = "ill"\nevaluated = false\n'
    text = FIRST + other + "[training]\naverage_sources = true\n"
    assert [
        line
        for line in _problems(tmp_path, text)
        if "has only positive or only negative images of the label sick in the group ill" in line
    ]
    found = _problems(tmp_path, text.replace("evaluated = false", "evaluated = false\nshare = 0"))
    assert [line for line in found if "must draw from every group" in line]
    (tmp_path / "recipe.toml").write_text(text.replace("evaluated = false", 'evaluated = false\ngroup = "images"'))
    check_recipe(tmp_path / "recipe.toml")


def test_random_starting_weights_have_no_share_in_the_final_weights(tmp_path: Path) -> None:
    draw_folders(tmp_path / "images", count=40)
    found = _problems(tmp_path, FIRST + "[training]\nstart_share = 0.4\n")
    assert [line for line in found if "training.start_share needs a network with starting weights" in line]


def test_epochs_on_a_teacher_need_a_teacher(tmp_path: Path) -> None:
    draw_folders(tmp_path / "images", count=40)
    found = _problems(tmp_path, FIRST + "[training]\nteacher_epochs = 3\n")
    assert [line for line in found if "training.teacher_epochs needs a teacher" in line]


@recipe_table
class Census:
    """A fake kind of recipe that no other module knows: it counts files."""

    kind: Literal["census"] = key("What it is.", example="census")
    folder: Path = key("What is counted.", example="here")
    most: int = key("At most.", default=10, low=1)
    title: str = key("Of the page; the folder's name by default.", default="")

    def defaults(self) -> Mapping[str, Any]:
        return {"title": self.folder.name}

    def validity_rules(self) -> ValidityRules:
        yield self.most != 13, "most", "must not be 13"


def test_an_invalid_table_of_a_recipe_cannot_be_constructed() -> None:
    assert Census(kind="census", folder=Path("a", "b")).title == "b"
    for most, words in ((0, "most must be 1 or more, not 0"), (13, "most must not be 13")):
        with pytest.raises(KeyProblems, match=words):
            Census(kind="census", folder=Path("a"), most=most)


def test_the_recipe_reference_is_generated_from_the_types() -> None:
    spec = importlib.util.spec_from_file_location("recipe_reference", ROOT / "tools" / "recipe_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "recipe-reference.md").read_text(encoding="utf-8") == module.reference_text()


def test_every_key_is_described() -> None:
    rows = [line for line in (ROOT / "docs" / "recipe-reference.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if len(row.split("|")[4].strip()) < 8] == []


@pytest.mark.parametrize("name", ["pneumonia-paediatric", "adult-normal-abnormal"])
def test_the_shipped_recipes_have_a_file_of_credits(name: str) -> None:
    for stem in (name, f"{name}-quick"):
        assert (
            "CVPR" in (text := read_recipe(ROOT / "models" / "recipes" / f"{stem}.toml").pack.credits_text)
            or "CC BY" in text
        )
        assert "credits" not in (ROOT / "models" / "recipes" / f"{stem}.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("tag", ["pl", "pt-BR", "zh-Hans", "es-419", "uk"])
def test_texts_may_have_further_languages_besides_english(tmp_path: Path, tag: str) -> None:
    (tmp_path / "recipe.toml").write_text(
        FIRST.replace('id = "first"', f'id = "first"\nnames = {{ en = "A", {tag} = "B" }}')
    )
    assert read_recipe(tmp_path / "recipe.toml").pack.names == {"en": "A", tag: "B"}


@pytest.mark.parametrize(
    ("normal", "complaint"),
    [
        ("Ѕigns", "pack.class_names.abnormal must not be Signs, which looks like the name of the other class"),
        ("Read first", "pack.class_names.normal must not be Read first, which looks like"),
        ("\u3164", "pack.class_names.normal has no text in en"),
    ],
)
def test_class_names_are_judged_as_those_of_a_pack_are(tmp_path: Path, normal: str, complaint: str) -> None:
    names = f'id = "first"\n[pack.class_names]\nabnormal = {{ en = "Signs" }}\nnormal = {{ en = "{normal}" }}'
    (line,) = _problems(tmp_path, FIRST.replace('id = "first"', names))
    assert complaint in line


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, Key(doc="Of it.", low=1)]
    rate: Annotated[float, Key(above=0, high=2)] = 0.5

    def __post_init__(self) -> None:
        require_allowed_values(self)
        require_fulfilled_rules((self.size < 90 or self.rate < 1, "rate", "must be below 1 for a large size"))


@dataclass(frozen=True)
class Other:
    file: Path


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    inner: Inner
    several: tuple[Inner, ...] = ()
    either: Inner | Other | None = None
    limit: float | None = None
    pair: tuple[int, int] | None = None


def _said_of(table: dict[str, object]) -> list[str]:
    found = parse_table(Outer, table)
    assert isinstance(found, list)
    return [f"{problem.key_path} {problem.detail}" for problem in found]


def test_a_table_becomes_a_dataclass() -> None:
    table = {
        "kind": "a",
        "inner": {"size": 2, "rate": 1},
        "several": [{"size": 3}],
        "either": {"file": "x"},
        "limit": 4,
        "pair": [1, 2],
    }
    assert parse_table(Outer, table) == Outer(
        "a", Inner(2, 1.0), several=(Inner(3),), either=Other(Path("x")), limit=4.0, pair=(1, 2)
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"kind": "a", "inner": {"size": 2, "rat": 1}},
            "inner.rat is not known (is rate meant?); known keys: size, rate",
        ),
        ({"kind": "a", "inner": {}}, "inner.size is missing"),
        ({"kind": "c", "inner": {"size": 2}}, "kind must be one of a, b, not c"),
        ({"kind": "a", "inner": {"size": "2"}}, 'inner.size must be a whole number, not "2"'),
        ({"kind": "a", "inner": {"size": True}}, "inner.size must be a whole number, not True"),
        ({"kind": "a", "inner": {"size": 0}}, "inner.size must be 1 or more, not 0"),
        ({"kind": "a", "inner": {"size": 1, "rate": 0}}, "inner.rate must be above 0 and at most 2, not 0.0"),
        ({"kind": "a", "inner": {"size": 90, "rate": 1.5}}, "inner.rate must be below 1 for a large size"),
        ({"kind": "a", "inner": 5}, "inner must be a table of keys, not 5"),
        (
            {"kind": "a", "inner": {"size": 2}, "several": [{"size": 1}, {"size": 1.5}]},
            "several[2].size must be a whole number, not 1.5",
        ),
        ({"kind": "a", "inner": {"size": 2}, "either": {"file": 3}}, "either.file must be a path, not 3"),
        (
            {"kind": "a", "inner": {"size": 2}, "either": {"file": "~nobody-of-that-name/x"}},
            "either.file begins with the home folder of an unknown user: ~nobody-of-that-name/x",
        ),
        ({"kind": "a", "inner": {"size": 2}, "limit": "x"}, 'limit must be a number, not "x"'),
        ({"kind": "a", "inner": {"size": 2}, "pair": [1]}, "pair must be a list of 2, not of 1"),
    ],
)
def test_a_wrong_key_of_a_table_is_named(table: dict[str, object], message: str) -> None:
    assert _said_of(table) == [message]


def test_every_problem_is_named_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        """# a comment
kind = "c"
limit = '''
several = 5
'''

[inner]  # which lacks its size
rate = 7.0

[[several]]
size = 1

[[several]]
size = [
  1,
]
""",
        encoding="utf-8",
    )
    with pytest.raises(RecipeProblems) as found:
        RecipeDocument.read(path).parse_as(Outer)
    assert found.value.lines == (
        "line 2: kind must be one of a, b, not c",
        'line 3: limit must be a number, not "several = 5\\n"',
        "line 7: inner.size is missing",
        "line 8: inner.rate must be above 0 and at most 2, not 7.0",
        "line 14: several[2].size must be a whole number, not [1]",
    )
    assert "5 problems" in found.value.reason.text


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("kind = ")
    with pytest.raises(UsageProblem, match=r"recipe\.toml cannot be read"):
        RecipeDocument.read(tmp_path / "recipe.toml")
    with pytest.raises(UsageProblem, match=r"none\.toml cannot be read"):
        RecipeDocument.read(tmp_path / "none.toml")
