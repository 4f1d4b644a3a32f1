"""The loop with a task by formula: what it records, when it stops, and that it goes on after a kill anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray_adapt.engine import Effort
from fieldray_adapt.networks import vgg16_dense
from fieldray_adapt.prune.loop import (
    AnyLaw,
    Constant,
    ContextDependent,
    Iteration,
    Linear,
    PruneRecipe,
    RunFolder,
    Stop,
    best,
    prune,
)
from fieldray_adapt.prune.selection import Keep, Scores, rectified_layers
from fieldray_adapt.specification import Specification, Weights, initial_weights, keep_channels, parameters
from tiny_recipe import Killed


class FormulaTask:
    """Zeros rise with the index of a channel; quality falls with size; `retrain` adds 1 to a bias.

    dies_at    (method, call number) at which it is killed
    """

    def __init__(self, dies_at: tuple[str, int] | None = None) -> None:
        self.efforts: list[Effort] = []
        self._dies_at = dies_at
        self._calls: dict[str, int] = {}

    def _called(self, name: str) -> None:
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._dies_at == (name, self._calls[name]):
            raise Killed

    def zero_shares(self, specification: Specification, weights: Weights) -> Scores:
        self._called("zero_shares")
        return {name: np.linspace(0, 1, specification.channels[name]) for name in rectified_layers(specification)}

    def cut(self, specification: Specification, weights: Weights, *, keep: Keep) -> tuple[Specification, Weights]:
        return keep_channels(specification, weights, keep=keep)

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        self._called("retrain")
        self.efforts.append(effort)
        return {**weights, "logits/bias": weights["logits/bias"] + np.float32(seed)}

    def quality(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        self._called("quality")
        quality = 1 - 1 / specification.channels["fc1"]
        return quality, 1 - quality

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        self._called("seconds_per_image")
        return parameters(specification) * 1e-6

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        return 64


def original() -> tuple[Specification, Weights]:
    network = vgg16_dense(dense_units=64).scaled(0.125)
    return network, initial_weights(network, seed=0)


def plan(stop: Stop, **changes: AnyLaw) -> PruneRecipe:
    given: dict[str, AnyLaw] = {
        "batch_size": Constant(start=32),
        "epochs": Constant(start=0.5),
        "learning_rate": Constant(start=1e-3),
        "cut_off": Constant(start=0.5),
        "minimum_channels": Constant(start=2),
    }
    return PruneRecipe(**{**given, **changes}, stop=stop, cut_kind="level")


def run(folder: Path, wanted: PruneRecipe, task: FormulaTask | None = None) -> tuple[str, tuple[Iteration, ...]]:
    kept = RunFolder(folder, fingerprint="a")
    return prune(task or FormulaTask(), wanted, folder=kept, original=original), kept.iterations()


def test_each_iteration_halves_and_is_recorded(tmp_path: Path) -> None:
    why, rows = run(tmp_path, plan(Stop(iterations=3)))
    assert why == "iterations"
    assert [row.number for row in rows] == [0, 1, 2, 3]
    sizes = [RunFolder(tmp_path, fingerprint="a").network(number)[0].channels["fc1"] for number in range(4)]
    # fc1 has 8 channels at an eighth of 64; the half with zeros at or below 0.5 stays, down to the minimum of 2
    assert sizes == [8, 4, 2, 2]
    assert rows[1].settings is not None and rows[0].settings is None
    # retraining adds the seed, which is the iteration's number, to the bias: 1 + 2 + 3
    assert RunFolder(tmp_path, fingerprint="a").network(3)[1]["logits/bias"][0] == 6


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        (Stop(iterations=9, lowest_quality=0.7), "lowest_quality"),
        (Stop(iterations=9, target_parameters=3000), "target_parameters"),
        (Stop(iterations=9), "nothing_left"),
    ],
)
def test_the_rule_that_stops_it_is_named(tmp_path: Path, stop: Stop, why: str) -> None:
    found, rows = run(tmp_path, plan(stop))
    assert found == why
    if why == "lowest_quality":
        assert rows[-1].quality < 0.7 <= best(rows, stop=stop).quality


def test_settings_follow_their_laws(tmp_path: Path) -> None:
    task = FormulaTask()
    wanted = plan(
        Stop(iterations=2), epochs=Linear(start=0.5, step=0.25), batch_size=ContextDependent(start=16, batch=1.0)
    )
    run(tmp_path, wanted, task)
    # the profile proposes 64, and a strength of 1 follows it wholly
    assert task.efforts == [
        Effort(batch_size=16, epochs=0.5, learning_rate=1e-3),
        Effort(batch_size=64, epochs=0.75, learning_rate=1e-3),
    ]


@pytest.mark.parametrize("method", ["zero_shares", "retrain", "quality", "seconds_per_image"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(tmp_path: Path, method: str, call: int) -> None:
    wanted = plan(Stop(iterations=2), epochs=ContextDependent(start=0.5, time=-0.5))
    _, straight = run(tmp_path / "straight", wanted)
    with pytest.raises(Killed):
        run(tmp_path / "killed", wanted, FormulaTask(dies_at=(method, call)))
    _, resumed = run(tmp_path / "killed", wanted)
    assert [_without_clock(row) for row in resumed] == [_without_clock(row) for row in straight]
    assert _bias(tmp_path / "killed") == _bias(tmp_path / "straight")


def _without_clock(row: Iteration) -> tuple[object, ...]:
    return row.number, row.parameters, row.quality, row.loss, row.settings


def _bias(folder: Path) -> float:
    return float(RunFolder(folder, fingerprint="a").network(2)[1]["logits/bias"][0])


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    run(tmp_path, plan(Stop(iterations=1)))
    task = FormulaTask()
    why, _ = run(tmp_path, plan(Stop(iterations=1)), task)
    assert why == "iterations" and not task.efforts


@pytest.mark.parametrize("spoil", [lambda text: text[:-20], lambda text: text.replace("parameters", "sizes")])
def test_a_damaged_record_says_so(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    run(tmp_path, plan(Stop(iterations=1)))
    path = tmp_path / "iterations.jsonl"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(StorageProblem, match="damaged"):
        run(tmp_path, plan(Stop(iterations=1)))


def test_looking_at_a_run_does_not_begin_it(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "run", fingerprint="a").iterations() == ()
    assert RunFolder(tmp_path / "run", fingerprint="b").iterations() == ()
    run(tmp_path / "run", plan(Stop(iterations=1)))
    with pytest.raises(UsageProblem, match="other settings"):
        RunFolder(tmp_path / "run", fingerprint="b")
