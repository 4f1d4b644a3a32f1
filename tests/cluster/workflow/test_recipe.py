"""Recipes of workflows: compilation to tasks, values of parameters, and error messages."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray.errors import UsageProblem
from fieldray_adapt.recipes.tables import RecipeProblems
from fieldray_cluster.workflow.recipe import (
    Parameter,
    count_combinations,
    draw_samples,
    read_workflow,
    write_new_workflow,
)
from fieldray_cluster.workflow.run import build_graph, fill_command

TEXT = """
[cluster]
workers = 3
[experiments.train]
command = "fieldray train {{rate}} --out {{folder}}"
depends_on = ["data"]
samples = 4
[experiments.train.parameters]
rate = { low = 1e-4, high = 1e-1, scale = "log" }
[experiments.data]
command = "make --kind {{kind}} --seed {{seed}}"
parameters = { kind = ["a", "b"], seed = 7 }
"""
CIRCLE = """
[experiments.a]
command = "x"
depends_on = ["b"]
[experiments.b]
command = "x"
depends_on = ["a", "nobody"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "workflow.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(RecipeProblems) as found:
        read_workflow(write(folder, text))
    return found.value.lines


def test_a_recipe_is_compiled_in_the_order_of_its_dependencies(tmp_path: Path) -> None:
    workflow = read_workflow(write(tmp_path, TEXT))
    graph = build_graph(workflow, recipe_folder=tmp_path)
    assert [(name, len(tasks)) for name, tasks in graph.items()] == [("data", 2), ("train", 4)]
    assert workflow.cluster.workers == 3
    assert {task.command[2] for task in graph["data"]} == {"a", "b"}
    assert {task.command[4] for task in graph["data"]} == {"7"}
    folders = [task.command[-1] for task in graph["train"]]
    assert folders == [str(tmp_path / "run" / "tasks" / f"train-000{number}") for number in (1, 2, 3, 4)]
    assert build_graph(workflow, recipe_folder=tmp_path) == graph


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[experiments.a]\ncommand = 'x {{y}}'",
            "line 2: experiments.a.command has placeholders without a parameter: y",
        ),
        ('[experiments.a]\ncommand = "x \'open"', "cannot be split into words: No closing quotation"),
        ("[experiments.a]\ncommand = 'x'\nparameters = { unused = 1 }", "parameters are not used in the command"),
        ("[experiments.a]\ncommand = 'x {{ y }}'", "braces that are no placeholder"),
        ("[experiments.a]\ncommand = '{{y}} x'\nparameters = { y = 1 }", "must begin with the name of a program"),
        ("[experiments.a]\ncommand = 'x {{run}}'\nparameters = { run = 1 }", "must not be called"),
        ("[experiments.'a/b']\ncommand = 'x'", "must be named by letters"),
        ("[experiments.a]\ncommand = 'x'\nsamples = -1", "samples must be"),
        ("run = 'x'", "needs experiments"),
        ("[sweep]\nrecipe = 'a.toml'\nkeys = { 'training.seed' = 1 }", "must have a list or a range"),
    ],
)
def test_a_mistake_in_a_workflow_is_named(tmp_path: Path, text: str, problem: str) -> None:
    assert any(problem in line for line in problems(tmp_path, text))


def test_cycles_unknown_parents_and_absent_inputs_are_reported_together(tmp_path: Path) -> None:
    wrong = (
        "[experiments.c]\ncommand = 'x {{y}}'\n[experiments.d]\ncommand = 'x'\ninputs = ['absent.csv']\nsamples = -1\n"
    )
    found = problems(tmp_path, CIRCLE + wrong)
    circle, *rest = found
    assert "goes round in a circle: a -> b -> a" in circle or "goes round in a circle: b -> a -> b" in circle
    assert rest == [
        "line 7: experiments.b.depends_on names nobody, which is no experiment; there are a, b, c, d",
        "line 9: experiments.c.command has placeholders without a parameter: y",
        f"line 12: experiments.d.inputs name {tmp_path / 'absent.csv'}, which does not exist",
        "line 13: experiments.d.samples must be 0..100000, not -1",
    ]


def test_too_many_combinations_require_samples(tmp_path: Path) -> None:
    lists = "\n".join(f"p{number} = {list(range(10))}" for number in range(6))
    command = " ".join(f"{{{{p{number}}}}}" for number in range(6))
    text = f"[experiments.a]\ncommand = 'x {command}'\n@\n[experiments.a.parameters]\n{lists}"
    assert any("1000000 combinations" in line for line in problems(tmp_path, text.replace("@", "")))
    assert read_workflow(write(tmp_path, text.replace("@", "samples = 3"))).experiments["a"].task_count == 3


