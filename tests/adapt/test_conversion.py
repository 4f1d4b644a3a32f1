"""Into TensorFlow Lite, and published weights into this toolchain's names."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.domain.model import InputSpec
from fieldray_adapt.networks import resnet50
from fieldray_adapt.quantise import answer, correct_rounding, quantise, to_float_file
from fieldray_adapt.specification import initial_weights

pytestmark = pytest.mark.adapt
SPEC = InputSpec(height=32, width=48)
NETWORK = resnet50(height=32, width=48, labels=2, blocks=(1, 1)).scaled(0.25)


def _weights() -> dict[str, np.ndarray]:
    weights = initial_weights(NETWORK, seed=2)
    weights["class_maps/kernel"] *= 30
    for key in weights:
        if key.endswith("/gamma"):
            weights[key][:] = 1
    return weights


def test_int8_and_float_files_say_the_same() -> None:
    from fieldray_adapt.keras_engine import build_network, set_weights

    weights, images = _weights(), np.random.default_rng(1).integers(0, 256, (12, 32, 48, 1), np.uint8)
    images[::2] //= 3
    model = build_network(NETWORK, outputs=["scores", "class_maps", "features"])
    set_weights(model, weights)
    scores, maps, features = (np.asarray(tensor) for tensor in model(images.astype(np.float32) / 255))
    assert np.ptp(scores) > 0.1
    files = (to_float_file(NETWORK, weights), quantise(NETWORK, weights, representative=images))
    for file, tolerance in zip(files, (1e-4, 0.03), strict=True):
        found = answer(file.data, images, spec=SPEC, outputs=file.roles(NETWORK), labels=2)
        np.testing.assert_allclose(found.scores, scores, atol=tolerance)
        np.testing.assert_allclose(found.class_maps, maps.transpose(0, 3, 1, 2), atol=tolerance * 10 * np.ptp(maps))
        np.testing.assert_allclose(found.features, features, atol=tolerance * 5 * features.max())
    assert len(files[1].data) < 0.5 * len(files[0].data)
    with pytest.raises(ValueError, match="representative"):
        quantise(NETWORK, weights, representative=images[:0])


def test_rounding_no_longer_moves_the_means() -> None:
    """The first kernel takes differences of bright values, where rounding alone moves the mean."""
    weights, images = _weights(), np.random.default_rng(5).integers(200, 256, (32, 32, 48, 1), np.uint8)
    kernel = weights["conv1/kernel"]
    kernel -= kernel.mean((0, 1, 2))
    weights["conv1/gamma"] *= 12  # as after training: differences are small, so they are magnified
    corrected = correct_rounding(NETWORK, weights, representative=images)
    rounded = ({key: _rounded(key, chosen) for key in chosen} for chosen in (weights, corrected))
    means = []
    for chosen in (weights, *rounded):
        file = to_float_file(NETWORK, chosen)
        found = answer(file.data, images, spec=SPEC, outputs=file.roles(NETWORK), labels=2)
        means.append(found.features.mean(0))
    before, after = (np.abs(own - means[0]).mean() for own in means[1:])
    assert after < 0.3 * before


def _rounded(key: str, weights: dict[str, np.ndarray]) -> np.ndarray:
    """A kernel as int8 with a scale for each output channel holds it; normalising afterwards changes nothing."""
    array = weights[key]
    if not key.endswith("/kernel"):
        return array
    scale = np.abs(array).max((0, 1, 2)) / 127
    return (np.rint(array / scale) * scale).astype(np.float32)
