"""The actions of `fieldray adapt` for recipes of every kind: write a recipe, check a recipe, run its steps.

`compile_pack` compiles an existing pack for the Edge TPU.
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
from fieldray.inference.backend import BackendKind, BackendOptions, known_backend_kinds, run_self_test
from fieldray.packs import signing
from fieldray.packs.verified import manifest_file_entries, read_pack, require_classifier, write_pack_of_any_kind
from fieldray.reasons import reason
from fieldray.typed_json import to_type
from fieldray_adapt.data.dataset import DATA_STEP, describe_left_out_images, find_data_problems
from fieldray_adapt.evaluation.cross_validation import CROSS_VALIDATION_STEP
from fieldray_adapt.evaluation.evaluate_step import EVALUATE_STEP
from fieldray_adapt.files import remove_on_failure, write_atomically
from fieldray_adapt.lungs.dataset import LUNG_DATA_STEP, find_lung_recipe_problems
from fieldray_adapt.lungs.evaluate import LUNG_EVALUATE_STEP
from fieldray_adapt.lungs.hospital_cross_validation import LUNG_CROSS_VALIDATION_STEP
from fieldray_adapt.lungs.pack import LUNG_PACK_STEP
from fieldray_adapt.lungs.quantise import LUNG_QUANTISE_STEP
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.lungs.report import LUNG_REPORT_STEP
from fieldray_adapt.lungs.train import LUNG_TRAIN_STEP
from fieldray_adapt.networks.edgetpu import PLACEMENT_STEP, compile_for_edgetpu, describe_placement, find_compiler
from fieldray_adapt.pack.card import with_edgetpu_section
from fieldray_adapt.pack.step import PACK_STEP
from fieldray_adapt.pack.writing import WrittenPack
from fieldray_adapt.prune.recipe import StudyRecipe
from fieldray_adapt.prune.study import run_study
from fieldray_adapt.prune.tasks import PRUNE_STEP
from fieldray_adapt.recipes.classifier import ClassifierRecipe, with_absolute_paths
from fieldray_adapt.recipes.shared import local_copy_folder
from fieldray_adapt.recipes.tables import Problem, RecipeDocument, RecipeProblems, recipe_template
from fieldray_adapt.reports.report import REPORT_STEP
from fieldray_adapt.run import Progress, Run, Step, StepFacts, Trainer, lock_run_folder
from fieldray_adapt.training.profile import PROFILE_STEP, profile_study
from fieldray_adapt.training.steps import QUANTISE_STEP, TRAIN_STEP, recipe_specification

LineHandler = Callable[[str], None]

CLASSIFIER_STEPS: Final[tuple[Step, ...]] = (
    DATA_STEP,
    TRAIN_STEP,
    PRUNE_STEP,
    QUANTISE_STEP,
    PLACEMENT_STEP,
    EVALUATE_STEP,
    PACK_STEP,
    REPORT_STEP,
)
_LUNG_STEPS: Final[tuple[Step, ...]] = (
    LUNG_DATA_STEP,
    LUNG_TRAIN_STEP,
    LUNG_QUANTISE_STEP,
    PLACEMENT_STEP,
    LUNG_EVALUATE_STEP,
    LUNG_PACK_STEP,
    LUNG_REPORT_STEP,
)
# The published U-Net is trained and evaluated only for comparison. No pack is made.
_PUBLISHED_STEPS: Final[tuple[Step, ...]] = (LUNG_DATA_STEP, LUNG_TRAIN_STEP, LUNG_EVALUATE_STEP, LUNG_REPORT_STEP)
_CREDITS: Final = """# Credits and licences

