"""Run a pruning study on a public data set: several ways to prune one original network, compared with baselines.

A baseline is the original network, pruned in one step. The times of all networks are measured together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.files import digest, json_bytes, require_publication_writable, write_atomically, write_published
from fieldray_adapt.networks.specification import (
    initial_weights,
    load_network,
    load_weights,
    save_network,
    save_weights,
)
from fieldray_adapt.prune.conversion import Conversion, convert_and_test, read_json_if_present
from fieldray_adapt.prune.iterations import Iteration, PruningRunFolder
from fieldray_adapt.prune.loop import prune
from fieldray_adapt.prune.recipe import BaselineRecipe, PruningRunRecipe, ScratchTraining, StudyData, StudyRecipe
from fieldray_adapt.prune.selection import select_in_one_shot
from fieldray_adapt.prune.study_report import write_report
from fieldray_adapt.prune.study_results import (
    ORIGINAL_NETWORK_NAME,
    IterationFigures,
    MeasuredIteration,
    MillisecondsByTimingKind,
    NetworkFigures,
    PruningRun,
    StudyResults,
    iteration_figures,
    network_figures,
)
from fieldray_adapt.prune.tasks import ArrayPruningTask, without_dropout
from fieldray_adapt.run import Progress as RunProgress
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.loop import (
    EpochFigures,
    LabelledImages,
    Progress,
    distillation_targets,
    measure_accuracy,
    remove_checkpoints,
    train_on_arrays,
)
from fieldray_adapt.training.profile import PROFILE_FILE_NAME, Network, Profile, time_networks

_KEY_LENGTH: Final = 12  # characters of the digest in file names


def run_study(
    recipe: StudyRecipe, *, step: str, say: Callable[[str], None], progress: RunProgress = lambda *_: None
) -> None:
    """Run or resume a pruning study to the end. The step "report" only reports the networks made until now."""
    require_publication_writable(recipe.results, recipe.results.with_name("report.html"))
    study = PruningStudy(recipe, say=say, progress=progress)
    study.report() if step == "report" else study.run()


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    training: LabelledImages
    validation: LabelledImages
    test: LabelledImages


def _read_parts(recipe: StudyData, *, seed: int) -> _Parts:
    path = recipe.file
    try:
        with np.load(path, allow_pickle=False) as arrays:
            kept = {name: arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    except (OSError, ValueError, KeyError) as problem:
        raise UsageProblem(reason("data_unreadable", path=path, detail=problem)) from problem
    # Shuffled, because the published order may be by class.
    order = np.random.default_rng(seed).permutation(len(kept["x_train"]))
    labels = int(kept["y_train"].max()) + 1
    drawn = _labelled(kept["x_train"][order], kept["y_train"][order], labels=labels)
    stop = recipe.validation + recipe.training if recipe.training else None
    test = _labelled(kept["x_test"], kept["y_test"], labels=labels)
    return _Parts(drawn.slice_images(recipe.validation, stop), drawn.slice_images(0, recipe.validation), test)


def _labelled(images: NDArray[np.uint8], classes: NDArray[np.uint8], *, labels: int) -> LabelledImages:
    scaled = images[..., None].astype(np.float32) / np.float32(255)
    return LabelledImages(scaled, np.eye(labels, dtype=np.float32)[classes])


class PruningStudy:
    """The steps of a pruning study, with results in one folder. Each method resumes interrupted work."""

    def __init__(
        self,
        recipe: StudyRecipe,
        *,
        say: Callable[[str], None] = lambda _: None,
        progress: RunProgress = lambda *_: None,
        timer: Callable[..., Mapping[str, MillisecondsByTimingKind]] = time_networks,
        tester: Callable[..., Conversion] = convert_and_test,
    ) -> None:
        """Read the images of a pruning study. Raises UsageProblem (data_unreadable).

        Parameters
        ----------
        say
            A function that is called with each message for the user.
        progress
            A function that is called with the name of the work, the finished parts and all parts.
        timer, tester
            The function that measures the times of networks, and the function that converts and tests a network.
        """
        self._recipe, self._folder, self._say, self._timer = recipe, recipe.run, say, timer
        self._progress, self._tester = progress, tester
        self._parts = _read_parts(recipe.data, seed=recipe.seed)
        self._key = digest(self._parts, recipe.original, recipe.seed)
        self._settings = EngineSettings(weight_decay=0.0, loss="categorical", threads=recipe.threads)
        self._training_settings = replace(self._settings, threads=recipe.training_threads)

    def run(self) -> StudyResults:
        """Perform all work of the study that is not done, and write results and report. Returns the results."""
        for run in self._recipe.runs:
            self.run_pruning(run)
        for row in self._recipe.baselines:
            self.run_baseline(row)
        if scratch := self._recipe.scratch:
            for name in scratch.runs:
                for iteration in self._run_folder(self._recipe.pruning_run(name)).iterations()[1:]:
                    for epochs in (scratch.training.epochs, *scratch.epochs):
                        self._from_random_weights(f"{name}/{iteration.number}", scratch, epochs=epochs)
        return self.report()

    def report(self) -> StudyResults:
        """Test and time all networks made until now. Writes the file `results` of the recipe, and report.html."""
        networks = {ORIGINAL_NETWORK_NAME: self.original_network()}
        for run in self._recipe.runs:
            folder = self._run_folder(run)
            for iteration in folder.iterations()[1:]:
                networks[f"{run.name}/{iteration.number}"] = folder.network_after_iteration(iteration.number)
        for row in self._recipe.baselines:
            if self._baseline_path(row).is_file():
                networks[row.name] = self.run_baseline(row)
        results = self._results(networks)
        write_published(self._recipe.results, json_bytes(results) + b"\n")
        write_report(self._recipe.results.with_name("report.html"), results)
        return results

    def original_network(self) -> Network:
        """Return the trained original network. It is trained on the first call, and stored in the study's folder."""
        recipe = self._recipe.original
        specification = recipe.specification()
        path = self._folder / f"original-{self._key[:_KEY_LENGTH]}.npz"
        if not path.is_file():
            self._say("training the original")
            trained = train_on_arrays(
                specification,
                initial_weights(specification, seed=self._recipe.seed),
                data=self._parts.training,
                effort=recipe.training,
                seed=self._recipe.seed,
                settings=replace(self._training_settings, precision=recipe.precision),
                folder=self._folder / ORIGINAL_NETWORK_NAME,
                progress=self._epoch_progress(ORIGINAL_NETWORK_NAME),
            )
            save_weights(path, trained)
            remove_checkpoints(self._folder / ORIGINAL_NETWORK_NAME)
        return specification, load_weights(path)

    def _epoch_progress(self, what: str) -> Progress:
        """Return a callback that reports each finished part of a training as progress and as a line of text.

        `what` is the name of the training.
        """

        def progress(row: EpochFigures) -> None:
            self._progress(f"{what}: parts", row.epoch, row.epochs)
            self._say(f"  {what}: part {row.epoch} of {row.epochs}, loss {row.loss:.3f}")

        return progress

    def run_pruning(self, run: PruningRunRecipe) -> str:
        """Perform or resume one pruning run. Returns the name of the stop rule that ended the run."""
        folder = self._run_folder(run)
        if (rows := folder.iterations()) and (why := run.stop.reason_to_stop(rows)):
            return why
        self._say(f"pruning: {run.name}")
        if not rows:
            self._take_measured_beginning(run, folder)
        return prune(
            self._task(run.name, run=run),
            run,
            folder=folder,
            seed=self._recipe.seed,
            original=lambda: self._beginning(run),
            progress=lambda row: self._say(f"  {_line(row)}"),
        )

    def _task(self, name: str, *, run: PruningRunRecipe | BaselineRecipe) -> ArrayPruningTask:
        training = self._parts.training
        if isinstance(run, PruningRunRecipe) and run.teacher:
            teacher, _ = self._network_after(run.teacher, run.teacher_iteration)
            share, temperature = run.teacher_share, run.temperature
            training = distillation_targets(
                training, *teacher, share=share, temperature=temperature, settings=self._training_settings
            )
        return ArrayPruningTask(
            training=training,
            validation=self._parts.validation,
            settings=self._training_settings,
            calibration_image_count=run.calibration,
            candidate_batch_sizes=run.batch_sizes if isinstance(run, PruningRunRecipe) else (),
            folder=self._folder / name,
            progress=self._epoch_progress(name),
        )

    def _take_measured_beginning(self, run: PruningRunRecipe, folder: PruningRunFolder) -> None:
        """Copy the first iterations from another run, because measuring a large original network takes minutes.

        Iteration 0 (the network to start from) is copied from any other run. Iteration 1 is copied only from a run
        whose laws start with equal values.
        """
        if run.continues:
            network, row = self._network_after(run.continues, run.after_iteration)
            folder.add(replace(row, number=0, settings=None, batch_size_proposed=None), *network)
            return
        for other in self._recipe.runs:
            theirs = self._run_folder(other)
            rows = () if other is run or other.continues else theirs.iterations()
            if rows:
                # Equal settings, network and seed give an equal network.
                shared = rows[:2] if _begin_alike(run, other) else rows[:1]
                for row in shared:
                    folder.add(replace(row, batch_size_proposed=None), *theirs.network_after_iteration(row.number))
                return

    def _beginning(self, run: PruningRunRecipe) -> Network:
        return self._network_after(run.continues, run.after_iteration)[0] if run.continues else self.original_network()

    def _network_after(self, name: str, iteration: int | None) -> tuple[Network, Iteration]:
        """Return the network of the run `name` after an iteration, and the iteration's figures.

        `iteration` None selects the last iteration with the required quality. Raises UsageProblem
        (`iteration_missing`).
        """
        run = self._recipe.pruning_run(name)
        folder = self._run_folder(run)
        found = [
            row
            for row in folder.iterations()
            if (row.quality >= run.stop.lowest_quality if iteration is None else row.number == iteration)
        ]
        if not found:
            raise UsageProblem(reason("iteration_missing", run=name, iteration=iteration or 0))
        return folder.network_after_iteration(found[-1].number), found[-1]

    def _run_folder(self, run: PruningRunRecipe) -> PruningRunFolder:
        return PruningRunFolder(self._folder / run.name, fingerprint=f"{run.fingerprint} {self._key}")

    def run_baseline(self, row: BaselineRecipe) -> Network:
        """Return the network of a baseline: the original network, pruned in one step and trained once.

        The network is made on the first call, and stored for later calls.
        """
        path = self._baseline_path(row)
        if not path.is_file():
            self._say(f"one-shot pruning: {row.kind}, {row.share:g} of each layer's channels kept")
            whole = self.original_network()
            keep = select_in_one_shot(*whole, kind=row.kind, share=row.share, seed=self._recipe.seed)
            task = self._task(row.name, run=row)
            specification, weights = task.cut_channels(*whole, keep=keep)
            weights = task.retrain(specification, weights, effort=row.training, seed=self._recipe.seed)
            save_network(path, path.with_suffix(".json"), specification, weights)
        return load_network(path, path.with_suffix(".json"))

    def _baseline_path(self, row: BaselineRecipe) -> Path:
        key = digest(self._key, row)[:_KEY_LENGTH]
        return self._folder / f"{row.name.replace('.', '-')}-{key}.npz"

    def _from_random_weights(
        self, name: str, scratch: ScratchTraining, *, epochs: float, trains: bool = True
    ) -> tuple[float, ...]:
        """Return the test accuracies (0..1) of networks with a pruned network's shape, trained from random weights.

        There is one accuracy for each seed. Each accuracy is stored after its training. `name` is RUN/ITERATION. If
        `trains` is False, only stored accuracies are returned.
        """
        run, _, number = name.partition("/")
        effort = replace(scratch.training, epochs=epochs)
        shape = without_dropout(self._run_folder(self._recipe.pruning_run(run)).network_after_iteration(int(number))[0])
        path = self._folder / "scratch" / f"{digest(self._key, shape, effort)}.json"
        found = read_json_if_present(path, list[float]) or []
        for seed in range(len(found), scratch.seeds if trains else 0):
            self._say(f"from random weights: {name}, {epochs:g} epochs, seed {seed}")
            weights = train_on_arrays(
                shape,
                initial_weights(shape, seed=seed),
                data=self._parts.training,
                effort=effort,
                seed=seed,
                settings=self._training_settings,
                folder=path.parent / path.stem,
                progress=self._epoch_progress(name),
            )
            remove_checkpoints(path.parent / path.stem)
            found.append(measure_accuracy(shape, weights, data=self._parts.test, settings=self._training_settings)[0])
            write_atomically(path, json_bytes(found))
        return tuple(found[: scratch.seeds])

    def _results(self, networks: Mapping[str, Network]) -> StudyResults:
        images = np.rint(self._parts.training.images[: self._recipe.representative] * 255).astype(np.uint8)
        found = {name: self._tested(name, network, images) for name, network in networks.items()}
        self._say("timing every network")
        timed = self._timer(
            networks,
            files={name: one.int8_file for name, one in found.items()},
            images=images,
            settings=self._settings,
            rounds=self._recipe.rounds,
        )
        whole = (networks[ORIGINAL_NETWORK_NAME], timed[ORIGINAL_NETWORK_NAME])
        rows = {
            name: network_figures(networks[name], conversion=found[name], milliseconds=timed[name], original=whole)
            for name in networks
        }
        names = [row.name for row in self._recipe.baselines]
        return StudyResults(
            study=self._recipe.name,
            original=rows[ORIGINAL_NETWORK_NAME],
            runs={run.name: self._table(run, rows) for run in self._recipe.runs},
            baselines={name: rows[name] for name in names if name in rows},
            profile=read_json_if_present(self._folder / "profile" / PROFILE_FILE_NAME, Profile),
        )

    def _tested(self, name: str, network: Network, images: NDArray[np.uint8]) -> Conversion:
        return self._tester(
            network,
            folder=self._folder / "tested" / name.replace("/", "-"),
            images=images,
            test=self._parts.test,
            settings=self._training_settings,
            on_start=lambda: self._say(f"converting and testing {name}"),
        )

    def _table(self, run: PruningRunRecipe, rows: Mapping[str, NetworkFigures]) -> PruningRun:
        iterations = self._run_folder(run).iterations()
        table = tuple(self._table_row(run, iteration, rows) for iteration in iterations)
        why = run.stop.reason_to_stop(iterations) if iterations else None
        return PruningRun(stopped_by=why or "not finished", iterations=table)

    def _table_row(
        self, run: PruningRunRecipe, iteration: Iteration, rows: Mapping[str, NetworkFigures]
    ) -> IterationFigures:
        row, name, scratch = iteration_figures(iteration), f"{run.name}/{iteration.number}", self._recipe.scratch
        if not iteration.number:
            return row
        whole = {**structs.asdict(row), **structs.asdict(rows[name])}
        if not scratch or run.name not in scratch.runs:
            return MeasuredIteration(**whole)
        seeds, *further = (
            self._from_random_weights(name, scratch, epochs=epochs, trains=False)
            for epochs in (scratch.training.epochs, *scratch.epochs)
        )
        by_epochs = {f"{epochs:g}": found for epochs, found in zip(scratch.epochs, further, strict=True)}
        return MeasuredIteration(
            **whole, test_accuracy_from_random_weights=seeds, test_accuracy_from_random_weights_by_epochs=by_epochs
        )


def _begin_alike(run: PruningRunRecipe, other: PruningRunRecipe) -> bool:
    """Return whether two pruning runs have equal settings for iteration 1."""
    rest = [(one.cut_kind, one.largest_share, one.multiple, one.calibration, one.teacher) for one in (run, other)]
    return run.first_settings() == other.first_settings() and rest[0] == rest[1]


def _line(row: Iteration) -> str:
    return (
        f"{row.number}: {row.parameters} parameters, accuracy {row.quality_before:.4f} before and {row.quality:.4f} "
        f"after retraining, {row.seconds_per_image * 1e3:.3f} ms per image, {row.wall_seconds:.0f} s"
    )
