"""Which steps are repeated after a change of seed, rate, split, data or augmentation."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.data.dataset import DATA_STEP, load_dataset
from fieldray_adapt.evaluation.cross_validation import CROSS_VALIDATION_STEP, training_indices_for_fold
from fieldray_adapt.files import digest
from fieldray_adapt.networks.specification import Weights, save_weights
from fieldray_adapt.prune.tasks import prune_by_recipe
from fieldray_adapt.recipe_actions import CLASSIFIER_STEPS
from fieldray_adapt.run import SPLIT_FILE_NAME, Run, Step
from fieldray_adapt.training.classifier import Samples
from fieldray_adapt.training.steps import recipe_specification, train_recipe
from tiny_recipe import RECIPE, draw, read_recipe

NAMES = [step.name for step in CLASSIFIER_STEPS]
CROSS_FOLDS = "cross_folds = [0, 1, 2]\n"
TRAINING = "learning_rate = 3e-3\naverage_epochs"
RANDOM = RECIPE.replace('by = "fold"', 'by = "random"')


def _project(folder: Path, text: str = RECIPE) -> Path:
    draw(folder, "clean", images=60, first=0)
    draw(folder, "confounded", images=30, first=60)
    save_weights(folder / "start.npz", {"a": np.zeros(3, np.float32)})
    return _recipe(folder, text)


def _recipe(folder: Path, text: str) -> Path:
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    return folder / "recipe.toml"


def _run(recipe: Path) -> Run:
    return Run(recipe=read_recipe(recipe), progress=lambda *_: None)


def _with_data(recipe: Path) -> Run:
    """Return a run whose data step is done."""
    run = _run(recipe)
    run.execute((DATA_STEP,), say=lambda _: None)
    return run


def _performed(recipe: Path, *, failing: str = "") -> list[str]:
    """Perform a run, with only the data step real. Returns the names of the performed steps in order."""
    performed = list[str]()

    def recording(step: Step) -> Step:
        def perform(run: Run) -> Mapping[str, Any]:
            performed.append(step.name)
            if step.name == failing:
                raise UsageProblem(reason("training_diverged", epoch=1, step=1))
            return step.perform(run) if step is DATA_STEP else {}

        leaves = step.outputs if step is DATA_STEP else ()
        return replace(step, perform=perform, outputs=leaves, are_outside_files_intact=lambda _: True)

    _run(recipe).execute(tuple(map(recording, CLASSIFIER_STEPS)), say=lambda _: None)
    return performed


def _replaced(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        assert RECIPE.count(old) >= 1
        _recipe(folder, RECIPE.replace(old, new, 1))

    return change


def _adds_a_patient(folder: Path) -> None:
    Image.open(folder / "0.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "new.png")
    with (folder / "clean.csv").open("a", encoding="utf-8") as table:
        table.write("\nnew.png,0,newcomer,2")


def _replaces_an_image(folder: Path) -> None:
    Image.open(folder / "5.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "5.png")


def _replaces_an_image_in_secret(folder: Path) -> None:
    """Replace an image without changing the size and times of its file."""
    path = folder / "5.png"
    facts, data = path.stat(), bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _relabels_an_image(folder: Path) -> None:
    text = (folder / "clean.csv").read_text(encoding="utf-8")
    (folder / "clean.csv").write_text(text.replace("\n6.png,0,", "\n6.png,1,"), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (_replaced(TRAINING, f"seed = 9\n{TRAINING}"), "train"),
        (_replaced(TRAINING, TRAINING.replace("3e-3", "0.1")), "train"),
        (_replaced("[prune]", "[augmentation]\nshift = 0.05\n[prune]"), "train"),
        (_replaced("test_folds = [1]", "test_folds = [2]"), "data"),
        (_replaced('by = "fold"', 'by = "random"'), "data"),
        (_adds_a_patient, "data"),
        (_replaces_an_image, "data"),
        (_replaces_an_image_in_secret, "data"),
        (_relabels_an_image, "data"),
        (lambda folder: (folder / "7.png").unlink(), "data"),
        (lambda folder: shutil.rmtree(folder / "run" / "data"), "data"),
        (_replaced("cut_off = { start = 0.9 }", "cut_off = { start = 0.8 }"), "prune"),
        (_replaced("[evaluation]\n", "[evaluation]\nood_gate_keeps = 0.98\n"), "evaluate"),
        (lambda folder: (folder / "run" / "cross.json").write_text("{}", encoding="utf-8"), "pack"),
        (lambda folder: os.utime(folder / "5.png", ns=(10**18, 10**18)), None),
        (lambda _: None, None),
    ],
)
def test_a_change_repeats_every_step_that_depends_on_it(
    tmp_path: Path, change: Callable[[Path], None], first: str | None
) -> None:
    recipe = _project(tmp_path)
    assert _performed(recipe) == NAMES
    change(tmp_path)
    assert _performed(recipe) == (NAMES[NAMES.index(first) :] if first else [])
    assert _performed(recipe) == []


def test_other_starting_weights_repeat_the_training(tmp_path: Path) -> None:
    recipe = _project(tmp_path, RECIPE.replace("[network]\n", '[network]\nweights = "start.npz"\n'))
    assert _performed(recipe) == NAMES
    save_weights(tmp_path / "start.npz", {"a": np.ones(3, np.float32)})
    assert _performed(recipe) == NAMES[1:]


def test_steps_after_a_repeated_step_are_repeated_with_an_unchanged_recipe(tmp_path: Path) -> None:
    recipe = _project(tmp_path)
    assert _performed(recipe) == NAMES
    _recipe(tmp_path, RECIPE.replace(TRAINING, f"seed = 9\n{TRAINING}"))
    with pytest.raises(UsageProblem):
        _performed(recipe, failing="train")
    _recipe(tmp_path, RECIPE)
    assert _performed(recipe) == NAMES[1:]  # the pruned network no longer comes from this trained one


def test_another_split_table_repeats_the_data_step(tmp_path: Path) -> None:
    recipe = _project(tmp_path, RANDOM.replace("[split]\n", '[split]\ntable = "split.csv"\n').replace(CROSS_FOLDS, ""))
    for part in ("training", "test"):
        (tmp_path / "split.csv").write_text(f"patient,part\np3,{part}\np9999,{part}\n", encoding="utf-8")
        assert _performed(recipe)[:1] == ["data"]
        facts = _run(recipe).step_statuses["data"].facts
        assert (facts["patients_of_table"], facts["patients_of_table_in_data"]) == (2, 1)
        assert _performed(recipe) == []
        assert _parts(tmp_path / "run")["p3"] == part


def _parts(run: Path, *, by: str = "patient") -> dict[str, str]:
    with (run / "data" / SPLIT_FILE_NAME).open(encoding="utf-8", newline="") as lines:
        return {row[by]: row["part"] for row in csv.DictReader(lines)}


@pytest.mark.parametrize("change", [_adds_a_patient, _replaces_an_image, _relabels_an_image])
def test_data_that_change_between_two_steps_stop_the_run(tmp_path: Path, change: Callable[[Path], None]) -> None:
    run = _with_data(_project(tmp_path))
    assert len(load_dataset(run).parts) == 90
    change(tmp_path)
    with pytest.raises(UsageProblem, match=r"split\.csv no longer matches"):
        load_dataset(run)


def test_a_split_changed_by_hand_is_refused(tmp_path: Path) -> None:
    run = _with_data(_project(tmp_path))
    split = tmp_path / "run" / "data" / SPLIT_FILE_NAME
    split.write_text(split.read_text(encoding="utf-8").replace(",test\n", ",training\n", 1), encoding="utf-8")
    with pytest.raises(UsageProblem, match=r"split\.csv no longer matches"):
        load_dataset(run)
    split.unlink()
    with pytest.raises(UsageProblem, match="First run the step data"):
        load_dataset(run)


def test_a_source_with_share_0_is_evaluated_but_not_trained_on(tmp_path: Path) -> None:
    run = _with_data(_project(tmp_path, RECIPE.replace('name = "clean"', 'name = "clean"\nshare = 0')))
    data = load_dataset(run)
    assert {row.source for row in data.rows("training")} == {"confounded"}
    assert {row.source for part in ("validation", "test") for row in data.rows(part)} == {"clean"}
    learnt = list[Samples]()

    def learn(_specification: object, weights: Weights, *, training: Samples, **_: object) -> tuple[Weights, list[Any]]:
        learnt.append(training)
        return weights, [{}]

    everything = data.samples_at(np.arange(90))
    trainer = SimpleNamespace(train_classifier=learn)
    train_recipe(replace(run, trainer=trainer), training=everything, validation=everything, folder=tmp_path / "train")  # type: ignore[arg-type]
    assert set(learnt[0].sources) == {"confounded"}  # as in a cross-validation, which has its own parts
    others = [
        data.image_set.rows[index] for index in training_indices_for_fold(data, run, 0)
    ]  # the part that fits ranges and heads in a cross-validation
    assert {row.source for row in others} == {"confounded"} and {row.fold for row in others} == {"1", "2"}


def test_pruning_uses_the_teacher_of_the_training(tmp_path: Path) -> None:
    run = _with_data(_project(tmp_path, RECIPE.replace("[training]", '[training]\nteacher = "none.npz"')))
    samples, original = load_dataset(run).samples("training"), (recipe_specification(run.recipe), Weights())
    with pytest.raises(UsageProblem, match=r"none\.npz cannot be read"):
        prune_by_recipe(run, original, training=samples, validation=samples, folder=tmp_path / "prune")


def test_a_patient_in_two_folds_is_not_cross_validated(tmp_path: Path) -> None:
    recipe = _project(tmp_path, RANDOM)
    text = (tmp_path / "clean.csv").read_text(encoding="utf-8")
    (tmp_path / "clean.csv").write_text(text.replace("5.png,1,p5,2", "5.png,1,p0,2"), encoding="utf-8")
    with pytest.raises(UsageProblem, match=r"p0 is in two parts of the split: .*\(fold 0\) and .*\(the other folds\)"):
        _run(recipe).execute((DATA_STEP, CROSS_VALIDATION_STEP), say=lambda _: None)


def test_an_image_without_a_patient_stays_where_it_is_when_lines_move(tmp_path: Path) -> None:
    recipe = _project(tmp_path, RANDOM)
    text = re.sub(r",p\d+,", ",,", (tmp_path / "clean.csv").read_text(encoding="utf-8"))
    (tmp_path / "clean.csv").write_text(text, encoding="utf-8")
    _performed(recipe)
    before = _parts(tmp_path / "run", by="sha256")
    head, rest = text.split("\n", 1)
    Image.open(tmp_path / "0.png").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "new.png")
    (tmp_path / "clean.csv").write_text(f"{head}\nnew.png,0,,2\n{rest}", encoding="utf-8")
    assert "data" in _performed(recipe)
    assert before.items() <= _parts(tmp_path / "run", by="sha256").items() and len(before) == 90


def test_only_equal_parts_have_equal_digests() -> None:
    array = np.arange(6, dtype=np.float32)
    assert digest({"a": 1, "b": array}) == digest({"b": array.copy(), "a": 1})
    assert digest(frozenset("ab")) == digest(frozenset("ba")) and digest(np.float64(0.1)) == digest(0.1)
    others = [array, array.reshape(2, 3), array.astype(np.float64), array + 1, 1, 1.0, "1", True, None, (1,), ("1",)]
    others += [("ab", "c"), ("a", "bc"), ["ab", ["c"]], {"a": "b"}, Path("1"), {}, (), "\udcff", Path("\udcff")]
    assert len({digest(one) for one in others}) == len(others)
    with pytest.raises(TypeError, match="no digest of a object"):
        digest(object())
