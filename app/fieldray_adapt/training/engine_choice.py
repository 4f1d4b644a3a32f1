"""Choice of the training library: PyTorch if installed, else Keras."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import Specification
from fieldray_adapt.training.engine_interface import Engine, EngineName, EngineSettings


def open_engine(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    settings: EngineSettings,
    name: EngineName = "auto",
) -> Engine:
    """An engine holding `weights`; "auto" takes PyTorch where it is installed. Raises ModuleNotFoundError."""
    if _is_torch(name):
        # Read when the library loads: threads that spin while they wait are five times slower on a busy machine.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from fieldray_adapt.training.torch_engine import TorchEngine

        return TorchEngine(specification, weights, settings=settings)
    from fieldray_adapt.training.keras_engine import KerasEngine

    return KerasEngine(specification, weights, settings=settings)


def _is_torch(name: EngineName) -> bool:
    """Whether PyTorch is meant; "auto" leaves one with Triton, which ends a process that TensorFlow is in too."""
    is_there, has_triton = (importlib.util.find_spec(one) is not None for one in ("torch", "triton"))
    return name == "torch" or (name == "auto" and is_there and not has_triton)
