"""The U-Net as published: valid convolutions, 23 of them, from 572 x 572 pixels to a mask of 388 x 388.

Ronneberger O., Fischer P., Brox T., U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015,
arXiv:1505.04597. Each step down is two 3x3 convolutions without padding and a 2x2 pool; each step up enlarges, halves
the channels by a 2x2 convolution (which keeps its size), and joins what the step down had, cropped. A 1x1 convolution
maps the last 64 channels to the logit of the foreground. The image is mirrored beyond its border, so that the mask
covers all of it: the overlap-tile strategy with one tile.
"""

from __future__ import annotations

from typing import Any, Final

LEVELS: Final = 4
CONVOLUTIONS: Final = 23
MARGIN: Final = 92
"""Pixels that the valid convolutions take from each side."""
_LEAST_BOTTOM: Final = 8


def mask_side(side: int) -> int:
    """The mask's side for an input of `side` pixels, for example 388 for 572.

    Raises ValueError where a pool would halve an odd side, naming the nearest sides that are possible.
    """
    size = side
    for _ in range(LEVELS):
        size -= 4
        if size % 2 or size < _LEAST_BOTTOM:
            near = [fit for fit in range(188, side + 17, 16) if abs(fit - side) < 16]
            raise ValueError(f"an input of {side} pixels does not halve evenly; {near or [188]} would")
        size //= 2
    return side - 2 * MARGIN


def published_unet(*, side: int, root_channels: int = 64) -> Any:
    """A keras.Model from (n, side, side, 1) in 0..1 to the logits (n, mask_side(side), mask_side(side), 1).

    `root_channels` other than 64 make a narrower network of the same kind, for quick trials.
    """
    import keras
    from keras import layers

    wanted = mask_side(side)
    image = keras.Input((side, side, 1), name="image")
    value, steps = image, list[Any]()
    for level in range(LEVELS):
        value = _twice(value, root_channels * 2**level, f"down{level + 1}")
        steps.append(value)
        value = layers.MaxPooling2D(2, name=f"pool{level + 1}")(value)
    value = _twice(value, root_channels * 2**LEVELS, "bottom")
    for level in reversed(range(LEVELS)):
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


_START: Final = {"kernel_initializer": "he_normal"}  # section 3: a standard deviation of sqrt(2 / N)


def _twice(value: Any, channels: int, name: str) -> Any:
    from keras import layers

    for number in (1, 2):
        value = layers.Conv2D(channels, 3, activation="relu", name=f"{name}_conv{number}", **_START)(value)
    return value
