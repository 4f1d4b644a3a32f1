"""A study of divided training: the same networks trained locally, synchronously and asynchronously, by several seeds.

After S. Minukhin (2020), who trained a U-Net on one, two and three computers and found the synchronous loss below the
asynchronous one (8 % and 12 % on three). An epoch of several workers has as many iterations of each as the local one,
as published, so equal epochs are not equal samples: figures are shown against epochs, samples and time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, cast

from distributed import Client

from fieldray.paths import VERSION
from fieldray.typed_json import decoded
from fieldray_adapt.command import perform
from fieldray_adapt.engine import CHECKPOINT
from fieldray_adapt.files import digest, write_atomically
from fieldray_adapt.lungs.dataset import LungData, data_of
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.lungs.train import rates
from fieldray_adapt.recipe import rooted
from fieldray_adapt.run import Run, locked
from fieldray_adapt.specification import save_weights
from fieldray_adapt.tables import Document, Key, require, require_ranges
from fieldray_cluster.training.cluster import opened
from fieldray_cluster.training.plan import MODES, Plan
from fieldray_cluster.training.session import Epoch
from fieldray_cluster.training.trainer import DividedTrainer
from fieldray_cluster.training.training_log import as_csv, log_lines, parsed

Say = Callable[[str], None]
RESULT: Final = "result.json"
LINES: Final = "training-lines.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStudy:
    """The recipe of a study."""

    run: Annotated[Path, Key(doc="The folder of its results.", example="runs/study")]
    recipes: Annotated[tuple[Path, ...], Key(doc="Recipes of lung fields; each is a network of the study.")]
    workers: Annotated[tuple[int, ...], Key(doc="Numbers of workers, beside the local training.", low=2)] = (2, 3)
    modes: Annotated[tuple[str, ...], Key(doc="Of the divided trainings: sync-join, sync-split, async.")] = (
        "sync-join",
        "async",
    )
    server: Annotated[str, Key(doc="central or distributed.")] = "central"
    seeds: Annotated[tuple[int, ...], Key(doc="Each training is done once with each.")] = (1, 2, 3)
    log_every: Annotated[int, Key(doc="Batches between two lines of the log.", low=1)] = 2

    def __post_init__(self) -> None:
        require_ranges(self)
        require(
            (bool(self.recipes), "recipes", "must be one or more"),
            (set(self.modes) <= set(MODES) - {"local"}, "modes", "must be sync-join, sync-split or async"),
            (self.server in ("central", "distributed"), "server", "must be central or distributed"),
            (bool(self.seeds), "seeds", "must be one or more"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training of a study: a network, a mode, and a seed."""

    network: str
    mode: str
    workers: int
    seed: int

    @property
    def name(self) -> str:
        """How it is called; its folder, too."""
        return f"{self.network}/{self.mode}-{self.workers}/seed-{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a training came to: a row for each epoch with epoch, samples, time_s, loss, dice, and more."""

    training: Training
    rows: Sequence[Mapping[str, Any]]


def run_study(path: Path, *, say: Say) -> tuple[TrainingStudy, list[Course]]:
    """Do every training of a study that is not done; all of them. Raises UsageProblem, EnvironmentProblem."""
    document = Document.read(path)
    study = document.parsed(TrainingStudy)
    base = path.resolve().parent
    folder = base / study.run
    courses = []
    with locked(folder), contextlib.ExitStack() as ends:
        cluster: list[Client] = []
        for recipe_path in study.recipes:
            recipe, data = _prepared(base / recipe_path, say)
            for training in _trainings(study, recipe_path.stem):
                key = _key(study, training, recipe, data)
                rows = _done(folder / training.name, key)
                if rows is None:
                    if training.workers > 1 and not cluster:
                        cluster.append(ends.enter_context(opened(_largest(study))))
                    say(f"{training.name} ...")
                    rows = _trained(
                        study, training, recipe, data, folder=folder / training.name, key=key, cluster=cluster, say=say
                    )
                    _keep(folder / training.name, key, rows)
                say(f"{training.name}: loss {rows[-1]['loss']:.4f}, Dice {rows[-1]['dice']:.4f}")
                courses.append(Course(training=training, rows=rows))
    return study, courses


