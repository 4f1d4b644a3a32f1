"""`adapt profile`: how long iterations of a recipe's network take, and the batch size to train it with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from fieldray.adaptation.engine import EngineSettings
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.networks import vgg16
from fieldray.adaptation.page import Part, Table, Text
from fieldray.adaptation.profile import ProfileChoice, ProfileRow, profile, propose_batch_size
from fieldray.adaptation.prune.study_recipe import StudyRecipe
from fieldray.adaptation.run import Progress, Run, Step
from fieldray.adaptation.specification import Specification
from fieldray.adaptation.steps import specification_of, starting_digest
from fieldray.adaptation.weights import initial_weights

PROFILE_NAME: Final = "profile.json"
_WHAT: Final = "profile"


def profile_step(run: Run) -> Mapping[str, Any]:
    """Profile the recipe's network with its initial weights, since times do not depend on them; profile.json."""
    training = run.recipe.training
    settings = EngineSettings(precision=training.precision, threads=training.threads)
    found = _profiled(specification_of(run.recipe), run.recipe.profile, settings=settings, progress=run.progress)
    run.write("profile", PROFILE_NAME, found)
    return found["proposed_batch_size"]  # type: ignore[no-any-return]


def profile_study(recipe: StudyRecipe, *, say: Callable[[str], None], progress: Progress) -> None:
    """Profile a study's original; profile/profile.json of its run folder, and the proposal said."""
    specification = vgg16(dropout=recipe.original.dropout).scaled(recipe.original.width)
    settings = EngineSettings(loss="categorical", precision=recipe.original.precision, threads=recipe.training_threads)
    found = _profiled(specification, recipe.profile, settings=settings, progress=progress)
    write_atomically(recipe.run / "profile" / PROFILE_NAME, json.dumps(found, indent=1).encode())
    for side, size in found["proposed_batch_size"].items():
        say(f"profile: at {side} pixels train with batches of {size}")


def _profiled(
    specification: Specification, choice: ProfileChoice, *, settings: EngineSettings, progress: Progress
) -> dict[str, Any]:
    """Rows and proposals, ready for JSON."""
    rows = profile(
        specification,
        initial_weights(specification, seed=0),
        batch_sizes=choice.batch_sizes,
        sides=choice.sides,
        settings=settings,
        iterations=choice.iterations,
        progress=lambda done, total: progress(_WHAT, done, total),
    )
    sides = sorted({row.side for row in rows})
    return {
        "rows": [_row(row) for row in rows],
        "proposed_batch_size": {
            str(side): propose_batch_size([row for row in rows if row.side == side]) for side in sides
        },
    }


def _row(row: ProfileRow) -> dict[str, Any]:
    times = {name: seconds * 1e3 for name, seconds in asdict(row.times).items()}
    return {
        "mode": row.mode,
        "side": row.side,
        "batch_size": row.batch_size,
        "first_ms": times["first_s"],
        "second_ms": times["second_s"],
        "later_ms": times["later_s"],
        "later_ms_per_image": row.later_s_per_image * 1e3,
    }


def profile_parts(found: Mapping[str, Any]) -> list[Part]:
    """The profile for a report: a row for each mode, side and batch size."""
    head = (
        *("mode", "side, pixels", "images in a batch", "iteration 1, ms", "iteration 2, ms", "later, ms"),
        "later, ms per image",
    )
    times = ("first_ms", "second_ms", "later_ms", "later_ms_per_image")
    rows = [
        [row["mode"], str(row["side"]), str(row["batch_size"]), *(f"{row[key]:.2f}" for key in times)]
        for row in found["rows"]
    ]
    chosen = ", ".join(f"{size} at {side} pixels" for side, size in found["proposed_batch_size"].items())
    return [Table(head=head, rows=rows), Text(f"Batch size proposed for training: {chosen}.")]


PROFILE: Final = Step(
    name="profile",
    perform=profile_step,
    reads=("input", "network", "labels", "training", "profile"),
    outside=lambda run: starting_digest(run.recipe.network),  # whose widths the network has where they are a pack's
)