Where the images come from, who published them, their licences, and whom to cite. This text goes into the model card.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeKind:
    """A kind of recipe, such as `classifier`.

    Parameters
    ----------
    recipe_class
        The dataclass of the recipe. Checks, template and reference are made from its keys (see `recipes.tables`).
    find_problems
        A function that returns the problems of the files that a recipe names.
    steps_by_name
        A function that returns the steps to run for each name that the user can enter, such as "train". The name "run"
        stands for all steps.
    find_run_blocking_problems
        A function that returns only the problems that stop a run. None if every problem of `find_problems` stops a run.
    run_recipe_without_steps
        A function that runs a recipe without steps. Its arguments are the recipe, the name of the step, `say` and
        `progress`.
    has_credits_file
        Whether a new recipe comes with a file for credits and licences.
    can_train_in_many_processes
        Whether several processes can train the network together.
    """

    recipe_class: type[Any]
    find_problems: Callable[[Any], list[Problem]]
    steps_by_name: Callable[[Any], Mapping[str, tuple[Step, ...]]] = lambda _: {}
    find_run_blocking_problems: Callable[[Any], list[Problem]] | None = None
    run_recipe_without_steps: Callable[[Any, str, LineHandler, Progress], None] | None = None
    has_credits_file: bool = True
    can_train_in_many_processes: bool = False


def _by_name(steps: tuple[Step, ...], **alone: tuple[Step, ...]) -> Mapping[str, tuple[Step, ...]]:
    """Return the steps to run, by the name of the last step to run. All earlier steps run before that step.

    `alone` maps the name of each optional step to the steps to run for that optional step.
    """
    return {"run": steps, **{step.name: steps[: number + 1] for number, step in enumerate(steps)}, **alone}


def run_recipe(step: str, path: Path, *, say: LineHandler, progress: Progress, trainer: Trainer | None = None) -> None:
    """Run the steps of the recipe at `path` up to `step`, and skip steps that are done.

    Parameters
    ----------
    step
        The name of the last step to run; "run" for all steps. The optional steps "profile" and "cross" run only if this
        name asks for them. In a pruning study, "profile" measures the speed of training, "report" evaluates the
        networks made until now, and each other name runs the whole study.
    say
        Receives a line of text about each step.
    progress
        Receives the progress.
    trainer
        Trains the network on other processes, for classifiers and lung fields only. None to train in this process.

    Raises UsageProblem if the recipe or the data have an error, if the training diverges, or if `trainer` cannot train
    this kind of recipe. Raises PackProblem, StorageProblem.
    """
    run_recipe_document(step, RecipeDocument.read(path), say=say, progress=progress, trainer=trainer)


