"""The networks that find lung fields: the compact U-Net of the packs, and the published U-Net.

The compact network is small enough to run before every classifier. It follows Ronneberger O., Fischer P., Brox T.,
U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015, arXiv:1505.04597. Three changes make it
small and suited to int8: separable convolutions (Howard 2017, arXiv:1704.04861), downsampling by stride, and skip
connections that are added instead of concatenated. The mask has half the side of the input. A second mask may show the
lung region, which includes lung behind the heart and behind opacities. A second head on the deepest step gives a score
for each image check, such as "is the image inverted?".

The published network has 23 valid (unpadded) convolutions, and maps 572 x 572 pixels to a mask of 388 x 388. Each step
down is two 3x3 convolutions and a 2x2 pool. Each step up doubles rows and columns, and halves the number of channels by
a 2x2 convolution. Then the cropped features of the step down are concatenated. A 1x1 convolution gives the logit of the
lung. The image is mirrored beyond its border, so that the mask covers the whole image (overlap-tile strategy with one
tile).
"""

from __future__ import annotations

from typing import Any, Final

from fieldray.domain.model import LUNG_NETWORK_CHECKS
from fieldray_adapt.networks.architectures import LABELS_CHANNEL_SET, convolution, depthwise_convolution
from fieldray_adapt.networks.specification import INPUT_NAME, Layer, Specification

COMPACT_CHANNELS: Final = (8, 32, 64, 96, 128)
_CHECK_CHANNELS: Final = (64, 96)
_BLOCKS: Final = (2, 2, 3, 3)
INPUT_SIDE_MULTIPLE: Final = 32
"""The sides of the compact network's input, in pixels, are multiples of this number: each side is halved five times."""


def compact_unet(
    *, height: int, width: int, channels: tuple[int, ...] = COMPACT_CHANNELS, mask_count: int = 1
) -> Specification:
    """Return the specification of the compact U-Net.

    Parameters
    ----------
    height, width
        Sides of the input in pixels, multiples of `INPUT_SIDE_MULTIPLE`.
    channels
        Number of channels of each of the five steps. A step has half the side of the step before.
    mask_count
        Number of masks: 1 for the visible lung, 2 for the visible lung and the lung region.
    """
    if height % INPUT_SIDE_MULTIPLE or width % INPUT_SIDE_MULTIPLE or len(channels) != len(COMPACT_CHANNELS):
        raise ValueError(
            f"the input's sides must be multiples of {INPUT_SIDE_MULTIPLE}, "
            f"and its channels {len(COMPACT_CHANNELS)} numbers"
        )
    layers = [convolution("step0", INPUT_NAME, "step0", kernel=3, stride=2)]
    counts, last = {"step0": channels[0]}, "step0"
    for step, blocks in enumerate(_BLOCKS, start=1):
        for block in range(1, blocks + 1):
            name = f"step{step}_{block}" if block < blocks else f"step{step}"
            # The decoder adds its features to those of the step, so all blocks of a step have equal channels.
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
        channels={**counts, "mask": mask_count, **check_counts},
        outputs={name: name for name in ("logits", "scores", "mask_logits", "mask")},
    )


def _join(step: int, source: str) -> list[Layer]:
    """Return the decoder layers of a step, which double rows and columns and add the encoder's features.

    `source` is the name of the layer before the step.
    """
    return [
        convolution(f"narrow{step}", source, f"step{step}", activation="none"),
        Layer(name=f"enlarge{step}", kind="upsample", inputs=(f"narrow{step}",), stride=2),
        Layer(name=f"join{step}", kind="add", inputs=(f"enlarge{step}", f"step{step}"), activation="relu"),
    ]


