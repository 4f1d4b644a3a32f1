"""The proof that this computer can screen: one image drawn by code, written, read and run with the pack in use."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fieldray.bench.benchmark_case import Decoders
from fieldray.bench.images import find_images, one_decoder
from fieldray.domain.model import Model
from fieldray.domain.prediction import Prediction, Request
from fieldray.errors import FieldrayError
from fieldray.inference.cpu import cpu_kind
from fieldray.inference.engine import Engine
from fieldray.reasons import Reason, reason

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFacts:
    """Why it failed (`problem`), or which backend ran the image, and seconds from nothing open to the result."""

    pack_name: str = ""
    problem: Reason | None = None
    backend: str = ""
    seconds: float = 0.0


def try_screening(
    load: Callable[[], Model],
    *,
    engines: Callable[[], Engine] = lambda: Engine(lambda _: None, kinds=(cpu_kind(),)),
    decoders: Decoders = one_decoder,
) -> TrialFacts:
    """Load the pack, open it, read an image and run it. `load` raises PackProblem if no pack can be used."""
    pack_name = ""
    try:
        model = load()
        pack_name = model.pack_name
        prediction, seconds = _screen(model, engines, decoders)
    except FieldrayError as problem:
        return TrialFacts(pack_name=pack_name, problem=problem.reason)
    except (OSError, TimeoutError) as error:
        return TrialFacts(pack_name=pack_name, problem=reason("host_trial_stopped", detail=error))
    return TrialFacts(pack_name=pack_name, backend=prediction.backend, seconds=seconds)


def _screen(model: Model, engines: Callable[[], Engine], decoders: Decoders) -> tuple[Prediction, float]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        (ref,) = find_images(None, count=1, drawn_in=Path(folder))
        began_s = time.perf_counter()
        engine = ends.enter_context(engines())
        engine.open(model)
        pool = ends.enter_context(decoders())
        result = pool.read(ref, model.manifest.input)
        if result.tensor is None:
            assert result.problem
            raise FieldrayError(result.problem)
        engine.wait_ready(timeout_s=_TIMEOUT_S)
        request = Request(request_id=1, values=result.tensor.values)
        return engine.submit(request).result(_TIMEOUT_S), time.perf_counter() - began_s