def run_recipe_document(
    step: str, document: RecipeDocument, *, say: LineHandler, progress: Progress, trainer: Trainer | None = None
) -> None:
    """Run the steps of a recipe that is already read, and perhaps changed in memory. Parameters as in `run_recipe`.

    Relative paths in the recipe are relative to the folder of the recipe's file.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's information messages
    kind = recipe_kind_of(document)
    recipe = with_absolute_paths(document.parse_as(kind.recipe_class), document.path)
    if trainer and not kind.can_train_in_many_processes:
        raise UsageProblem(reason("training_not_divided", kind=recipe.kind))
    _require_copies(document)
    steps = kind.steps_by_name(recipe)
    if steps and step not in steps:
        raise UsageProblem(reason("step_missing", step=steps["run"][-1].name))
    if kind.run_recipe_without_steps:
        kind.run_recipe_without_steps(recipe, step, say, progress)
        return
    with lock_run_folder(recipe.run):
        wanted = steps[step]
        if wanted[0].name == DATA_STEP.name and (
            problems := (kind.find_run_blocking_problems or kind.find_problems)(recipe)
        ):
            raise RecipeProblems(document.path, document.problem_lines(problems))
        run = Run(recipe=recipe, recipe_text=document.text, progress=progress, trainer=trainer)
        _execute(run, wanted, say)


def image_copy_folders(document: RecipeDocument) -> dict[str, Path]:
    """Return the folders for local copies of images that lie on servers, by the address of the images."""
    recipe = document.parse_as(recipe_kind_of(document).recipe_class)
    run = with_absolute_paths(recipe, document.path).run
    addresses = (address for source in getattr(recipe, "all_sources", ()) for address in source.server_addresses)
    return {address: local_copy_folder(address, run_folder=run) for address in addresses}


def _require_copies(document: RecipeDocument) -> None:
    """Raise UsageProblem (objects_not_copied) if the images of a source on a server are not all copied."""
    for address, folder in image_copy_folders(document).items():
        if not folder.with_name(f"{folder.name}.json").is_file():  # the list of a complete copy
            raise UsageProblem(reason("objects_not_copied", address=address, path=document.path))


def check_recipe(path: Path) -> list[str]:
    """Check a recipe and its data. Returns a sentence for each image that the last run left out.

    Raises RecipeProblems, which lists every problem found, and UsageProblem.
    """
    document = RecipeDocument.read(path)
    kind = recipe_kind_of(document)
    recipe = with_absolute_paths(document.parse_as(kind.recipe_class), path)
    _require_copies(document)
    if problems := kind.find_problems(recipe):
        raise RecipeProblems(path, document.problem_lines(problems))
    return describe_left_out_images(recipe.run)


def write_new_recipe(kind_name: str, path: Path) -> list[Path]:
    """Write a commented recipe of a kind, with a file for credits if the kind has one. Returns the paths written.

    Raises UsageProblem (recipe_kind, recipe_exists), StorageProblem.
    """
    kind = _known(kind_name)
    files = {path: recipe_template(kind.recipe_class)}
    if kind.has_credits_file:
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
    signing_key: Path,
    output_folder: Path | None,
    say: LineHandler,
    compiler: Path | None = None,
    kinds: Sequence[BackendKind] = (),
) -> Path:
    """Compile a classifier's pack for the Edge TPU, with unchanged id and version. Returns the compiled pack's folder.

    Parameters
    ----------
    folder
        The folder of the pack.
    signing_key
        The file of the signing key. A missing file is made, with a new key.
    output_folder
        The folder in which the new pack is made. None to replace the old pack, with the key that signed the old pack.
    compiler
        The program `edgetpu_compiler`. None to search this computer for the program.
    kinds
        The devices on which the pack is tested with stored inputs. By default all devices of this computer.

    Raises UsageProblem for a wrong key, BackendProblem if a test fails, StorageProblem, PackProblem if the pack is not
    valid or cannot be written, and the exceptions of `compile_for_edgetpu`.
    """
    pack, program = read_pack(folder), compiler or find_compiler()
    signed = pack.manifest
    require_classifier(signed.content)
    if output_folder is None and _signer(signing_key, signed.manifest_bytes) != signed.fingerprint:
        raise UsageProblem(reason("compile_elsewhere", path=folder))
    contents = {role: pack.file_contents[file.name] for role, file in signed.content.files.items()}
    contents["edgetpu"], placement = compile_for_edgetpu(contents["litert"], compiler=program)
    for line in describe_placement(placement).splitlines():
        say(line)
    model = replace(pack.model, files={**pack.model.files, "edgetpu": contents["edgetpu"]})
    for kind in kinds or known_backend_kinds(BackendOptions()):
        say(f"{kind.entry.title}: {_golden_on(kind, model)}")
    contents["card"] = with_edgetpu_section(model.card, contents).encode()
    description = structs.replace(
        signed.content,
        files=manifest_file_entries(contents),
        minimum_edgetpu_runtime=placement.min_runtime,
        provenance={"compiled_from": f"{signed.pack_name}@{signed.fingerprint}", **signed.content.provenance},
    )
    parent = output_folder or folder.resolve().parent
    with remove_on_failure(signing_key, parent):
        owner = signing.load_or_create_key(signing_key)
        return write_pack_of_any_kind(parent, manifest=description, contents=contents, key=owner)


def _signer(signing_key: Path, data: bytes) -> str:
    """Return the fingerprint of the public key that belongs to the key file `signing_key`; "" without this file.

    `data` are any bytes to sign, which are needed to find the public key.
    """
    return (
        signing.verified_fingerprint(data, signature=signing.sign(data, key=signing.load_or_create_key(signing_key)))
        if signing_key.is_file()
        else ""
    )


def _golden_on(kind: BackendKind, model: Model) -> str:
    """Compare a device's scores for the pack's golden vectors (stored test inputs) with the expected scores.

    Returns the end of a sentence for the user. Raises BackendProblem if the scores differ.
    """
    if model.golden is None:
        return "not run: the pack has no golden vectors."
    if why := kind.unavailable_reason(model):
        return f"not run. {why.text} When the device is used, the program checks the golden vectors itself."
    with contextlib.closing(kind.open()) as backend:
        backend.start(model)
        run_self_test(backend.run, model.golden)
    return f"gives the scores of the {len(model.golden.scores)} golden vectors."


def recipe_kind_of(document: RecipeDocument) -> RecipeKind:
    """Return the kind that the recipe's key `kind` names, or else classifier. Raises UsageProblem (recipe_kind)."""
    return _known(str(document.tables.get("kind", "classifier")))


