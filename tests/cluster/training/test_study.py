"""A study of divided training on drawn lungs, and what `fieldray adapt measure-cluster` tells of a recipe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from drawn_data import draw_lungs, project
from fieldray.bench.report import lines as lines_of
from fieldray.errors import StorageProblem, UsageProblem
from fieldray_cluster.training.measure import measure_costs
from fieldray_cluster.training.study import run_study
from fieldray_cluster.training.study_report import study_report
from fieldray_cluster.training.training_log import parsed

pytestmark = [pytest.mark.adapt, pytest.mark.cluster, pytest.mark.timeout(600)]  # trains three times by processes

RECIPE = """
kind = "lung-fields"
run = "../../runs/small"
[pack]
id = "small"
[input]
height = 32
width = 32
[network]
channels = [4, 4, 8, 8, 8]
[[masks]]
name = "montgomery"
path = "../../../shared/data/lungs.csv"
where = { use = ["train"] }
[split]
validation_share = 0.2
test_share = 0.2
[training]
steps_per_epoch = 2
masks_per_step = 2
checks_per_step = 0
threads = 1
[[training.stages]]
side = 32
epochs = 2
learning_rate = 5e-3
"""
STUDY = """
run = "../../runs/study"
recipes = ["small.toml"]
workers = [2]
modes = ["sync-join", "async"]
seeds = [1]
log_every = 1
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    draw_lungs(tmp_path, learnt=10, evaluated=0, side=64)
    path = project(tmp_path, "lung-fields-quick").with_name("small.toml")
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_a_study_trains_each_way_once_and_tells_of_it(recipe: Path) -> None:
    told = recipe.with_name("study.toml")
    told.write_text(STUDY, encoding="utf-8")
    study, courses = run_study(told, say=lambda _: None)
    assert [course.training.name for course in courses] == [
        "small/local-1/seed-1",
        "small/sync-join-2/seed-1",
        "small/async-2/seed-1",
    ]
    local, joined, apart = (course.rows for course in courses)
    # two steps of two masks an epoch; of two workers twice as many, waiting or not
    assert [row["samples"] for row in local] == [4, 8]
    assert [row["samples"] for row in joined] == [row["samples"] for row in apart] == [8, 16]
    assert all({"loss", "dice", "time_s", "epoch", "side"} <= set(row) for course in courses for row in course.rows)
    folder = told.parents[2] / "runs" / "study" / "small" / "async-2" / "seed-1"
    assert {path.name for path in folder.iterdir()} >= {"result.json", "training.log", "training.csv", "weights.npz"}
    lines = (folder / "training.csv").read_text().splitlines()
    assert len(lines) > 2 and lines[0].startswith("time,kind,")

    said: list[str] = []
    _, again = run_study(told, say=said.append)
    assert not [line for line in said if line.endswith("...") and "small/" in line]  # nothing was trained again
    assert [course.rows for course in again] == [course.rows for course in courses]
    text = "\n".join(lines_of(study_report(study, courses)))
    assert "small, 2 workers, training loss: sync-join" in text and "of 1 seeds" in text
    for way in ("local", "sync-join, 2 workers", "async, 2 workers"):
        assert way in text
    assert f"{joined[-1]['loss']:.4f}" in text and f"{apart[-1]['dice']:.4f}" in text


ALONE = STUDY.replace('modes = ["sync-join", "async"]', "modes = []")


@pytest.mark.parametrize(("in_the_way", "kept"), [("training-lines.json", 1), ("weights.npz", 2)])
def test_a_study_that_was_ended_has_all_epochs_and_their_times(recipe: Path, in_the_way: str, kept: int) -> None:
    """After its first epoch, or between its last checkpoint and its result."""
    told = recipe.with_name("study.toml")
    told.write_text(ALONE, encoding="utf-8")
    folder = told.parents[2] / "runs" / "study" / "small" / "local-1" / "seed-1"
    (folder / in_the_way).mkdir(parents=True)
    with pytest.raises(StorageProblem):
        run_study(told, say=lambda _: None)
    (folder / in_the_way).rmdir()
    _, (course,) = run_study(told, say=lambda _: None)
    assert [row["epoch"] for row in course.rows] == [1, 2] and [row["samples"] for row in course.rows] == [4, 8]
    assert [row["side"] for row in course.rows] == [32, 32]  # the report of a pack names it
    first, second = (row["time_s"] for row in course.rows)
    assert 0 < first < second
    logged = parsed((folder / "training.log").read_text())
    assert [row.epoch for row in logged if row.kind == "epoch"] == list(range(2 - kept, 2))


def test_images_that_were_corrected_are_learnt_anew(recipe: Path) -> None:
    told = recipe.with_name("study.toml")
    told.write_text(ALONE, encoding="utf-8")
    run_study(told, say=lambda _: None)

    def trained_again() -> bool:
        shutil.rmtree(recipe.parents[2] / "runs" / "small")
        said: list[str] = []
        run_study(told, say=said.append)
        return "small/local-1/seed-1 ..." in said

    assert not trained_again()
    for mask in (recipe.parents[3] / "shared" / "data" / "lungs").glob("mask*.png"):
        with Image.open(mask) as image:
            corrected = ImageOps.flip(image.convert("L"))
        corrected.save(mask)
    assert trained_again()


def test_what_a_network_and_a_link_cost(recipe: Path) -> None:
    costs = measure_costs(recipe, address=None, certificates=None, repeats=3)
    assert costs.gradient_s > 0 and costs.latency_s > 0 and costs.there_s + costs.back_s > 0
    assert costs.batches == 2 and costs.elements > 1000
    assert [line.split()[0] for line in costs.lines()] == ["Gradient", "Transfer", "Latency"]
    assert not list(recipe.parents[2].rglob("*lesson.npz"))  # images of patients


def test_a_recipe_that_is_not_divided_is_named(recipe: Path) -> None:
    matcher = project(recipe.parents[3] / "other", "matcher-quick")
    with pytest.raises(UsageProblem, match="matcher"):
        measure_costs(matcher, address=None, certificates=None, repeats=3)
