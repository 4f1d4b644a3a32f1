"""A model for both devices."""

from __future__ import annotations

from dataclasses import replace

from faults.fake_compile import fake_compile
from fieldray.domain.model import Model
from tiny_models import TinyType, tiny_model


def edgetpu_model(dtype: TinyType = "uint8", *, oldest_runtime: int = 13) -> Model:
    """The tiny network, with a file for the test double of the Edge TPU."""
    model = tiny_model(dtype)
    compiled = fake_compile(model.files["litert"], oldest_runtime=oldest_runtime)
    return replace(model, files={**model.files, "edgetpu": compiled})
