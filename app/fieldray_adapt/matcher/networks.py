"""NCCNet's encoder: a residual U-Net, by which both images of a pair are described before they are correlated.

After Buniatyan 2017 (arXiv:1705.08593): four levels of 8, 16, 32 and 64 channels; residual blocks of 3x3 convolutions,
in which the last reads the sum of the first and the one before it; 2x2 max-pools; resize-convolutions up, which halve
the channels; skips that are added; a last 3x3 convolution with tanh. The image keeps its size.

Inner layers are rectified by default, where the source has tanh: a rectified channel may be scaled freely, which
`quantise.equalise` needs to keep faint channels apart in eight bits, and costs less on a CPU. The last tanh stays: its
range is known, so that a bright edge cannot take the integers from all else.

Training begins with a network that passes the image through beside random channels. From random channels alone the
peaks are so low at first that making all of them lower is the nearest way down, and minutes pass before one rises.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from fieldray_adapt.specification import INPUT, Layer, Specification, Weights, initial_weights

CHANNELS: Final = (8, 16, 32, 64)
MULTIPLE: Final = 8
"""The image halves three times."""
FEATURES: Final = "features"
InnerActivation = Literal["relu", "tanh"]


def residual_unet(
    *,
    side: int,
    channels: tuple[int, ...] = CHANNELS,
    convolutions: int = 3,
    features: int = 2,
    activation: InnerActivation = "relu",
) -> Specification:
    """The encoder as a specification, from (side, side, 1) to (side, side, features) in -1..1.

    Parameters
    ----------
    channels
        Of each level, each half the side of the one before.
    convolutions
        In a residual block, 3 or more.

    Raises
    ------
    ValueError
        For a side that does not halve evenly, or fewer convolutions.
    """
    if side % 2 ** (len(channels) - 1) or convolutions < 3:
        raise ValueError("the side must halve evenly for each level, and a block needs 3 convolutions")
    layers, last, counts = list[Layer](), INPUT, dict[str, int]()
    for level, count in enumerate(channels):
        if level:
            layers.append(Layer(name=f"pool{level}", kind="max_pool", inputs=(last,), kernel=2, stride=2))
            last = f"pool{level}"
        layers += _block(f"down{level}", last, f"level{level}", convolutions, activation)
        counts[f"level{level}"], last = count, layers[-1].name
    for level in reversed(range(len(channels) - 1)):
        own, skip = f"level{level}", f"down{level}_{convolutions}"
        layers += [
            Layer(name=f"enlarge{level}", kind="upsample", inputs=(last,), stride=2),
            _convolution(f"narrow{level}", f"enlarge{level}", own, activation),
            Layer(name=f"join{level}", kind="add", inputs=(f"narrow{level}", skip)),
            *_block(f"up{level}", f"join{level}", own, convolutions, activation),
        ]
        last = layers[-1].name
    final = Layer(name=FEATURES, kind="conv", inputs=(last,), channels=FEATURES, kernel=3, activation="tanh")
    return Specification(
        name="nccnet",
        height=side,
        width=side,
        input_channels=1,
        layers=(*layers, final),
        channels={**counts, FEATURES: features},
        outputs={FEATURES: FEATURES},
    )


def _block(name: str, source: str, channels: str, count: int, activation: InnerActivation) -> list[Layer]:
    """So many convolutions, named NAME_1 and so on; the last reads the sum of the one before it and the first."""
    layers = [_convolution(f"{name}_1", source, channels, activation)]
    for number in range(2, count):
        layers.append(_convolution(f"{name}_{number}", f"{name}_{number - 1}", channels, activation))
    layers.append(Layer(name=f"{name}_sum", kind="add", inputs=(f"{name}_{count - 1}", f"{name}_1")))
    return [*layers, _convolution(f"{name}_{count}", f"{name}_sum", channels, activation)]


def _convolution(name: str, source: str, channels: str, activation: InnerActivation) -> Layer:
    return Layer(name=name, kind="conv", inputs=(source,), channels=channels, kernel=3, activation=activation)


_GAIN: Final = 3.0
"""How steep the last tanh stands on the image that is passed through, 0..1 about a half."""


_SMALL: Final = 0.1


def passing_weights(specification: Specification, *, seed: int) -> Weights:
    """Random weights whose first channel at full size is the image, to which each feature is a tanh of it.

    The first feature sees it as it is, the others as the mean of 3 x 3 pixels. What deeper levels say of it is still
    random, and reaches the features through the other channels.
    """
    weights = initial_weights(specification, seed=seed)
    doubled = 1.0
    for layer in specification.layers:
        if layer.channels == "level0":
            kernel = weights[f"{layer.name}/kernel"]
            kernel[..., 0] = 0
            if not layer.name.startswith("narrow"):
                kernel[1, 1, 0, 0] = 1
        elif layer.name == FEATURES:
            kernel, bias = weights[f"{FEATURES}/kernel"], weights[f"{FEATURES}/bias"]
            kernel[..., 1:, :] *= np.float32(_SMALL)
            kernel[..., 0, :] = _GAIN / doubled / kernel[..., 0, 0].size
            kernel[..., 0, 0] = 0
            kernel[1, 1, 0, 0] = _GAIN / doubled
            bias[:] = -_GAIN / 2
        if layer.kind == "add" and layer.name.endswith("0_sum"):
            doubled *= 2
    return weights
