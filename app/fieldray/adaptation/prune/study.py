"""A pruning study on a public data set: each law and each one-shot baseline from one original, timed in one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.engine import EngineSettings
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.fit import Effort, Labelled, fit, quality
from fieldray.adaptation.networks import vgg16
from fieldray.adaptation.prune.arrays import ArrayTask
from fieldray.adaptation.prune.baselines import Baseline, one_shot
from fieldray.adaptation.prune.loop import prune
from fieldray.adaptation.prune.recipe import PruneRecipe
from fieldray.adaptation.prune.record import Iteration, RunFolder
from fieldray.adaptation.prune.timing import Network, Timed, time_networks
from fieldray.adaptation.specification import Specification, multiply_adds, parameters, specification_from_json
from fieldray.adaptation.tables import parse, read_toml
from fieldray.adaptation.weights import Weights, initial_weights, load_weights, save_weights
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

_REPRESENTATIVE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The network to prune: VGG-16 at a width (1 = as published), trained from its initial weights."""

    training: Effort
    width: float = 1.0
    dropout: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """An .npz with x_train, y_train, x_test, y_test (uint8). The parts are drawn; 0 training images: all others."""

    file: Path
    validation: int = 5000
    training: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecipe(PruneRecipe):
    """One pruning run by its name.

    continues    another run, whose last network that kept the quality is where this one begins
    """

    name: str
    continues: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecipe:
    """One-shot pruning: how the channels are chosen, the share kept of every set, and the training after it."""

    kind: Baseline
    share: float
    training: Effort
    calibration: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecipe:
    """The whole study. Paths count from the recipe's folder.

    run        the run folder
    results    where the table is kept beside it
    """

    name: str
    kind: Literal["pruning-study"]
    run: Path
    results: Path
    seed: int
    data: Data
    original: Original
    runs: tuple[RunRecipe, ...]
    baselines: tuple[BaselineRecipe, ...] = ()
    threads: int = 1

    def __post_init__(self) -> None:
        names = [run.name for run in self.runs]
        for index, run in enumerate(self.runs):
            if run.name in names[:index] or (run.continues and run.continues not in names[:index]):
                raise ValueError(f"run {run.name}: names differ, and it continues a run above it")


def is_study(path: Path) -> bool:
    """Whether a recipe is one of a study. Raises UsageProblem if it cannot be read."""
    return read_toml(path).get("kind") == "pruning-study"


def read_study(path: Path) -> StudyRecipe:
    """The recipe with its paths made whole. Raises UsageProblem naming the key that is wrong."""
    recipe, base = parse(StudyRecipe, read_toml(path), where="recipe"), path.resolve().parent
    data = replace(recipe.data, file=base / recipe.data.file)
    return replace(recipe, run=base / recipe.run, results=base / recipe.results, data=data)


def run_study(path: Path, *, say: Callable[[str], None]) -> None:
    """Run a study's recipe to its end, or go on with it."""
    Study(read_study(path), say=say).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    training: Labelled
    validation: Labelled
    test: Labelled


