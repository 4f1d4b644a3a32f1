"""Choose the library for training: PyTorch if installed, else Keras."""

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
    """Return a training engine with a network and its weights.

    The engine is PyTorch or Keras, as `name` says. "auto" selects PyTorch if installed without Triton. Raises
    ModuleNotFoundError if the library is not installed.
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
    """Return whether the engine with the name `name` is PyTorch on this computer.

    "auto" avoids PyTorch with Triton, because Triton and TensorFlow crash a process that loads both.
    """
    is_there, has_triton = (importlib.util.find_spec(one) is not None for one in ("torch", "triton"))
    return name == "torch" or (name == "auto" and is_there and not has_triton)
