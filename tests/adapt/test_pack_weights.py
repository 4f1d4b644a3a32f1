"""Starting from the pack that ships: the recovered network answers as the pack does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray_adapt.dataset import targets_of
from fieldray_adapt.keras_engine import build_network, set_weights
from fieldray_adapt.layouts import Row
from fieldray_adapt.networks import convolutions, mobilenet, pack_channels, pack_weights, resnet50, squeezenet
from fieldray_adapt.recipe_data import LabelRule
from fieldray_adapt.specification import initial_weights
from fieldray_adapt.steps import specification_of
from shipped_packs import CHILDREN, MODELS
from tiny_recipe import read_recipe

WHOLE = resnet50(height=256, width=256, labels=1, last_stride=1)


@pytest.mark.adapt
def test_the_network_of_a_pack_goes_on_as_it_was() -> None:
    network = WHOLE.with_channels(pack_channels(CHILDREN, WHOLE))
    weights = {**initial_weights(network, seed=0), **pack_weights(CHILDREN, network)}
    model = read_files(CHILDREN, read_verified_manifest(CHILDREN)).model("signed")
    images = model.golden.inputs.astype(np.float32) / 255
    _, weights["class_maps/kernel"], weights["class_maps/bias"] = list(convolutions(model.files["litert"]))[-1]
    scores = build_network(network, outputs=["scores"])
    set_weights(scores, weights)
    # What is left is the rounding of the values between the layers, which the pack's own network carries.
    differences = np.abs(np.asarray(scores.predict_on_batch(images)) - model.golden.scores)
    assert differences.mean() < 0.03 and differences.max() < 0.1
    assert not any(key.startswith("class_maps/") for key in pack_weights(CHILDREN, network))


@pytest.mark.adapt
@pytest.mark.parametrize(
    "network",
    [
        mobilenet(height=160, width=160, labels=1),
        WHOLE,
        squeezenet(height=160, width=160, labels=1),  # no layer is normalised: a pack has nothing for it
    ],
)
def test_a_pack_of_another_network_is_refused(network) -> None:
    with pytest.raises(UsageProblem, match="No layer of the weights in"):
        pack_weights(CHILDREN, network)


@pytest.mark.parametrize(
    ("channels", "words"),
    [
        ({"conv9": 8}, "names no hidden channel set: conv9"),
        ({"labels": 2}, "labels"),
        ({"conv1": 0}, "1 or more"),
    ],
)
def test_a_recipe_may_name_counts_of_its_own(channels: dict[str, int], words: str) -> None:
    recipe = read_recipe(MODELS / "recipes" / "pneumonia-paediatric-quick.toml")
    own = replace(recipe, network=replace(recipe.network, channels={"conv1": 64}))
    assert specification_of(own).channels["conv1"] == 64
    with pytest.raises(UsageProblem, match=words):
        specification_of(replace(recipe, network=replace(recipe.network, channels=channels)))


def _rule(**changes: object) -> LabelRule:
    meaning = {"en": "-", "uk": "-"}
    return LabelRule(**{"code": "label", "meaning": meaning, "auxiliary": True, **changes})  # type: ignore[arg-type]


def test_auxiliary_labels_may_ask_who_the_image_is_of() -> None:
    row = Row(
        path=Path("a.png"),
        source="a",
        classes=frozenset({"x"}),
        patient="1",
        origin="a",
        view="AP",
        sex="",
        age_years=50.0,
    )
    older = replace(row, age_years=50.5, view="PA", sex="M")
    unknown = replace(row, age_years=None)
    labels = [
        _rule(column="view", positive=("AP",), negative=("PA",)),
        _rule(column="sex", positive=("F",), negative=("M",)),
        _rule(column="age", above_years=50.0),
        _rule(positive=("x",)),
    ]
    found = targets_of([row, older, unknown], labels)
    expected = [[1, np.nan, 0, 1], [0, 0, 1, 1], [1, np.nan, np.nan, 1]]
    assert np.array_equal(found, np.array(expected, np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"column": "sex"}, "positive is needed"),
        ({"column": "age"}, "above_years"),
        ({"positive": ("x",), "above_years": 50.0}, "above_years"),
        ({"positive": ("x",), "weight": 0.0}, "weight must be above 0"),
        ({"column": "sex", "positive": ("F",), "auxiliary": False}, "auxiliary labels only"),
    ],
)
def test_a_label_that_makes_no_sense_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _rule(**changes)
