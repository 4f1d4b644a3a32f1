"""The first layers of a network that stay as they are, computed once, and the rest trained as a network of its own.

Where the first layers stay as they are, a step on an image costs mostly what they cost. A few changed copies of each
image are made instead of a new one for every draw, the frozen layers' outputs are computed once and kept
(`FrozenPart`), and the rest of the network is trained on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.augmentation import Augmentation
from fieldray_adapt.keras_engine import build_network, set_weights
from fieldray_adapt.specification import INPUT, Layer, Specification, Weights, channel_sets, shapes
from fieldray_adapt.train import Samples, changed

_LEAST_SPREAD: Final = 1e-4


def frozen_end(specification: Specification, frozen: frozenset[str]) -> int:
    """How many of the first layers can be computed once: frozen or without weights, the rest reads the last of them.

    0 where there are none, or where the first layer is trained.
    """
    layers, end = specification.layers, 0
    for count in range(1, len(layers)):
        last = layers[count - 1]
        if last.has_weights and last.name not in frozen:
            break
        before = {layer.name for layer in layers[: count - 1]} | {INPUT}
        if not any(before & set(layer.inputs) for layer in layers[count:]):
            end = count
    return end


def upper_part(specification: Specification, end: int) -> Specification:
    """The network that reads the output of the layer before `end` as its image."""
    cut, rows_columns = specification.layers[end - 1].name, shapes(specification)[specification.layers[end - 1].name]
    layers = tuple(_reading(layer, cut) for layer in specification.layers[end:])
    used = {layer.channels for layer in layers if layer.channels}
    return replace(
        specification,
        height=rows_columns[0],
        width=rows_columns[1],
        input_channels=specification.channels[channel_sets(specification)[cut]],
        layers=layers,
        channels={name: count for name, count in specification.channels.items() if name in used},
    )


def _reading(layer: Layer, cut: str) -> Layer:
    return replace(layer, inputs=tuple(INPUT if name == cut else name for name in layer.inputs))


@dataclass(frozen=True, eq=False, slots=True)
class ChannelScale:
    """What makes a head's inputs alike in size, so that all of it learns equally fast.

    Attributes
    ----------
    mean, spread
        (channels,) over the training images, of each channel averaged over an image.
    """

    mean: NDArray[np.float32]
    spread: NDArray[np.float32]

    @classmethod
    def of(cls, samples: Samples) -> ChannelScale:
        """That of what frozen layers made of some images."""
        pooled = np.stack([image.mean((0, 1), dtype=np.float32) for image in samples.images])
        return cls(pooled.mean(0), pooled.std(0) + np.float32(_LEAST_SPREAD))

    def scaled(self, samples: Samples) -> Samples:
        """The samples with each channel's mean 0 and spread 1."""
        images = np.empty_like(samples.images)
        for index, image in enumerate(samples.images):
            images[index] = (image - self.mean) / self.spread
        return replace(samples, images=images)

    def unscaled(self, weights: Mapping[str, NDArray[np.float32]], head: str) -> Weights:
        """The weights (with a `head` of 1 x 1 kernels) that give the same answers on what is not scaled."""
        kernel = weights[f"{head}/kernel"] / self.spread[:, None]
        shift = np.einsum("hwio,i->o", kernel, self.mean)
        return {**weights, f"{head}/kernel": kernel, f"{head}/bias": weights[f"{head}/bias"] - shift}


@dataclass(frozen=True, eq=False, slots=True)
class FrozenPart:
    """The first `end` layers of a network, and what they made of the images seen so far.

    Attributes
    ----------
    copies
        Changed copies of each training image; the image as it is comes besides.
    kept
        By the digest of an image: outputs float16 (copies + 1, rows, columns, channels) and shares of lung.
    """

    specification: Specification
    weights: Mapping[str, NDArray[np.float32]]
    end: int
    augmentation: Augmentation
    copies: int
    seed: int
    kept: dict[bytes, tuple[NDArray[np.float16], NDArray[np.uint8] | None]] = field(default_factory=dict)

    @property
    def upper(self) -> Specification:
        """The rest of the network."""
        return upper_part(self.specification, self.end)

    def upper_weights(self) -> Weights:
        """The weights of the rest."""
        names = {layer.name for layer in self.specification.layers[self.end :]}
        return {key: np.array(array) for key, array in self.weights.items() if key.rpartition("/")[0] in names}

    def samples(self, samples: Samples, *, copies: bool) -> Samples:
        """The samples as the rest of the network sees them: with `copies` the changed ones as well, each a sample."""
        self._compute(samples)
        count = self.copies + 1 if copies else 1
        found = [self.kept[_key(samples, index)] for index in range(len(samples))]
        nothing = np.zeros((0, *shapes(self.upper)[INPUT]), np.float16)
        return Samples(
            images=np.concatenate([nothing, *(outputs[:count] for outputs, _ in found)]),
            targets=np.repeat(samples.targets, count, axis=0),
            sources=tuple(name for name in samples.sources for _ in range(count)),
            patients=tuple(name for name in samples.patients for _ in range(count)),
            lungs=None if samples.lungs is None else _joined([lungs for _, lungs in found], count, samples.lungs),
        )

    def _compute(self, samples: Samples) -> None:
        missing = [index for index in range(len(samples)) if _key(samples, index) not in self.kept]
        if not missing:
            return
        network = self._network()
        for index in missing:
            key = _key(samples, index)
            # By the image and not by its place: it is then the same in every fold.
            generator = np.random.default_rng((self.seed, int.from_bytes(key[:8], "big")))
            settings = [Augmentation(), *[self.augmentation] * self.copies]
            images, lungs = zip(*(changed(samples, [index], own, generator) for own in settings), strict=True)
            outputs = np.asarray(network.predict_on_batch(np.concatenate(images)), np.float16)
            self.kept[key] = (
                outputs,
                None if lungs[0] is None else np.rint(255 * np.concatenate(lungs)).astype(np.uint8),
            )

    def _network(self) -> Any:
        import keras

        keras.config.set_dtype_policy("float32")
        model = build_network(self.specification, outputs=[self.specification.layers[self.end - 1].name])
        set_weights(model, self.weights)
        return model


def _key(samples: Samples, index: int) -> bytes:
    return hashlib.sha256(samples.images[index].tobytes()).digest()


def _joined(parts: list[NDArray[np.uint8] | None], count: int, like: NDArray[np.uint8]) -> NDArray[np.uint8]:
    known = [part[:count] for part in parts if part is not None]
    return np.concatenate([np.zeros((0, *like.shape[1:]), np.uint8), *known])
