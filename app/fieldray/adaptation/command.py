"""What `fieldray adapt STEP RECIPE` does: the steps up to the one asked for, those already done left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from fieldray.adaptation.compare import COMPARE
from fieldray.adaptation.cross import CROSS
from fieldray.adaptation.dataset import DATA
from fieldray.adaptation.edgetpu_steps import COMPILE, PLACEMENT
from fieldray.adaptation.evaluate_step import EVALUATE
from fieldray.adaptation.pack import PACK
from fieldray.adaptation.profile_step import PROFILE, profile_study
from fieldray.adaptation.prune.image_task import PRUNE
from fieldray.adaptation.prune.study import run_study
from fieldray.adaptation.prune.study_recipe import is_study, read_study
from fieldray.adaptation.quantise_step import QUANTISE
from fieldray.adaptation.recipe import read_recipe
from fieldray.adaptation.report import REPORT
from fieldray.adaptation.run import Progress, Run, Step
from fieldray.adaptation.run_lock import locked
from fieldray.adaptation.steps import TRAIN

STEPS: Final[tuple[Step, ...]] = (DATA, TRAIN, PRUNE, QUANTISE, PLACEMENT, COMPILE, EVALUATE, PACK, REPORT)
_ALONE: Final[Mapping[str, tuple[Step, ...]]] = {
    "profile": (PROFILE,),
    "compare": (DATA, COMPARE),
    "cross": (DATA, CROSS),
}


def adapt(step: str, recipe: Path, *, say: Callable[[str], None], progress: Progress) -> None:
    """Perform the steps up to `step` ("run" for all) that are not done; `say` gets a line about each.

    "profile", "compare" and "cross" are steps of their own, which no other needs; the last two need the data alone.

    The recipe of a pruning study has no steps but its own: "report" tests, times and reports what there is so far, all
    others run it to its end. Raises UsageProblem (recipe, data, a training that diverged), PackProblem, StorageProblem.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about itself hide ours
    if is_study(recipe):
        study = read_study(recipe)
        with locked(study.run):
            if step == "profile":
                profile_study(study, say=say, progress=progress)
            else:
                run_study(study, step=step, say=say, progress=progress)
        return
    run = Run(recipe=read_recipe(recipe), progress=progress)
    names = [known.name for known in STEPS]
    wanted = STEPS if step == "run" else _ALONE.get(step) or STEPS[: names.index(step) + 1]
    with locked(run.recipe.run):
        run.execute(wanted, say=say)
    for known in wanted:
        say(_line(known.name, run.status[known.name]))


def _line(name: str, entry: Mapping[str, object]) -> str:
    facts = {key: value for key, value in entry.items() if key not in ("state", "key", "made")}
    return f"{name}: " + ", ".join(f"{key} {value}" for key, value in facts.items())
