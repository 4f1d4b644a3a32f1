"""`fieldray adapt` for a recipe of any kind: write a recipe, check it, and perform its steps.

For an existing pack: compile it for the Edge TPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from fieldray.domain.model import Model
from fieldray.errors import UsageProblem
from fieldray.inference.backend import BackendKind, BackendOptions, check_golden, system_kinds
from fieldray.packs import signing
from fieldray.packs.verified import list_files, read_pack, require_classifier, write_described
from fieldray.reasons import reason
from fieldray.typed_json import converted
from fieldray_adapt.data.dataset import DATA, data_problems, left_out_lines
from fieldray_adapt.evaluation.cross import CROSS
from fieldray_adapt.evaluation.evaluate_step import EVALUATE
from fieldray_adapt.files import undone_on_failure, write_atomically
from fieldray_adapt.lungs.cross import LUNG_CROSS
from fieldray_adapt.lungs.dataset import LUNG_DATA, lung_problems
from fieldray_adapt.lungs.evaluate import LUNG_EVALUATE
from fieldray_adapt.lungs.pack import LUNG_PACK
from fieldray_adapt.lungs.quantise import LUNG_QUANTISE
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.lungs.report import LUNG_REPORT
from fieldray_adapt.lungs.train import LUNG_TRAIN
from fieldray_adapt.networks.edgetpu import PLACEMENT, compile_for_edgetpu, describe, find_compiler
from fieldray_adapt.pack.card import with_edgetpu_section
from fieldray_adapt.pack.step import PACK
from fieldray_adapt.pack.written import WrittenPack
from fieldray_adapt.prune.recipe import StudyRecipe
from fieldray_adapt.prune.study import run_study
from fieldray_adapt.prune.tasks import PRUNE
from fieldray_adapt.recipes.classifier import Recipe, with_whole_paths
from fieldray_adapt.recipes.tables import Document, Problem, RecipeProblems, template
from fieldray_adapt.reports.report import REPORT
from fieldray_adapt.run import Facts, Progress, Run, Step, Trainer, locked
from fieldray_adapt.training.profile import PROFILE, profile_study
from fieldray_adapt.training.steps import QUANTISE, TRAIN, specification_of

Say = Callable[[str], None]

STEPS: Final[tuple[Step, ...]] = (DATA, TRAIN, PRUNE, QUANTISE, PLACEMENT, EVALUATE, PACK, REPORT)
_LUNG_STEPS: Final[tuple[Step, ...]] = (
    LUNG_DATA, LUNG_TRAIN, LUNG_QUANTISE, PLACEMENT, LUNG_EVALUATE, LUNG_PACK, LUNG_REPORT,
)  # fmt: skip
# The network as published is trained and evaluated, to compare with; no pack is made of it.
_PUBLISHED_STEPS: Final[tuple[Step, ...]] = (LUNG_DATA, LUNG_TRAIN, LUNG_EVALUATE, LUNG_REPORT)
_CREDITS: Final = """# Credits and licences

