"""An engine on the test double."""

from __future__ import annotations

from typing import Any

import numpy as np

from faults.double import DoubleEdgeTpu
from fieldray.domain.model import Request
from fieldray.domain.run import Publish
from fieldray.inference.backend import BackendKind
from fieldray.inference.coral import edgetpu_kind
from fieldray.inference.engine import Engine
from fieldray.inference.worker import cpu_kind
from tiny_models import SIDE
from waiting import Events


def open_engine(edgetpu: DoubleEdgeTpu, said: Events, **options: Any) -> Engine:
    """An engine whose only Edge TPU is the test double."""
    return Engine(said, kinds=double_kinds(said, edgetpu, run_timeout_s=1.0, start_timeout_s=5.0), **options)


def double_kinds(
    publish: Publish, edgetpu: DoubleEdgeTpu, *, cpu: BackendKind | None = None, **options: Any
) -> tuple[BackendKind, ...]:
    """The devices of a computer whose only Edge TPU is the test double."""
    kind = edgetpu_kind(
        libraries=[str(edgetpu.library)], find=edgetpu.find, publish=publish, priority="raised", **options
    )
    return kind, cpu or cpu_kind(priority="raised")


def grey(number: int) -> Request:
    """An even grey image of its own level."""
    return Request(request_id=number, values=np.full((1, SIDE, SIDE, 1), number % 256, np.uint8))
