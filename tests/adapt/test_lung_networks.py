"""The U-Net as published, and the compact one that ships."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.domain.model import LUNG_CHECKS
from fieldray_adapt.keras_engine import build_network, get_weights, set_weights
from fieldray_adapt.lungs.recipe import (
    LungNetwork,
    LungTraining,
    Stage,
    compact_unet,
    mask_side,
    published_unet,
)
from fieldray_adapt.lungs.train import MaskEngine
from fieldray_adapt.specification import channel_sets, initial_weights, multiply_adds, shapes

pytestmark = pytest.mark.adapt


def _convolutions(model: object) -> list[object]:
    return [layer for layer in model.layers if type(layer).__name__ == "Conv2D"]  # type: ignore[attr-defined]


def test_the_published_network_takes_572_and_gives_388_by_23_convolutions() -> None:
    model = published_unet(side=572)
    assert model.input_shape == (None, 572, 572, 1) and model.output_shape == (None, 388, 388, 1)
    found = _convolutions(model)
    assert len(found) == 23
    assert [layer.filters for layer in found[:10]] == [64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024]  # type: ignore[attr-defined]
    last = found[-1]
    assert last.kernel_size == (1, 1) and last.kernel.shape == (1, 1, 64, 1)  # type: ignore[attr-defined]
    assert {layer.padding for layer in found if layer.kernel_size == (3, 3)} == {"valid"}  # type: ignore[attr-defined]


def test_only_sides_that_halve_evenly_are_taken() -> None:
    assert [mask_side(side) for side in (572, 188, 220)] == [388, 4, 36]
    with pytest.raises(ValueError, match="572"):
        mask_side(570)


def test_the_published_network_sees_the_image_mirrored_beyond_its_border() -> None:
    training = LungTraining(stages=(Stage(side=220, epochs=1),), checks_per_step=0)
    engine = MaskEngine(LungNetwork(kind="published", root_channels=2), 220, training)
    image = np.arange(36 * 36, dtype=np.int64).reshape(1, 36, 36).astype(np.uint8)
    seen = engine.prepared(image)
    assert seen.shape == (1, 220, 220, 1)
    assert np.array_equal(seen[0, 92:128, 92:128, 0], image[0].astype(np.float32) / 255)
    assert np.array_equal(seen[0, 91, 92:128, 0], image[0, 0].astype(np.float32) / 255)  # its mirror image
    masks, checks = engine.predict(image)
    assert masks.shape == (1, 36, 36, 1) and checks.shape == (1, 0)


def test_the_compact_network_is_small_and_its_mask_half_the_side() -> None:
    network = compact_unet(height=256, width=256)
    sizes = shapes(network)
    assert sizes["mask"] == (128, 128, 1) and sizes["scores"] == (len(LUNG_CHECKS),)
    assert 20e6 < multiply_adds(network) < 60e6
    with_region = compact_unet(height=256, width=256, masks=2)
    assert shapes(with_region)["mask"] == (128, 128, 2)
    assert multiply_adds(with_region) < 1.05 * multiply_adds(network)
    sets = channel_sets(network)
    assert all(sets[f"enlarge{step}"] == sets[f"step{step}"] for step in range(4))  # what is added is one set
    with pytest.raises(ValueError, match="multiples of 32"):
        compact_unet(height=250, width=256)


def test_every_size_of_the_compact_network_has_the_same_weights() -> None:
    channels = (8, 8, 8, 8, 8)
    small, large = (compact_unet(height=side, width=side, channels=channels) for side in (32, 64))
    weights = initial_weights(small, seed=1)
    model = build_network(large, outputs=["mask", "scores"])
    set_weights(model, weights)
    assert get_weights(model).keys() == weights.keys()
    mask, scores = model.predict_on_batch(np.zeros((1, 64, 64, 1), np.float32))
    assert mask.shape == (1, 32, 32, 1) and scores.shape == (1, 6)


def test_an_enlarged_layer_interpolates_between_the_middles_of_cells() -> None:
    network = compact_unet(height=32, width=32, channels=(8, 8, 8, 8, 8))
    model = build_network(network, outputs=["narrow0", "enlarge0"])
    set_weights(model, initial_weights(network, seed=2))
    small, large = model.predict_on_batch(np.random.default_rng(0).random((1, 32, 32, 1), np.float32))
    # a cell of the large one at the quarter between two middles: 3/4 of the near one and 1/4 of the far one
    across = 0.75 * small[0, :, 3] + 0.25 * small[0, :, 4]
    assert large[0, 7, 7] == pytest.approx(0.75 * across[3] + 0.25 * across[4], abs=1e-5)
