"""Does the model give here what its maker measured? Asked of every backend before it takes over."""

from __future__ import annotations

import numpy as np

from fieldray.domain.model import GoldenVectors
from fieldray.errors import BackendProblem
from fieldray.inference.backend import Backend
from fieldray.reasons import reason


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
