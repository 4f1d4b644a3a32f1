"""The choice of the training library: PyTorch if installed, else Keras."""

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
    """Open a training engine with these weights.

    `name` "auto" selects PyTorch if it is installed without Triton. Raises ModuleNotFoundError.
    """
    if uses_torch(name):
        # PyTorch reads this variable on import. By default its threads spin while waiting, which is five times slower
        # on a busy computer.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        from fieldray_adapt.training.torch_engine import TorchEngine

        return TorchEngine(specification, weights, settings=settings)
    from fieldray_adapt.training.keras_engine import KerasEngine

    return KerasEngine(specification, weights, settings=settings)


def uses_torch(name: EngineName) -> bool:
    """Return whether an engine name means PyTorch.

    "auto" avoids PyTorch with Triton, because Triton and TensorFlow in one process crash it.
    """
    is_there, has_triton = (importlib.util.find_spec(one) is not None for one in ("torch", "triton"))
    return name == "torch" or (name == "auto" and is_there and not has_triton)
