"""Time by layer: what is measured, what a channel is said to cost, and that pruning by time goes where the time is."""

from __future__ import annotations

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from fieldray_adapt.networks import mobilenet
from fieldray_adapt.prune.loop import PruneRecipe
from fieldray_adapt.prune.selection import Cut, select
from fieldray_adapt.prune.timing import LayerShape, channel_costs, layer_file, layer_milliseconds
from fieldray_adapt.specification import Layer, Specification, parameters
from fieldray_adapt.tables import parse

WIDE = LayerShape(kind="conv", height=9, width=7, kernel=3, stride=2, incoming=4, outgoing=6)


def _network() -> Specification:
    """`early` works on 32 x 32 positions and has few weights; `late` on one and has most of them."""
    return Specification(
        name="lopsided",
        height=32,
        width=32,
        input_channels=1,
        layers=(
            Layer(name="early", kind="conv", inputs=("image",), channels="early", kernel=3, activation="relu"),
            Layer(name="pool", kind="max_pool", inputs=("early",), kernel=32, stride=32),
            Layer(name="flat", kind="flatten", inputs=("pool",)),
            Layer(name="late", kind="dense", inputs=("flat",), channels="late", activation="relu"),
            Layer(name="logits", kind="dense", inputs=("late",), channels="labels"),
            Layer(name="scores", kind="activation", inputs=("logits",), activation="softmax"),
        ),
        channels={"early": 16, "late": 64, "labels": 2},
        outputs={"logits": "logits", "scores": "scores"},
    )


def _by_work(shape: LayerShape) -> float:
    """A millisecond for each multiply-add."""
    positions = -(-shape.height // shape.stride) * -(-shape.width // shape.stride)
    return float(positions * shape.kernel**2 * shape.incoming * shape.outgoing)


@pytest.mark.parametrize(
    ("shape", "entrance", "exit_"),
    [
        (WIDE, [1, 9, 7, 4], [1, 5, 4, 6]),
        (
            LayerShape(kind="depthwise", height=8, width=8, kernel=3, stride=1, incoming=5, outgoing=5),
            [1, 8, 8, 5],
            [1, 8, 8, 5],
        ),
        (
            LayerShape(kind="dense", height=1, width=1, kernel=1, stride=1, incoming=12, outgoing=3),
            [1, 12],
            [1, 3],
        ),
    ],
)
def test_a_layer_alone_runs_in_integers(shape: LayerShape, entrance: list[int], exit_: list[int]) -> None:
    interpreter = Interpreter(model_content=layer_file(shape), num_threads=1)
    interpreter.allocate_tensors()
    (first,), (last,) = interpreter.get_input_details(), interpreter.get_output_details()
    assert (list(first["shape"]), first["dtype"]) == (entrance, np.int8)
    assert (list(last["shape"]), last["dtype"]) == (exit_, np.int8)
    interpreter.set_tensor(first["index"], np.ones(entrance, np.int8))
    interpreter.invoke()
    assert interpreter.get_tensor(last["index"]).any()
    assert layer_milliseconds(shape) > 0


def test_a_channel_costs_what_all_its_layers_lose_without_it() -> None:
    costs = channel_costs(_network(), milliseconds=_by_work)
    # early is made by 32 * 32 * 9 multiply-adds a channel and read by 64 of `late`
    assert costs["early"] == pytest.approx(32 * 32 * 9 + 64)
    # late: 16 incoming and 2 outgoing
    assert costs["late"] == pytest.approx(16 + 2)
    assert costs["labels"] == pytest.approx(64)


def test_a_depthwise_layer_counts_for_the_set_that_it_keeps() -> None:
    network = mobilenet(height=32, width=32, labels=1).scaled(0.25)
    costs = channel_costs(network, milliseconds=_by_work)
    # conv1 gives 16 x 16 maps of 8: 9 taps each to make; the depthwise layer behind it, whose work by this formula is
    # 16 * 16 * 9 * n * n and loses (64 - 36) / 2 = 14 of n * n a channel; and 16 channels of 1 x 1 read it
    assert costs["conv1"] == pytest.approx(256 * 9 + 256 * 9 * 14 + 256 * 16)


def test_a_runtime_that_gets_no_faster_makes_a_channel_free() -> None:
    assert set(channel_costs(_network(), milliseconds=lambda _: 1.0).values()) == {0.0}


def test_pruning_by_time_takes_channels_where_the_time_is() -> None:
    network = _network()
    zeros = {"early": np.linspace(0.2, 0.8, 16), "late": np.linspace(0.2, 0.8, 64)}
    keep = select(
        zeros, cut=Cut(kind="time", value=0.5, minimum_channels=4), costs=channel_costs(network, milliseconds=_by_work)
    )
    # A channel of `early` costs 9,280 and one of `late` 18, so 148,480 and 1,152 in all: half of that is 74,816 or nine
    # of `early`; `late`, with most of the parameters, is let alone.
    assert len(keep["early"]) == 7 and len(keep["late"]) == 64
    assert list(keep["early"]) == list(range(7))  # those that are zero most often went
    by_zeros = select(zeros, cut=Cut(kind="deviation", value=0.0))
    assert len(by_zeros["early"]) == 8 and len(by_zeros["late"]) == 32
    smaller = network.with_channels({name: len(indices) for name, indices in by_zeros.items()})
    assert parameters(smaller) < parameters(network.with_channels({"early": 8}))


def test_pruning_by_time_keeps_the_limits() -> None:
    zeros = {"early": np.linspace(0.2, 0.8, 16), "late": np.linspace(0.2, 0.8, 64)}
    costs = {"early": 10.0, "late": 0.1}
    least = select(zeros, cut=Cut(kind="time", value=0.99, minimum_channels=5, multiple=4), costs=costs)
    # 5 at least, rounded up to 8; of late all but 5 go too, for what is left to gain
    assert (len(least["early"]), len(least["late"])) == (8, 8)
    gentle = select(zeros, cut=Cut(kind="time", value=0.9, largest_share=0.25), costs=costs)
    assert (len(gentle["early"]), len(gentle["late"])) == (12, 48)
    nothing = select(zeros, cut=Cut(kind="time", value=0.0), costs=costs)
    assert (len(nothing["early"]), len(nothing["late"])) == (16, 64)
    free = select(zeros, cut=Cut(kind="time", value=0.9), costs={"early": 0.0, "late": 1.0})
    assert len(free["early"]) == 16 and len(free["late"]) == 6  # 58 of 64 hold 0.9 of the time


def test_a_share_of_time_is_below_one() -> None:
    with pytest.raises(ValueError, match="share from 0"):
        Cut(kind="time", value=1.0)


def test_a_recipe_may_cut_by_time() -> None:
    table = {
        **{name: {"start": 1} for name in ("batch_size", "epochs", "learning_rate", "minimum_channels")},
        "cut_off": {"start": 0.3, "factor": 0.8},
        "cut_kind": "time",
        "stop": {"iterations": 2},
    }
    found = parse(PruneRecipe, table)
    assert isinstance(found, PruneRecipe) and found.cut_kind == "time"
