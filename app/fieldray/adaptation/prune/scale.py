"""Give the layers of a freshly cut network back the strength of their signal.

A layer that lost most of its inputs sums fewer of them, and over sixteen layers the signal fades to nothing: training
would first have to find it again. Rectified layers pass a factor on, so one factor per layer corrects it. Layers with
batch normalisation need none: it measures the signal again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.keras_engine import build_network, set_weights
from fieldray.adaptation.prune.selection import Keep
from fieldray.adaptation.specification import Specification, channel_sets
from fieldray.adaptation.weights import Weights

_LARGEST_FACTOR: Final = 10.0


def restore_scale(
    before: tuple[Specification, Mapping[str, NDArray[np.float32]]],
    after: tuple[Specification, Weights],
    *,
    keep: Keep,
    images: NDArray[np.float32],
) -> Weights:
    """The cut network's weights, each kernel without batch normalisation times one factor.

    The factors make the mean value of each rectified layer's channels what it was before the cut.

    Parameters
    ----------
    before, after
        The networks before and after `weights.keep_channels` with `keep`.
    images
        Calibration images (n, height, width, channels) float32 in 0..1.
    """
    sets = channel_sets(before[0])
    layers = [
        layer.name
        for layer in before[0].layers
        if layer.has_weights and layer.activation == "relu" and not layer.batch_norm and sets[layer.name] in keep
    ]
    if not layers:
        return dict(after[1])
    wanted = _means(*before, layers=layers, images=images, keep={name: keep[sets[name]] for name in layers})
    found = _means(*after, layers=layers, images=images, keep={})
    weights, passed_on = dict(after[1]), 1.0
    for name in layers:
        # `passed_on` is what the layers before already multiply this one's input by.
        whole = float(np.clip(wanted[name] / max(found[name], 1e-9), 1 / _LARGEST_FACTOR**2, _LARGEST_FACTOR**8))
        factor = float(np.clip(whole / passed_on, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR))
        weights[f"{name}/kernel"] = weights[f"{name}/kernel"] * np.float32(factor)
        passed_on *= factor
    return weights


def _means(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    layers: list[str],
    images: NDArray[np.float32],
    keep: Mapping[str, NDArray[Any]],
) -> dict[str, float]:
    model = build_network(specification, outputs=layers)
    set_weights(model, weights)
    values = model.predict_on_batch(images)
    named = zip(layers, values if len(layers) > 1 else [values], strict=True)
    return {name: float(np.asarray(value)[..., keep.get(name, slice(None))].mean()) for name, value in named}