def _known(name: str) -> RecipeKind:
    if name not in RECIPE_KINDS:
        raise UsageProblem(reason("recipe_kind", kind=name, known=", ".join(RECIPE_KINDS)))
    return RECIPE_KINDS[name]


def _check_classifier(recipe: ClassifierRecipe) -> list[Problem]:
    problems = find_data_problems(recipe, every_image=True)
    if not problems:
        try:
            recipe_specification(recipe)
        except UsageProblem as found:
            problems.append(Problem(("network",), f"cannot be used: {found.reason.text}"))
    return problems


def _check_study(recipe: StudyRecipe) -> list[Problem]:
    file = recipe.data.file
    return [] if file.is_file() else [Problem(("data", "file"), f"names {file}, which does not exist")]


def _perform_study(recipe: StudyRecipe, step: str, say: LineHandler, progress: Progress) -> None:
    with lock_run_folder(recipe.run):
        if step == "profile":
            profile_study(recipe, say=say, progress=progress)
        else:
            run_study(recipe, step=step, say=say, progress=progress)


def _lung_steps(recipe: LungRecipe) -> Mapping[str, tuple[Step, ...]]:
    is_compact = recipe.network.kind == "compact"
    return (
        _by_name(_LUNG_STEPS, cross=(LUNG_DATA_STEP, LUNG_CROSS_VALIDATION_STEP))
        if is_compact
        else _by_name(_PUBLISHED_STEPS)
    )


def _execute(run: Run, wanted: tuple[Step, ...], say: LineHandler) -> None:
    run.execute(wanted, say=say)
    for known in wanted:
        say(_line(known.name, run.step_statuses[known.name].facts))
    if any(one.name == "pack" for one in wanted):
        for warning in to_type(run.step_statuses["pack"].facts, WrittenPack).warnings:
            say(f"Warning: {warning}")
    if any(one.name == DATA_STEP.name for one in wanted):
        for line in describe_left_out_images(run.recipe.run):
            say(line)


def _line(name: str, entry: StepFacts) -> str:
    facts = {key: value for key, value in entry.items() if key not in ("state", "key", "made", "left", "warnings")}
    return f"{name}: " + ", ".join(f"{key.replace('_', ' ')} {_shown(value)}" for key, value in facts.items())


def _shown(value: object) -> str:
    """Format a result of a step for a person: an estimate with its interval, a number with four significant digits."""
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


RECIPE_KINDS: Final[dict[str, RecipeKind]] = {
    "classifier": RecipeKind(
        recipe_class=ClassifierRecipe,
        find_problems=_check_classifier,
        find_run_blocking_problems=lambda recipe: find_data_problems(recipe, every_image=False),
        steps_by_name=lambda _: _by_name(
            CLASSIFIER_STEPS, profile=(PROFILE_STEP,), cross=(DATA_STEP, CROSS_VALIDATION_STEP)
        ),
        can_train_in_many_processes=True,
    ),
    "lung-fields": RecipeKind(
        recipe_class=LungRecipe,
        find_problems=find_lung_recipe_problems,
        steps_by_name=_lung_steps,
        can_train_in_many_processes=True,
    ),
    "pruning-study": RecipeKind(
        recipe_class=StudyRecipe,
        find_problems=_check_study,
        run_recipe_without_steps=_perform_study,
        has_credits_file=False,
    ),
}
"""Each kind of recipe, by the value of a recipe's key `kind`. To add a kind, add an entry."""
