"""The networks on which inference engines are compared: the networks of shipped packs, in float32 and int8.

The classifier's weights are read from its pack, and batch normalisation is separated again with the golden images. The
separable convolutions of the lung network cannot be read, and get random weights. The time does not depend on weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import Model
from fieldray.packs.verified import read_pack
from fieldray_adapt.lungs.networks import compact_unet
from fieldray_adapt.networks.architectures import channels_from_pack, read_convolutions, resnet50, weights_from_pack
from fieldray_adapt.networks.quantise import OUTPUT_ROLES, quantise, to_float_file
from fieldray_adapt.networks.specification import Specification, initial_weights

_SEED: Final = 19
_BLOCKS: Final = ((3, 4, 6, 3), (3, 4, 6))
"""Numbers of blocks in the stages of a complete ResNet50, and of a ResNet50 without the last stage."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class NetworkCase:
    """A network to compare engines on, with images (n, rows, columns, channels) uint8, network files, and pack."""

    name: str
    specification: Specification
    weights: Mapping[str, NDArray[np.float32]]
    outputs: tuple[str, ...]
    float_file: bytes
    float_output: int
    int8_file: bytes
    int8_output: int
    images: NDArray[np.uint8]
    model: Model


def classifier_case(folder: Path) -> NetworkCase:
    """Return the ResNet50 of the pack in `folder`. Raises PackProblem.

    Raises UsageProblem if the pack has another network or no golden images.
    """
    model = read_pack(folder).model
    spec = model.manifest.input
    count = len(list(read_convolutions(model.files["litert"])))
    known = (
        resnet50(height=spec.height, width=spec.width, labels=len(model.manifest.labels), blocks=blocks)
        for blocks in _BLOCKS
    )
    whole = next(one for one in known if sum(layer.kind == "conv" for layer in one.layers) == count)
    network = whole.with_channels(channels_from_pack(folder, whole))
    weights = weights_from_pack(folder, network)
    return _case(f"ResNet50 of {model.manifest.pack_id}", network, weights, model, int8_file=model.files["litert"])


def lung_case(folder: Path) -> NetworkCase:
    """Return the U-Net of the lung-field pack in `folder`, with random weights. Raises PackProblem."""
    model = read_pack(folder).model
    if model.manifest.lung_rules is None:
        raise ValueError(f"{folder} is no lung-field pack")
    network = compact_unet(height=model.manifest.input.height, width=model.manifest.input.width)
    return _case(f"U-Net of {model.manifest.pack_id}", network, random_weights(network), model, int8_file=None)


def random_weights(network: Specification) -> dict[str, NDArray[np.float32]]:
    """Return random weights of a network, whose batch normalisations change the values.

    So the comparison shows if an engine folds batch normalisation wrongly.
    """
    generator, found = np.random.default_rng(_SEED), dict[str, NDArray[np.float32]]()
    for key, array in initial_weights(network, seed=_SEED).items():
        part = key.rpartition("/")[2]
        if part in ("gamma", "variance"):
            found[key] = (array * generator.uniform(0.7, 1.3, array.shape)).astype(np.float32)
        else:
            more = generator.normal(0, 0.1, array.shape) if part in ("beta", "mean") else 0.0
            found[key] = (array + more).astype(np.float32)
    return found


def _case(
    name: str, network: Specification, weights: dict[str, NDArray[np.float32]], model: Model, *, int8_file: bytes | None
) -> NetworkCase:
    golden = model.golden
    if golden is None:
        raise ValueError(f"{name}: the pack has no golden images")
    whole = to_float_file(network, weights)
    role = "scores" if "mask" not in network.outputs else "mask"
    roles: dict[str, Any] = {}
    if int8_file is None:
        integer = quantise(network, weights, representative=golden.inputs)
        int8_file, roles = integer.data, dict(integer.output_indices)
    else:
        roles[role] = getattr(model.manifest.outputs, role)
    others = tuple(known for known in OUTPUT_ROLES if known in network.outputs and known != role)
    return NetworkCase(
        name=f"{name}, {network.height} px",
        specification=network,
        weights=weights,
        outputs=(role, *others),
        float_file=whole.data,
        float_output=whole.output_indices[role],
        int8_file=int8_file,
        int8_output=roles[role],
        images=golden.inputs,
        model=model,
    )
