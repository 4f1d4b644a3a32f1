"""The pruning loop with a fake task: records, stopping rules, resuming after a kill, laws of settings, cut channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray_adapt.networks.architectures import resnet50, vgg16_dense
from fieldray_adapt.networks.specification import (
    Specification,
    Weights,
    initial_weights,
    keep_channels,
    parameter_count,
)
from fieldray_adapt.prune.iterations import Iteration, PruningRunFolder
from fieldray_adapt.prune.laws import (
    AnyPruningLaw,
    Bounds,
    ChangeRatios,
    ConstantLaw,
    ContextDependentLaw,
    LinearLaw,
    MultiplicativeLaw,
)
from fieldray_adapt.prune.loop import prune, smallest_adequate_iteration
from fieldray_adapt.prune.plan import PruneRecipe, StopRules
from fieldray_adapt.prune.selection import (
    ChannelScores,
    KeptChannels,
    PruningRule,
    relative_weight_magnitudes,
    relu_layers_by_channel_set,
    select_channels,
    select_in_one_shot,
)
from fieldray_adapt.recipes.tables import key, parse_table, recipe_table
from fieldray_adapt.training.loop import Effort
from tiny_recipe import Killed


class FormulaTask:
    """A fake task. Later channels have more zeros, quality falls with size, and `retrain` adds the seed to a bias.

    dies_at    (method, call number) at which the process is killed
    """

    def __init__(self, dies_at: tuple[str, int] | None = None) -> None:
        self.efforts: list[Effort] = []
        self._dies_at = dies_at
        self._calls: dict[str, int] = {}

    def _called(self, name: str) -> None:
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._dies_at == (name, self._calls[name]):
            raise Killed

    def measure_zero_shares(self, specification: Specification, weights: Weights) -> ChannelScores:
        self._called("zero_shares")
        return {
            name: np.linspace(0, 1, specification.channels[name]) for name in relu_layers_by_channel_set(specification)
        }

    def cut_channels(
        self, specification: Specification, weights: Weights, *, keep: KeptChannels
    ) -> tuple[Specification, Weights]:
        return keep_channels(specification, weights, keep=keep)

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        self._called("retrain")
        self.efforts.append(effort)
        return {**weights, "logits/bias": weights["logits/bias"] + np.float32(seed)}

    def measure_quality_and_loss(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        self._called("quality")
        quality = 1 - 1 / specification.channels["fc1"]
        return quality, 1 - quality

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        self._called("seconds_per_image")
        return parameter_count(specification) * 1e-6

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        return 64


def original() -> tuple[Specification, Weights]:
    network = vgg16_dense(dense_units=64).with_scaled_channels(0.125)
    return network, initial_weights(network, seed=0)


def plan(stop: StopRules, **changes: AnyPruningLaw) -> PruneRecipe:
    given: dict[str, AnyPruningLaw] = {
        "batch_size": ConstantLaw(start=32),
        "epochs": ConstantLaw(start=0.5),
        "learning_rate": ConstantLaw(start=1e-3),
        "cut_off": ConstantLaw(start=0.5),
        "minimum_channels": ConstantLaw(start=2),
    }
    return PruneRecipe(**{**given, **changes}, stop=stop, cut_kind="level")


def run(folder: Path, wanted: PruneRecipe, task: FormulaTask | None = None) -> tuple[str, tuple[Iteration, ...]]:
    kept = PruningRunFolder(folder, fingerprint="a")
    return prune(task or FormulaTask(), wanted, folder=kept, original=original), kept.iterations()


def test_each_iteration_halves_and_is_recorded(tmp_path: Path) -> None:
    why, rows = run(tmp_path, plan(StopRules(iterations=3)))
    assert why == "iterations"
    assert [row.number for row in rows] == [0, 1, 2, 3]
    sizes = [
        PruningRunFolder(tmp_path, fingerprint="a").network_after_iteration(number)[0].channels["fc1"]
        for number in range(4)
    ]
    # fc1 has 8 channels at an eighth of 64; the half with zeros at or below 0.5 stays, down to the minimum of 2
    assert sizes == [8, 4, 2, 2]
    assert rows[1].settings is not None and rows[0].settings is None
    # retraining adds the seed, which is the iteration's number, to the bias: 1 + 2 + 3
    assert PruningRunFolder(tmp_path, fingerprint="a").network_after_iteration(3)[1]["logits/bias"][0] == 6


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        (StopRules(iterations=9, lowest_quality=0.7), "lowest_quality"),
        (StopRules(iterations=9, target_parameters=3000), "target_parameters"),
        (StopRules(iterations=9), "nothing_left"),
    ],
)
def test_the_rule_that_stops_it_is_named(tmp_path: Path, stop: StopRules, why: str) -> None:
    found, rows = run(tmp_path, plan(stop))
    assert found == why
    if why == "lowest_quality":
        assert rows[-1].quality < 0.7 <= smallest_adequate_iteration(rows, stop=stop).quality


def test_settings_follow_their_laws(tmp_path: Path) -> None:
    task = FormulaTask()
    wanted = plan(
        StopRules(iterations=2),
        epochs=LinearLaw(start=0.5, step=0.25),
        batch_size=ContextDependentLaw(start=16, batch=1.0),
    )
    run(tmp_path, wanted, task)
    # the profile proposes 64, and a strength of 1 adopts it completely
    assert task.efforts == [
        Effort(batch_size=16, epochs=0.5, learning_rate=1e-3),
        Effort(batch_size=64, epochs=0.75, learning_rate=1e-3),
    ]


@pytest.mark.parametrize("method", ["zero_shares", "retrain", "quality", "seconds_per_image"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_run_killed_anywhere_ends_as_if_it_had_not_been(tmp_path: Path, method: str, call: int) -> None:
    wanted = plan(StopRules(iterations=2), epochs=ContextDependentLaw(start=0.5, time=-0.5))
    _, straight = run(tmp_path / "straight", wanted)
    with pytest.raises(Killed):
        run(tmp_path / "killed", wanted, FormulaTask(dies_at=(method, call)))
    _, resumed = run(tmp_path / "killed", wanted)
    assert [_without_clock(row) for row in resumed] == [_without_clock(row) for row in straight]
    assert _bias(tmp_path / "killed") == _bias(tmp_path / "straight")


def _without_clock(row: Iteration) -> tuple[object, ...]:
    return row.number, row.parameters, row.quality, row.loss, row.settings


def _bias(folder: Path) -> float:
    return float(PruningRunFolder(folder, fingerprint="a").network_after_iteration(2)[1]["logits/bias"][0])


def test_a_finished_pruning_run_is_not_repeated(tmp_path: Path) -> None:
    run(tmp_path, plan(StopRules(iterations=1)))
    task = FormulaTask()
    why, _ = run(tmp_path, plan(StopRules(iterations=1)), task)
    assert why == "iterations" and not task.efforts


@pytest.mark.parametrize("spoil", [lambda text: text[:-20], lambda text: text.replace("parameters", "sizes")])
def test_a_damaged_pruning_record_is_an_error(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    run(tmp_path, plan(StopRules(iterations=1)))
    path = tmp_path / "iterations.jsonl"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(StorageProblem, match="damaged"):
        run(tmp_path, plan(StopRules(iterations=1)))


def test_reading_a_pruning_run_does_not_claim_its_folder(tmp_path: Path) -> None:
    assert PruningRunFolder(tmp_path / "run", fingerprint="a").iterations() == ()
    assert PruningRunFolder(tmp_path / "run", fingerprint="b").iterations() == ()
    run(tmp_path / "run", plan(StopRules(iterations=1)))
    with pytest.raises(UsageProblem, match="other settings"):
        PruningRunFolder(tmp_path / "run", fingerprint="b")


HALVED = ChangeRatios(parameter_ratio=0.5, loss_ratio=2.0, time_ratio=0.25, batch_size_ratio=4.0)


def test_constant_linear_and_multiplicative_do_not_look_at_the_context() -> None:
    assert ConstantLaw(start=3.0).next_value(9.0, HALVED) == 3.0
    assert LinearLaw(start=1.0, step=0.5).next_value(2.0, HALVED) == 2.5
    assert MultiplicativeLaw(start=1.0, factor=1.5).next_value(2.0, HALVED) == 3.0


def test_a_product_answers_by_powers_of_the_ratios() -> None:
    # time fell to a quarter: 10 * 0.25 ** -1 = 40; size 0.5 ** 1 = 0.5; loss 2 ** 1 = 2; batch 4 ** 0.5 = 2
    assert ContextDependentLaw(start=10, time=-1).next_value(10, HALVED) == pytest.approx(40)
    assert ContextDependentLaw(start=10, size=1, loss=1, batch=0.5).next_value(10, HALVED) == pytest.approx(20)


def test_a_sum_moves_by_doublings_and_may_cross_zero() -> None:
    # log2(0.5) = -1 and log2(2) = 1: -0.1 + 0.3 * -1 + 0.5 * 1 = 0.1
    law = ContextDependentLaw(start=-0.1, size=0.3, loss=0.5, form="sum")
    assert law.next_value(-0.1, HALVED) == pytest.approx(0.1)


def test_values_stay_within_their_bounds() -> None:
    assert LinearLaw(start=16, step=-6, bounds=Bounds(lowest=8)).next_value(10, ChangeRatios()) == 8
    assert MultiplicativeLaw(start=1, factor=3, bounds=Bounds(highest=2)).next_value(1, ChangeRatios()) == 2
    assert ContextDependentLaw(start=1, time=-1, bounds=Bounds(highest=3)).next_value(1, HALVED) == 3


def test_invalid_bounds_and_factors_are_refused() -> None:
    with pytest.raises(ValueError, match="lowest"):
        Bounds(lowest=2, highest=1)
    with pytest.raises(ValueError, match="factor"):
        MultiplicativeLaw(start=1, factor=0)


@pytest.mark.parametrize(
    ("written", "law"),
    [
        ({"start": 3.0}, ConstantLaw(start=3.0)),
        ({"start": 1.0, "step": 0.5}, LinearLaw(start=1.0, step=0.5)),
        (
            {"start": 1.0, "factor": 2.0, "bounds": {"highest": 4.0}},
            MultiplicativeLaw(start=1.0, factor=2.0, bounds=Bounds(highest=4.0)),
        ),
        ({"start": 1.0, "form": "sum"}, ContextDependentLaw(start=1.0, form="sum")),
    ],
)
def test_a_law_is_named_by_the_key_that_it_has_for_itself(written: dict[str, object], law: AnyPruningLaw) -> None:
    assert parse_table(_Moving, {"rate": written}) == _Moving(rate=law)


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ({"start": 1.0, "step": 0.5, "factor": 2.0}, "has keys of several laws: step, factor"),
        ({"start": 1.0, "bounds": {}}, "is not known; known keys: start"),
        (3.0, "must be a table of keys, not 3.0"),
    ],
)
def test_an_invalid_law_is_named(written: object, wrong: str) -> None:
    found = parse_table(_Moving, {"rate": written})
    assert isinstance(found, list) and [problem.detail for problem in found] == [wrong]


@recipe_table
class _Moving:
    """A setting that changes during pruning."""

    rate: AnyPruningLaw = key("Its law.")


ZEROS = {"a": np.array([0.9, 0.1, 0.5, 0.1, 0.4])}


def kept(rule: PruningRule) -> list[int]:
    return [int(index) for index in select_channels(ZEROS, rule=rule)["a"]]


def test_by_level_channels_with_more_zeros_are_removed() -> None:
    assert kept(PruningRule(cut_off_unit="level", cut_off=0.45)) == [1, 3, 4]


def test_by_deviation_the_limit_follows_the_layer() -> None:
    # mean 0.4, standard deviation sqrt((0.25 + 0.09 + 0.01 + 0.09 + 0) / 5) = 0.297: limits 0.4 and 0.697
    assert kept(PruningRule(cut_off_unit="deviation", cut_off=0.0)) == [1, 3, 4]
    assert kept(PruningRule(cut_off_unit="deviation", cut_off=1.0)) == [1, 2, 3, 4]


def test_minimum_share_and_multiple_keep_channels() -> None:
    assert kept(PruningRule(cut_off_unit="level", cut_off=0.0, minimum_channels=2)) == [1, 3]
    assert kept(PruningRule(cut_off_unit="level", cut_off=0.0, max_removed_share=0.2)) == [1, 2, 3, 4]
    assert kept(PruningRule(cut_off_unit="level", cut_off=0.3, channel_count_multiple=4)) == [1, 2, 3, 4]


def test_a_channel_set_below_the_minimum_is_not_cut() -> None:
    assert kept(PruningRule(cut_off_unit="level", cut_off=0.0, minimum_channels=50)) == [0, 1, 2, 3, 4]


def test_equal_channels_are_all_kept() -> None:
    assert (
        len(select_channels({"a": np.full(7, 0.1 + 0.2)}, rule=PruningRule(cut_off_unit="deviation", cut_off=0.0))["a"])
        == 7
    )


def test_a_residual_stage_is_judged_by_its_sums_and_labels_never() -> None:
    layers = relu_layers_by_channel_set(resnet50(height=32, width=32, labels=1))
    assert layers["conv2"] == ("conv2_block1_out", "conv2_block2_out", "conv2_block3_out")
    assert layers["conv1"] == ("conv1",)
    assert "labels" not in layers
    assert len(layers) == 1 + 4 + 2 * 16


def test_magnitude_keeps_the_largest_kernels_and_random_follows_the_seed() -> None:
    network = vgg16_dense(dense_units=32).with_scaled_channels(0.125)
    weights = initial_weights(network, seed=1)
    weights["fc1/kernel"][:, 5] *= 100
    keep = select_in_one_shot(network, weights, kind="magnitude", share=0.1)
    assert [int(index) for index in select_in_one_shot(network, weights, kind="magnitude", share=1e-9)["fc1"]] == [5]
    assert 5 in keep["fc1"]
    assert relative_weight_magnitudes(network, weights)["fc1"].argmax() == 5
    first, again = (select_in_one_shot(network, weights, kind="random", share=0.5, seed=3) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    smaller, _ = keep_channels(network, weights, keep=first)
    assert smaller.channels["block5_conv3"] == 32 and smaller.channels["labels"] == 10
