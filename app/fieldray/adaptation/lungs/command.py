"""What `fieldray adapt` does with a lung-field recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from fieldray.adaptation.compile import PLACEMENT
from fieldray.adaptation.lungs.card import LUNG_REPORT
from fieldray.adaptation.lungs.dataset import LUNG_DATA, lung_problems
from fieldray.adaptation.lungs.evaluate import LUNG_EVALUATE
from fieldray.adaptation.lungs.pack import LUNG_PACK
from fieldray.adaptation.lungs.quantise_step import LUNG_QUANTISE
from fieldray.adaptation.lungs.recipe import LungRecipe, rooted
from fieldray.adaptation.lungs.train import LUNG_TRAIN
from fieldray.adaptation.recipe_file import Document, RecipeProblems
from fieldray.adaptation.run import Progress, Run, Step, locked
from fieldray.adaptation.tables import Problem
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

_COMPACT: Final[tuple[Step, ...]] = (
    *(LUNG_DATA, LUNG_TRAIN, LUNG_QUANTISE, PLACEMENT, LUNG_EVALUATE, LUNG_PACK, LUNG_REPORT),
)
_PUBLISHED: Final[tuple[Step, ...]] = (LUNG_DATA, LUNG_TRAIN, LUNG_EVALUATE, LUNG_REPORT)


def check_lungs(recipe: LungRecipe, document: Document) -> list[Problem]:
    """What is wrong with the files that a recipe names."""
    return lung_problems(rooted(recipe, document.path))


def perform_lungs(
    recipe: LungRecipe, document: Document, step: str, say: Callable[[str], None], progress: Progress
) -> tuple[Run, tuple[Step, ...]]:
    """Perform the steps up to a named one; the run and its steps.

    Raises RecipeProblems with everything that is wrong before anything is trained, UsageProblem where the recipe's
    network has no such step.
    """
    whole = rooted(recipe, document.path)
    known = _COMPACT if whole.network.kind == "compact" else _PUBLISHED
    names = [one.name for one in known]
    if step != "run" and step not in names:
        raise UsageProblem(reason("step_missing", step=names[-1]))
    wanted = known if step == "run" else known[: names.index(step) + 1]
    run = Run(recipe=cast(Any, whole), text=document.text, progress=progress)
    with locked(whole.run):
        if problems := lung_problems(whole):
            raise RecipeProblems(document.path, document.lines(problems))
        run.execute(wanted, say=say)
    return run, wanted