def test_a_parameter_s_value_cannot_split_or_extend_the_command() -> None:
    hostile = "a b'; rm -rf / #\"$(id)`id`{{run}}\n"
    assert fill_command("do --name={{x}} '{{y}} z'", {"x": hostile, "y": True}) == ("do", f"--name={hostile}", "true z")


def test_a_new_recipe_has_every_key_and_can_be_run_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_new_workflow(path)
    text = path.read_text(encoding="utf-8")
    assert all(f"\n#{key} =" in text for key in ("depends_on", "retries", "preemptible", "metric", "address"))
    graph = build_graph(read_workflow(path), recipe_folder=tmp_path)
    assert [task.command for task in graph["first"]] == [("fieldray", "--version"), ("fieldray", "--help")]
    with pytest.raises(UsageProblem, match="exists"):
        write_new_workflow(path)


LISTS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(lambda items: Parameter(values=tuple(items))),
    max_size=3,
)
RANGES = st.dictionaries(
    st.sampled_from(["x", "y"]),
    st.tuples(st.floats(1e-6, 1e3), st.floats(1e-3, 1e3), st.sampled_from(["linear", "log"])).map(
        lambda made: Parameter(low=made[0], high=made[0] + made[1], scale=made[2])  # type: ignore[arg-type]
    ),
    max_size=2,
)


@given(lists=LISTS, ranges=RANGES, count=st.integers(0, 90), seed=st.integers(0, 9))
def test_samples_are_as_documented(
    lists: dict[str, Parameter], ranges: dict[str, Parameter], count: int, seed: int
) -> None:
    found = draw_samples({**lists, **ranges}, count=count, seed=seed)
    assert len(found) == count and all(list(row) == [*lists, *ranges] for row in found)
    product = set(itertools.product(*(known.values for known in lists.values())))
    seen = Counter(tuple(row[name] for name in lists) for row in found)
    assert set(seen) <= product and len(product) == count_combinations({**lists, **ranges})
    times = [seen[combination] for combination in product]
    assert max(times) - min(times) <= 1  # the fewest repetitions
    assert all(known.low <= row[name] <= known.high for name, known in ranges.items() for row in found)
    assert draw_samples({**lists, **ranges}, count=count, seed=seed) == found


def test_as_many_samples_as_combinations_are_the_product() -> None:
    parameters = {"a": Parameter(values=(1, 2, 3)), "b": Parameter(values=("x", "y")), "c": Parameter(values=(True,))}
    found = draw_samples(parameters, count=6, seed=1)
    assert sorted(map(repr, map(tuple, (row.values() for row in found)))) == sorted(
        map(repr, itertools.product((1, 2, 3), ("x", "y"), (True,)))
    )


def test_another_seed_draws_other_numbers() -> None:
    parameters = {"x": Parameter(low=0, high=1)}
    assert draw_samples(parameters, count=3, seed=1) != draw_samples(parameters, count=3, seed=2)
    assert len({row["x"] for row in draw_samples(parameters, count=50, seed=1)}) == 50


def test_a_logarithmic_range_has_as_many_samples_in_each_power_of_ten() -> None:
    found = draw_samples({"x": Parameter(low=1e-4, high=1e-1, scale="log")}, count=3000, seed=0)
    powers = Counter(math.floor(math.log10(float(row["x"]))) for row in found)
    assert set(powers) == {-4, -3, -2} and all(900 < times < 1100 for times in powers.values())


def test_a_product_too_large_to_be_written_down_is_sampled() -> None:
    parameters = {f"p{number}": Parameter(values=tuple(range(10))) for number in range(15)}
    assert count_combinations(parameters) == 10**15
    assert len({tuple(row.values()) for row in draw_samples(parameters, count=100, seed=0)}) == 100


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "not empty"),
        ([1, [2]], "list of numbers"),
        ([1, 1], "twice"),
        ({"low": 1}, "must have low and high"),
        ({"low": 1, "high": 2, "step": 1}, "no other key"),
        ({"low": 2, "high": 1}, "a low below its high"),
        ({"low": 0, "high": 1, "scale": "log"}, "above 0"),
        ({"low": 1, "high": 2, "scale": "cubic"}, "linear, log"),
        ({"low": "a", "high": 2}, "numbers as low"),
        (None, "must be a value"),
    ],
)
def test_a_parameter_says_what_is_wrong_with_it(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Parameter.from_document(value)


def test_true_and_one_are_different_values() -> None:
    assert Parameter.from_document([True, 1, 1.0]).values == (True, 1, 1.0)
