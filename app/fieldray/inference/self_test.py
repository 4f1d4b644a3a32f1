"""Does the model give here what its maker measured, and how fast? Asked of every backend before it takes over."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from fieldray.domain.model import GoldenVectors, InputSpec
from fieldray.errors import BackendProblem
from fieldray.inference.backend import Backend
from fieldray.reasons import reason

_TIMED_RUNS: Final = 2


def time_image(backend: Backend, spec: InputSpec) -> float:
    """Seconds an image takes with all of the backend's capacity in use; the best of a few, so that it is its own."""
    images = [np.zeros((spec.height, spec.width, spec.channels), np.uint8)] * backend.capacity
    times_s = []
    for _ in range(_TIMED_RUNS):
        began_s = time.perf_counter()
        backend.run(images)
        times_s.append(time.perf_counter() - began_s)
    return min(times_s) / len(images)


def check_golden(backend: Backend, golden: GoldenVectors) -> None:
    """Run all golden inputs. Raises BackendProblem("self_test") if a score is off by more than the tolerance."""
    step = backend.capacity
    answers = [
        answer
        for start in range(0, len(golden.inputs), step)
        for answer in backend.run(list(golden.inputs[start : start + step]))
    ]
    scores = np.stack([answer.scores for answer in answers]) if answers else golden.scores
    if scores.shape != golden.scores.shape:
        raise BackendProblem(reason("self_test", detail=f"{scores.shape} instead of {golden.scores.shape} scores"))
    difference = float(np.abs(scores - golden.scores).max(initial=0.0))
    if difference > golden.tolerance:
        detail = f"a score differs by {difference:.3f}, allowed is {golden.tolerance:.3f}"
        raise BackendProblem(reason("self_test", detail=detail))