def _read_parts(recipe: Data, *, seed: int) -> _Parts:
    path = recipe.file
    try:
        with np.load(path, allow_pickle=False) as arrays:
            kept = {name: arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    except (OSError, ValueError, KeyError) as problem:
        raise UsageProblem(reason("recipe_unreadable", path=path, detail=problem)) from problem
    # The published order may be by class.
    order = np.random.default_rng(seed).permutation(len(kept["x_train"]))
    labels = int(kept["y_train"].max()) + 1
    drawn = _labelled(kept["x_train"][order], kept["y_train"][order], labels=labels)
    stop = recipe.validation + recipe.training if recipe.training else None
    test = _labelled(kept["x_test"], kept["y_test"], labels=labels)
    return _Parts(drawn.part(recipe.validation, stop), drawn.part(0, recipe.validation), test)


def _labelled(images: NDArray[np.uint8], classes: NDArray[np.uint8], *, labels: int) -> Labelled:
    scaled = images[..., None].astype(np.float32) / np.float32(255)
    return Labelled(scaled, np.eye(labels, dtype=np.float32)[classes])


class Study:
    """The steps of a study in one folder; each goes on where it was ended."""

    def __init__(
        self,
        recipe: StudyRecipe,
        *,
        say: Callable[[str], None] = lambda _: None,
        timer: Callable[..., dict[str, Timed]] = time_networks,
    ) -> None:
        """`say` is told what happens."""
        self._recipe, self._folder, self._say, self._timer = recipe, recipe.run, say, timer
        self._parts = _read_parts(recipe.data, seed=recipe.seed)
        self._settings = EngineSettings(weight_decay=0.0, loss="categorical", threads=recipe.threads)

    def run(self) -> dict[str, Any]:
        """Everything that is not done yet, and then the report."""
        for run in self._recipe.runs:
            self.run_law(run)
        for row in self._recipe.baselines:
            self.run_baseline(row)
        return self.report()

    def report(self) -> dict[str, Any]:
        """Time and test every network there is so far, in one go; the results, also kept where the recipe says."""
        networks = {"original": self.original()}
        for run in self._recipe.runs:
            folder = self._run_folder(run)
            for iteration in folder.iterations()[1:]:
                networks[f"{run.name}/{iteration.number}"] = folder.network(iteration.number)
        for row in self._recipe.baselines:
            if (self._folder / f"{_baseline_name(row)}.npz").is_file():
                networks[_baseline_name(row)] = self.run_baseline(row)
        results = self._results(networks)
        write_atomically(self._recipe.results, (json.dumps(results, indent=1) + "\n").encode())
        return results

    def original(self) -> tuple[Specification, Weights]:
        """The trained original; trained once, then kept."""
        recipe = self._recipe.original
        specification = vgg16(dropout=recipe.dropout).scaled(recipe.width)
        path = self._folder / "original.npz"
        if not path.is_file():
            self._say("training the original")
            start = initial_weights(specification, seed=self._recipe.seed)
            save_weights(path, self._fit(specification, start, recipe.training))
        return specification, load_weights(path)

    def _fit(self, specification: Specification, weights: Weights, effort: Effort) -> Weights:
        def progress(step: int, steps: int, loss: float) -> None:
            if step % max(1, steps // 20) == 0:
                self._say(f"  step {step} of {steps}, loss {loss:.3f}")

        data, seed = self._parts.training, self._recipe.seed
        trained = fit(
            specification, weights, data=data, effort=effort, seed=seed, settings=self._settings, progress=progress
        )
        return trained[0]

    def run_law(self, run: RunRecipe) -> str:
        """Prune by one set of laws; the rule that ended it."""
        self._say(f"pruning: {run.name}")
        task = self._task(calibration=run.calibration, batch_sizes=run.batch_sizes)
        return prune(
            task,
            run.plan(self._recipe.seed),
            folder=self._run_folder(run),
            original=lambda: self._beginning(run),
            progress=lambda row: self._say(f"  {_line(row)}"),
        )

    def _task(self, *, calibration: int, batch_sizes: tuple[int, ...] = ()) -> ArrayTask:
        return ArrayTask(
            training=self._parts.training,
            validation=self._parts.validation,
            settings=self._settings,
            calibration=calibration,
            batch_sizes=batch_sizes,
        )

    def _beginning(self, run: RunRecipe) -> tuple[Specification, Weights]:
        if not run.continues:
            return self.original()
        before = next(other for other in self._recipe.runs if other.name == run.continues)
        folder = self._run_folder(before)
        kept = [row for row in folder.iterations() if row.quality >= before.stop.lowest_quality]
        return folder.network(kept[-1].number)

    def _run_folder(self, run: RunRecipe) -> RunFolder:
        return RunFolder(self._folder / run.name, fingerprint=f"{run.fingerprint} {self._recipe.original}")

    def run_baseline(self, row: BaselineRecipe) -> tuple[Specification, Weights]:
        """Cut once, train once; kept."""
        folder, name = self._folder, _baseline_name(row)
        if not (folder / f"{name}.npz").is_file():
            self._say(f"one-shot pruning: {row.kind}, {row.share:g} of each layer's channels kept")
            whole = self.original()
            keep = one_shot(*whole, kind=row.kind, share=row.share, seed=self._recipe.seed)
            task = self._task(calibration=row.calibration)
            specification, weights = task.cut(*whole, keep=keep)
            weights = task.retrain(specification, weights, effort=row.training, seed=self._recipe.seed)
            write_atomically(folder / f"{name}.json", specification.to_json().encode())
            save_weights(folder / f"{name}.npz", weights)
        text = (folder / f"{name}.json").read_text(encoding="utf-8")
        return specification_from_json(text), load_weights(folder / f"{name}.npz")

    def _results(self, networks: Mapping[str, Network]) -> dict[str, Any]:
        self._say("timing and testing every network")
        images = (self._parts.training.images[:_REPRESENTATIVE] * 255).round().astype(np.uint8)
        timed = self._timer(networks, images=images, settings=self._settings)
        rows = {name: self._row(name, network, timed, networks) for name, network in networks.items()}
        names = [_baseline_name(row) for row in self._recipe.baselines]
        return {
            "study": self._recipe.name,
            "original": rows["original"],
            "runs": {run.name: self._table(run, rows) for run in self._recipe.runs},
            "baselines": {name: rows[name] for name in names if name in rows},
        }

    def _row(
        self,
        name: str,
        network: Network,
        timed: Mapping[str, Timed],
        networks: Mapping[str, Network],
    ) -> dict[str, Any]:
        whole, here = parameters(networks["original"][0]), parameters(network[0])
        right, _ = quality(*network, data=self._parts.test, settings=self._settings)
        return {
            "parameters": here,
            "times_fewer_parameters": whole / here,
            "removed_share": 1 - here / whole,
            "multiply_adds": multiply_adds(network[0]),
            "test_accuracy": right,
            "milliseconds_per_image": timed[name].milliseconds,
            "speed_up": timed[name].against(timed["original"]),
            "int8_bytes": timed[name].int8_bytes,
            "channels": dict(network[0].channels),
        }

    def _table(self, run: RunRecipe, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        iterations = self._run_folder(run).iterations()
        table = [
            {
                "iteration": row.number,
                "settings": None if row.settings is None else asdict(row.settings),
                "validation_accuracy_before_retraining": row.quality_before,
                "validation_accuracy": row.quality,
                "batch_size_proposed": row.batch_size_proposed,
                "wall_seconds": row.wall_seconds,
                **(rows[f"{run.name}/{row.number}"] if row.number else {}),
            }
            for row in iterations
        ]
        why = run.stop.why(iterations) if iterations else None
        return {"stopped_by": why or "not finished", "iterations": table}


def _baseline_name(row: BaselineRecipe) -> str:
    return f"{row.kind}-{row.share:g}"


def _line(row: Iteration) -> str:
    return (
        f"{row.number}: {row.parameters} parameters, accuracy {row.quality_before:.4f} before and {row.quality:.4f} "
        f"after retraining, {row.seconds_per_image * 1e3:.3f} ms an image, {row.wall_seconds:.0f} s"
    )
