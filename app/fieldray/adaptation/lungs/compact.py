"""The U-Net that ships: small enough to run before every classifier.

After Ronneberger 2015 (arXiv:1505.04597), with three changes that make it small and easy on integers: separable
convolutions (Howard 2017, arXiv:1704.04861), steps down by stride, and joins that add where the original concatenates.
The mask has half the side of the input. A second head reads the deepest step: one score for each check of the image as
a whole.
"""

from __future__ import annotations

from typing import Final

from fieldray.adaptation.networks import LABELS
from fieldray.adaptation.specification import INPUT, Activation, Layer, Specification
from fieldray.domain.model import LUNG_CHECKS

CHANNELS: Final = (8, 32, 64, 96, 128)
_CHECK_CHANNELS: Final = (64, 96)
_BLOCKS: Final = (2, 2, 3, 3)
MULTIPLE: Final = 32
"""The input halves five times, so its sides are multiples of this."""


def compact_unet(*, height: int, width: int, channels: tuple[int, ...] = CHANNELS) -> Specification:
    """The network as a specification; `channels` of its five steps, each half the side of the one before."""
    if height % MULTIPLE or width % MULTIPLE or len(channels) != len(CHANNELS):
        raise ValueError(f"the input's sides must be multiples of {MULTIPLE}, and its channels {len(CHANNELS)} numbers")
    layers = [_conv("step0", INPUT, "step0", kernel=3, stride=2)]
    counts, last = {"step0": channels[0]}, "step0"
    for step, blocks in enumerate(_BLOCKS, start=1):
        for block in range(1, blocks + 1):
            name = f"step{step}_{block}" if block < blocks else f"step{step}"
            # What goes up again is added to a step, so that the last block of a step has the step's own channels.
            own = f"step{step}"
            layers += _separable(name, last, own, stride=2 if block == 1 else 1)
            last = name
        counts[own] = channels[step]
    deepest = last
    for step in reversed(range(len(_BLOCKS))):
        layers += _join(step, last)
        last = f"join{step}"
        if step:
            layers += _separable(f"up{step}", last, f"step{step}")
            last = f"up{step}"
    mask = [
        Layer(name="mask_logits", kind="conv", inputs=(last,), channels="mask", kernel=3),
        Layer(name="mask", kind="activation", inputs=("mask_logits",), activation="sigmoid"),
    ]
    checks, check_counts = _check_head(deepest)
    return Specification(
        name="compact_unet",
        height=height,
        width=width,
        input_channels=1,
        layers=(*layers, *mask, *checks),
        channels={**counts, "mask": 1, **check_counts},
        outputs={name: name for name in ("logits", "scores", "mask_logits", "mask")},
    )


def _join(step: int, source: str) -> list[Layer]:
    """Up to a step: its channels, twice the side, and what the way down had there."""
    return [
        _conv(f"narrow{step}", source, f"step{step}", activation="none"),
        Layer(name=f"enlarge{step}", kind="upsample", inputs=(f"narrow{step}",), stride=2),
        Layer(name=f"join{step}", kind="add", inputs=(f"enlarge{step}", f"step{step}"), activation="relu"),
    ]


def _check_head(source: str) -> tuple[list[Layer], dict[str, int]]:
    first, second = _CHECK_CHANNELS
    layers = [
        _conv("check_narrow", source, "check_narrow"),
        *_separable("check_step1", "check_narrow", "check_step1", stride=2),
        *_separable("check_step2", "check_step1", "check_step2"),
        Layer(name="check_maps", kind="conv", inputs=("check_step2",), channels=LABELS),
        Layer(name="logits", kind="average_all", inputs=("check_maps",)),
        Layer(name="scores", kind="activation", inputs=("logits",), activation="sigmoid"),
    ]
    counts = {"check_narrow": first, "check_step1": first, "check_step2": second, LABELS: len(LUNG_CHECKS)}
    return layers, counts


def _conv(
    name: str, source: str, channels: str, *, kernel: int = 1, stride: int = 1, activation: Activation = "relu"
) -> Layer:
    return Layer(
        name=name,
        kind="conv",
        inputs=(source,),
        channels=channels,
        kernel=kernel,
        stride=stride,
        batch_norm=True,
        activation=activation,
    )


def _separable(name: str, source: str, channels: str, *, stride: int = 1) -> list[Layer]:
    """A 3x3 convolution of each channel by itself, then a 1x1 across them."""
    depthwise = Layer(
        name=f"{name}_dw",
        kind="depthwise",
        inputs=(source,),
        kernel=3,
        stride=stride,
        batch_norm=True,
        activation="relu",
    )
    return [depthwise, _conv(name, f"{name}_dw", channels)]
