"""What goes into an engine and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# Names of rows of the table in `fieldray.backends`; a choice may also be "auto"
BackendName = str
DeviceChoice = str

# Which of the backends that are ready run images: "accelerator" the one that the table prefers, which spares the CPU
# for other programs; "fastest" the one that was measured to be; "both" all of them, draining one queue
Policy = Literal["accelerator", "fastest", "both"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Request:
    """One image for the engine: values (1, height, width, channels) uint8."""

    request_id: int
    values: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Prediction:
    """The answer to one request.

    backend     the one that really ran this image
    scores      uncalibrated score in [0, 1] by label code
    class_maps  (labels, rows, columns) float32 logits, their mean is the label's logit; None if the model has none
    features    (n,) float32 pooled features; None if the model has none
    mask        (rows, columns) float32, share of lung 0..1; None if the model has none
    latency_ms  the invocation alone, as measured in the process that ran it
    sequence    1 for the first image this backend ran since it was opened, 2 for the second, ...
    """

    request_id: int
    pack_name: str
    model_sha256: str
    backend: BackendName
    scores: Mapping[str, float]
    class_maps: NDArray[np.float32] | None
    features: NDArray[np.float32] | None
    latency_ms: float
    sequence: int
    mask: NDArray[np.float32] | None = None