def _check_head(source: str) -> tuple[list[Layer], dict[str, int]]:
    """Return the layers of the head that scores the image checks, and the number of channels by channel set.

    `source` is the name of the layer whose output is the input of the head.
    """
    first, second = _CHECK_CHANNELS
    layers = [
        convolution("check_narrow", source, "check_narrow"),
        *_separable("check_step1", "check_narrow", "check_step1", stride=2),
        *_separable("check_step2", "check_step1", "check_step2"),
        Layer(name="check_maps", kind="conv", inputs=("check_step2",), channels=LABELS_CHANNEL_SET),
        Layer(name="logits", kind="average_all", inputs=("check_maps",)),
        Layer(name="scores", kind="activation", inputs=("logits",), activation="sigmoid"),
    ]
    counts = {
        "check_narrow": first,
        "check_step1": first,
        "check_step2": second,
        LABELS_CHANNEL_SET: len(LUNG_NETWORK_CHECKS),
    }
    return layers, counts


def _separable(name: str, source: str, channels: str, *, stride: int = 1) -> list[Layer]:
    """Return the two layers of a separable convolution: a 3x3 depthwise convolution and a 1x1 convolution."""
    return [depthwise_convolution(f"{name}_dw", source, stride=stride), convolution(name, f"{name}_dw", channels)]


PUBLISHED_UNET_LEVELS: Final = 4
"""Number of steps down in the published U-Net."""
PUBLISHED_UNET_MARGIN: Final = 92
"""Number of pixels by which the published U-Net's mask is smaller than the input at each of the four borders."""
_MIN_BOTTOM_SIDE: Final = 8


def published_mask_side(side: int) -> int:
    """Return the side of the published U-Net's mask for an input of `side` pixels, in pixels: 388 for 572.

    Raises ValueError if a pool would halve an odd side, or if the side is too small. The message names possible sides.
    """
    size = side
    for _ in range(PUBLISHED_UNET_LEVELS):
        size -= 4
        if size % 2 or size < _MIN_BOTTOM_SIDE:
            near = [fit for fit in range(188, side + 17, 16) if abs(fit - side) < 16]
            raise ValueError(f"a side of {side} pixels cannot be halved in each step; possible: {near or [188]}")
        size //= 2
    return side - 2 * PUBLISHED_UNET_MARGIN


def published_unet(*, side: int, root_channels: int = 64) -> Any:
    """Return the published U-Net as a keras.Model.

    The model maps images (n, side, side, 1) in 0..1 to logits (n, m, m, 1) with m = `published_mask_side(side)`. Fewer
    than 64 `root_channels` give a narrower network for quick experiments. Raises ValueError as `published_mask_side`.
    """
    import keras
    from keras import layers

    wanted = published_mask_side(side)
    image = keras.Input((side, side, 1), name="image")
    value, steps = image, list[Any]()
    for level in range(PUBLISHED_UNET_LEVELS):
        value = _twice(value, root_channels * 2**level, f"down{level + 1}")
        steps.append(value)
        value = layers.MaxPooling2D(2, name=f"pool{level + 1}")(value)
    value = _twice(value, root_channels * 2**PUBLISHED_UNET_LEVELS, "bottom")
    for level in reversed(range(PUBLISHED_UNET_LEVELS)):
        channels, name = root_channels * 2**level, f"up{level + 1}"
        value = layers.UpSampling2D(2, name=f"{name}_enlarge")(value)
        value = layers.Conv2D(channels, 2, padding="same", activation="relu", name=f"{name}_conv0", **_START)(value)
        crop = (steps[level].shape[1] - value.shape[1]) // 2
        kept = layers.Cropping2D(crop, name=f"{name}_crop")(steps[level])
        value = _twice(layers.Concatenate(name=f"{name}_join")([kept, value]), channels, name)
    logits = layers.Conv2D(1, 1, name="mask_logits")(value)
    if logits.shape[1] != wanted:
        raise ValueError(f"the mask has {logits.shape[1]} pixels, not {wanted}")
    return keras.Model(image, logits, name="published_unet")


_START: Final = {"kernel_initializer": "he_normal"}  # section 3 of the paper: a standard deviation of sqrt(2 / N)


def _twice(value: Any, channels: int, name: str) -> Any:
    """Apply two valid 3x3 convolutions with ReLU to a Keras tensor. Returns the resulting tensor."""
    from keras import layers

    for number in (1, 2):
        value = layers.Conv2D(channels, 3, activation="relu", name=f"{name}_conv{number}", **_START)(value)
    return value