Where the images come from, who published them, their licences, and whom to cite. This text goes into the model card.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of recipe.

    Parameters
    ----------
    schema
        Its dataclass, described by keys (see `tables`): checks, template and reference come from there.
    check
        What is wrong with the files that a whole recipe names.
    steps
        What is performed for a step of a whole recipe, by the step's name; "run" for all.
    check_run
        The same as `check` before the data are read, where a run goes on without some of the files.
    perform
        Performs a step ("run" for all) of a recipe that is no row of steps, with `say` and `progress`.
    has_credits
        Whether a file of credits and licences belongs to it.
    is_divided
        Whether another may train in place of this process.
    """

    schema: type[Any]
    check: Callable[[Any], list[Problem]]
    steps: Callable[[Any], Mapping[str, tuple[Step, ...]]] = lambda _: {}
    check_run: Callable[[Any], list[Problem]] | None = None
    perform: Callable[[Any, str, Say, Progress], None] | None = None
    has_credits: bool = True
    is_divided: bool = False


def _by_name(steps: tuple[Step, ...], **alone: tuple[Step, ...]) -> Mapping[str, tuple[Step, ...]]:
    """Map each step to itself and all steps before it; `alone` are optional steps with the steps that they need."""
    return {"run": steps, **{step.name: steps[: number + 1] for number, step in enumerate(steps)}, **alone}


def adapt(step: str, path: Path, *, say: Say, progress: Progress, trainer: Trainer | None = None) -> None:
    """Perform the steps of a recipe up to `step` ("run" for all) that are not done; `say` gets a line about each.

    "profile" and "cross" are steps of their own, which no other needs; the latter needs the data alone. Of lung fields
    "cross" leaves out each hospital in turn.

    `trainer` trains in place of this process: classifiers and lung fields. Raises UsageProblem for other recipes.

    The recipe of a pruning study has no steps but its own: "report" tests, times and reports what there is so far, all
    others run it to its end. Raises UsageProblem (recipe, data, a training that diverged), PackProblem, StorageProblem.
    """
    perform(step, Document.read(path), say=say, progress=progress, trainer=trainer)


def perform(step: str, document: Document, *, say: Say, progress: Progress, trainer: Trainer | None = None) -> None:
    """Perform a step of a recipe that was read, and perhaps changed in memory.

    Its paths count from its file's folder.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about itself hide ours
    kind = kind_of(document)
    recipe = with_whole_paths(document.parsed(kind.schema), document.path)
    if trainer and not kind.is_divided:
        raise UsageProblem(reason("training_not_divided", kind=recipe.kind))
    steps = kind.steps(recipe)
    if steps and step not in steps:
        raise UsageProblem(reason("step_missing", step=steps["run"][-1].name))
    if kind.perform:
        kind.perform(recipe, step, say, progress)
        return
    with locked(recipe.run):
        wanted = steps[step]
        if wanted[0].name == DATA.name and (problems := (kind.check_run or kind.check)(recipe)):
            raise RecipeProblems(document.path, document.lines(problems))
        run = Run(recipe=recipe, text=document.text, progress=progress, trainer=trainer)
        _execute(run, wanted, say)


def check(path: Path) -> list[str]:
    """Check a recipe and its data. Returns sentences on the images that its run left out.

    Raises UsageProblem, RecipeProblems with all problems.
    """
    document = Document.read(path)
    kind = kind_of(document)
    recipe = with_whole_paths(document.parsed(kind.schema), path)
    if problems := kind.check(recipe):
        raise RecipeProblems(path, document.lines(problems))
    return left_out_lines(recipe.run)


def new(name: str, path: Path) -> list[Path]:
    """Write a commented recipe, with a file for credits if its kind has one. Returns the files written.

    Raises UsageProblem (recipe_kind, recipe_exists), StorageProblem.
    """
    kind = _known(name)
    files = {path: template(kind.schema)}
    if kind.has_credits:
        files[path.with_name(f"{path.stem}.credits.md")] = _CREDITS
    for file in files:
        if file.exists():
            raise UsageProblem(reason("recipe_exists", path=file))
    for file, text in files.items():
        write_atomically(file, text.encode())
    return list(files)


def compile_pack(
    folder: Path,
    *,
    key: Path,
    packs: Path | None,
    say: Say,
    compiler: Path | None = None,
    kinds: Sequence[BackendKind] = (),
) -> Path:
    """Write the classifier's pack in `folder` again into the folder `packs`, with its int8 file compiled too.

    Id and version stay: by another key it is another pack, which needs another folder. Every device that is here (of
    `kinds`, or of the program) runs the golden vectors first. `key` is made if it is not there.

    Raises EnvironmentProblem and UsageProblem (as `compile_for_edgetpu`; compile_elsewhere; of the key),
    BackendProblem (self_test), StorageProblem, PackProblem (damaged, no classifier, pack_older, pack_in_the_way).
    """
    pack, program = read_pack(folder), compiler or find_compiler()
    signed = pack.manifest
    require_classifier(signed.description)
    if packs is None and _signer(key, signed.manifest_bytes) != signed.fingerprint:
        raise UsageProblem(reason("compile_elsewhere", path=folder))
    contents = {role: pack.contents[file.name] for role, file in signed.description.files.items()}
    contents["edgetpu"], placement = compile_for_edgetpu(contents["litert"], compiler=program)
    for line in describe(placement).splitlines():
        say(line)
    model = replace(pack.model, files={**pack.model.files, "edgetpu": contents["edgetpu"]})
    for kind in kinds or system_kinds(BackendOptions()):
        say(f"{kind.entry.title}: {_golden_on(kind, model)}")
    contents["card"] = with_edgetpu_section(model.card, contents).encode()
    description = structs.replace(
        signed.description,
        files=list_files(contents),
        minimum_edgetpu_runtime=placement.least_runtime,
        provenance={"compiled_from": f"{signed.pack_name}@{signed.fingerprint}", **signed.description.provenance},
    )
    folder_above = packs or folder.resolve().parent
    with undone_on_failure(key, folder_above):
        return write_described(folder_above, description=description, contents=contents, key=signing.own_key(key))