def _key(study: TrainingStudy, training: Training, recipe: LungRecipe, data: LungData) -> str:
    """What decides a result: the settings, the images themselves, and the program."""
    return digest(
        VERSION,
        asdict(recipe),
        asdict(training),
        _plan(study, training),
        data.images,
        data.masks,
        data.image_parts,
        data.chests,
    )


def _prepared(path: Path, say: Say) -> tuple[LungRecipe, LungData]:
    document = Document.read(path)
    perform("data", document, say=say, progress=lambda *_: None)
    recipe = rooted(document.parsed(LungRecipe), path)
    run = Run(recipe=cast(Any, recipe), progress=lambda *_: None)
    return recipe, data_of(run)


def _trainings(study: TrainingStudy, network: str) -> Iterator[Training]:
    for seed in study.seeds:
        yield Training(network=network, mode="local", workers=1, seed=seed)
        for mode in study.modes:
            for workers in study.workers:
                yield Training(network=network, mode=mode, workers=workers, seed=seed)


def _plan(study: TrainingStudy, training: Training) -> Plan:
    return Plan(
        workers=training.workers,
        mode=cast(Any, training.mode),
        server=cast(Any, study.server),
        notes_every=study.log_every,
    )


def _largest(study: TrainingStudy) -> Plan:
    return Plan(workers=max(study.workers), mode="async", server=cast(Any, study.server))


def _trained(
    study: TrainingStudy,
    training: Training,
    recipe: LungRecipe,
    data: LungData,
    *,
    folder: Path,
    key: str,
    cluster: Sequence[Client],
    say: Say,
) -> list[dict[str, Any]]:
    """Train, or resume; a row for each epoch. The log is written beside it, and read again into CSV."""
    own = recipe.training
    joined = training.workers if training.mode in ("sync-join", "async") else 1
    own = replace(own, seed=training.seed, steps_per_epoch=own.steps_per_epoch * joined)
    log = _Log(folder / LINES, key)

    def look(epoch: Epoch, row: Mapping[str, Any]) -> None:
        rate, first = rates(own.stages[-1], epoch.number - 1)(1.0), (row["epoch"] - 1) * own.steps_per_epoch
        log.keep(row["epoch"], list(log_lines(epoch.notes, row, first_iteration=first, rate=rate)))

    trainer = DividedTrainer(
        _plan(study, training), open_cluster=lambda: contextlib.nullcontext(cluster[0]), say=say, look=look
    )
    weights, history = trainer.lung_fields(replace(recipe, training=own), data, folder=folder)
    save_weights(folder / "weights.npz", weights)
    write_atomically(folder / "training.log", "\n".join([*log.lines, ""]).encode())
    write_atomically(folder / "training.csv", as_csv(parsed("\n".join(log.lines))).encode())
    samples = own.steps_per_epoch * (own.masks_per_step + own.checks_per_step)
    return [{**row, "samples": row["epoch"] * samples} for row in history]


class _Log:
    """The lines of a training's log by epoch, in a file: those of a training that was ended are there as it resumes."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        found = _read(path)
        self._epochs: dict[str, list[str]] = found["epochs"] if found.get("key") == key else {}

    @property
    def lines(self) -> list[str]:
        """All of them, in order."""
        return [line for epoch in sorted(self._epochs, key=int) for line in self._epochs[epoch]]

    def keep(self, epoch: int, lines: list[str]) -> None:
        """Keep those of an epoch, in place of what an earlier attempt at it came to."""
        self._epochs[str(epoch)] = lines
        write_atomically(self._path, json.dumps({"key": self._key, "epochs": self._epochs}).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        return decoded(path.read_bytes(), dict[str, Any])
    except (OSError, ValueError):
        return {}


def _done(folder: Path, key: str) -> list[dict[str, Any]] | None:
    found = _read(folder / RESULT)
    return list(found["rows"]) or None if found.get("key") == key else None


def _keep(folder: Path, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    write_atomically(folder / RESULT, json.dumps({"key": key, "rows": rows}, indent=1).encode())
    for name in (CHECKPOINT, LINES):
        (folder / name).unlink(missing_ok=True)