def _signer(key: Path, data: bytes) -> str:
    """Return the fingerprint of a key file; "" if there is no such file."""
    return signing.verify(data, signature=signing.sign(data, key=signing.own_key(key))) if key.is_file() else ""


def _golden_on(kind: BackendKind, model: Model) -> str:
    """Describe the result of the golden vectors on a device. Raises BackendProblem."""
    if model.golden is None:
        return "not run: the pack has no golden vectors."
    if why := kind.unavailable_reason(model):
        return f"not run. {why.text} When the device is used, the program checks the golden vectors itself."
    with contextlib.closing(kind.open()) as backend:
        backend.start(model)
        check_golden(backend.run, model.golden)
    return f"gives the scores of the {len(model.golden.scores)} golden vectors."


def kind_of(document: Document) -> Kind:
    """The kind of a recipe, a classifier where it names none. Raises UsageProblem (recipe_kind)."""
    return _known(str(document.tables.get("kind", "classifier")))


def _known(name: str) -> Kind:
    if name not in KINDS:
        raise UsageProblem(reason("recipe_kind", kind=name, known=", ".join(KINDS)))
    return KINDS[name]


def _check_classifier(recipe: Recipe) -> list[Problem]:
    problems = data_problems(recipe, every_image=True)
    if not problems:
        try:
            specification_of(recipe)
        except UsageProblem as found:
            problems.append(Problem(("network",), f"does not fit: {found.reason.text}"))
    return problems


def _check_study(recipe: StudyRecipe) -> list[Problem]:
    file = recipe.data.file
    return [] if file.is_file() else [Problem(("data", "file"), f"names {file}, which is not there")]


def _perform_study(recipe: StudyRecipe, step: str, say: Say, progress: Progress) -> None:
    with locked(recipe.run):
        if step == "profile":
            profile_study(recipe, say=say, progress=progress)
        else:
            run_study(recipe, step=step, say=say, progress=progress)


def _lung_steps(recipe: LungRecipe) -> Mapping[str, tuple[Step, ...]]:
    is_compact = recipe.network.kind == "compact"
    return _by_name(_LUNG_STEPS, cross=(LUNG_DATA, LUNG_CROSS)) if is_compact else _by_name(_PUBLISHED_STEPS)


def _execute(run: Run, wanted: tuple[Step, ...], say: Say) -> None:
    run.execute(wanted, say=say)
    for known in wanted:
        say(_line(known.name, run.status[known.name].facts))
    if any(one.name == "pack" for one in wanted):
        for warning in converted(run.status["pack"].facts, WrittenPack).warnings:
            say(f"Warning: {warning}")
    if any(one.name == DATA.name for one in wanted):
        for line in left_out_lines(run.recipe.run):
            say(line)


def _line(name: str, entry: Facts) -> str:
    facts = {key: value for key, value in entry.items() if key not in ("state", "key", "made", "left", "warnings")}
    return f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {_shown(value)}" for key, value in facts.items())


def _shown(value: object) -> str:
    """Format a fact of a step for a person: an estimate with its interval, numbers to four figures."""
    match value:
        case {"value": float(middle), "low": float(low), "high": float(high)}:
            return f"{middle:.3f} ({low:.3f} to {high:.3f})"
        case float():
            return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
        case list() | tuple():
            return ", ".join(map(_shown, value))
        case str() if f"{os.sep}..{os.sep}" in value:
            return str(Path(value).resolve())
        case _:
            return str(value)


KINDS: Final[dict[str, Kind]] = {
    "classifier": Kind(
        schema=Recipe,
        check=_check_classifier,
        check_run=lambda recipe: data_problems(recipe, every_image=False),
        steps=lambda _: _by_name(STEPS, profile=(PROFILE,), cross=(DATA, CROSS)),
        is_divided=True,
    ),
    "lung-fields": Kind(schema=LungRecipe, check=lung_problems, steps=_lung_steps, is_divided=True),
    "pruning-study": Kind(schema=StudyRecipe, check=_check_study, perform=_perform_study, has_credits=False),
}
"""The kinds of recipes, by the name that the key `kind` has in a recipe. Another is added by one entry."""
