"""A pruning study on a public data set: each law and each one-shot baseline from one original, timed in one run.

Its networks are converted and tested once, then timed alternately, then laid out as a report, which has a table for
each run, and accuracy against iteration and speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray.typed_json import decoded
from fieldray_adapt.files import as_json, digest, publish, reading, require_publishable, write_atomically
from fieldray_adapt.networks.architectures import vgg16_dense
from fieldray_adapt.networks.quantise import quantise
from fieldray_adapt.networks.specification import (
    initial_weights,
    load_network,
    load_weights,
    multiply_adds,
    parameters,
    save_network,
    save_weights,
)
from fieldray_adapt.prune.loop import Iteration, RunFolder, Settings, prune
from fieldray_adapt.prune.recipe import BaselineRecipe, Data, RunRecipe, Scratch, StudyRecipe
from fieldray_adapt.prune.selection import one_shot
from fieldray_adapt.prune.tasks import ArrayTask, without_dropout
from fieldray_adapt.reports.page import Curve, Figure, Part, Report, Section, Table, Text, page, pruning_plots
from fieldray_adapt.run import Progress as RunProgress
from fieldray_adapt.training.engine import (
    EngineSettings,
    EpochFigures,
    Labelled,
    Progress,
    distillation_targets,
    fit,
    quality,
    remove_checkpoints,
)
from fieldray_adapt.training.profile import PROFILE_NAME, Network, Profile, profile_parts, time_networks

T = TypeVar("T")
ORIGINAL: Final = "original"


class NetworkFigures(Struct, frozen=True, kw_only=True):
    """What a network of a study was measured to be, beside the original.

    Attributes
    ----------
    removed_share
        Of the original's parameters, 0..1.
    test_accuracy, test_accuracy_int8
        Of the float network and of its int8 file on the test images, 0..1.
    milliseconds_per_image, speed_up
        By kind, see `time_networks`; the latter is how many times faster than the original of that kind.
    channels
        By the name of the channel set.
    """

    parameters: int
    times_fewer_parameters: float
    removed_share: float
    multiply_adds: int
    test_accuracy: float
    test_accuracy_int8: float
    milliseconds_per_image: dict[str, float]
    speed_up: dict[str, float]
    int8_bytes: int
    channels: dict[str, int]


class IterationFigures(Struct, frozen=True, kw_only=True):
    """What a run recorded of an iteration; accuracies are of the validation part, 0..1."""

    iteration: int
    settings: Settings | None
    validation_accuracy_before_retraining: float
    validation_accuracy: float
    batch_size_proposed: int | None
    wall_seconds: float


class MeasuredIteration(IterationFigures, frozen=True, kw_only=True, omit_defaults=True):
    """An iteration with its network, as in `NetworkFigures`.

    Attributes
    ----------
    test_accuracy_from_random_weights
        What the shape gets right when trained from random weights, by seed; None where the study does not ask for it.
    """

    parameters: int
    times_fewer_parameters: float
    removed_share: float
    multiply_adds: int
    test_accuracy: float
    test_accuracy_int8: float
    milliseconds_per_image: dict[str, float]
    speed_up: dict[str, float]
    int8_bytes: int
    channels: dict[str, int]
    test_accuracy_from_random_weights: tuple[float, ...] | None = None


class RunResults(Struct, frozen=True, kw_only=True):
    """A run's iterations, the first without a network of its own, and the rule that ended it."""

    stopped_by: str
    iterations: tuple[IterationFigures, ...]

    @property
    def measured(self) -> list[MeasuredIteration]:
        """Those with a network of their own."""
        return [row for row in self.iterations if isinstance(row, MeasuredIteration)]


class StudyResults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """results.json: the original, its runs and one-shot baselines by name, and the profile where there is one."""

    study: str
    original: NetworkFigures
    runs: dict[str, RunResults]
    baselines: dict[str, NetworkFigures]
    profile: Profile | None = None


class _Tested(Struct, frozen=True, kw_only=True):
    """tested.json: of which network, and the shares of test images that it and its int8 file get right."""

    key: str
    accuracy: float
    accuracy_int8: float


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """A network's int8 file, and the share of test images that the float network and the int8 file get right."""

    int8: bytes
    accuracy: float
    accuracy_int8: float


def convert_and_test(
    network: Network,
    *,
    folder: Path,
    images: NDArray[np.uint8],
    test: Labelled,
    settings: EngineSettings,
    say: Callable[[], None] = lambda: None,
) -> Conversion:
    """Convert and test a network, or take what `folder` keeps of this very one; `say` is told if there is work to do.

    Parameters
    ----------
    images
        Training images (n, height, width, channels) uint8 that decide the ranges of the integers.
    """
    key, path, file = digest(*network, images, test), folder / "tested.json", folder / "int8.tflite"
    tested = _read(path, _Tested)
    if tested is None or tested.key != key:
        say()
        data = quantise(*network, representative=images).data
        right, _ = quality(*network, data=test, settings=settings)
        write_atomically(file, data)
        tested = _Tested(key=key, accuracy=right, accuracy_int8=file_accuracy(data, test))
        write_atomically(path, as_json(tested))
    return Conversion(file.read_bytes(), tested.accuracy, tested.accuracy_int8)


def _read(path: Path, kind: type[T]) -> T | None:
    """What a JSON file of a run holds, None without the file. Raises StorageProblem (run_file_damaged)."""
    if not path.is_file():
        return None
    with reading(path):
        return decoded(path.read_bytes(), kind)


def file_accuracy(data: bytes, test: Labelled) -> float:
    """Share of images, 0..1, whose highest score from a TensorFlow Lite file (uint8 in and out) is the right one."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    entrance, exit_ = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    right = 0
    for image, targets in zip(test.images, test.targets, strict=True):
        interpreter.set_tensor(entrance, np.rint(image[None] * 255).astype(np.uint8))
        interpreter.invoke()
        right += int(interpreter.get_tensor(exit_)[0].argmax() == targets.argmax())
    return right / len(test)


Milliseconds = Mapping[str, float]
"""Of an image, by kind (see `time_networks`)."""


def row_of(
    network: Network, *, of: Conversion, timed: Milliseconds, original: tuple[Network, Milliseconds]
) -> NetworkFigures:
    """A network's line of the table; `original` is what it is compared with."""
    whole, here = parameters(original[0][0]), parameters(network[0])
    return NetworkFigures(
        parameters=here,
        times_fewer_parameters=whole / here,
        removed_share=1 - here / whole,
        multiply_adds=multiply_adds(network[0]),
        test_accuracy=of.accuracy,
        test_accuracy_int8=of.accuracy_int8,
        milliseconds_per_image=dict(timed),
        speed_up={kind: original[1][kind] / own for kind, own in timed.items()},
        int8_bytes=len(of.int8),
        channels=dict(network[0].channels),
    )


def recorded(iteration: Iteration) -> IterationFigures:
    """What a run recorded of an iteration, as the table has it."""
    return IterationFigures(
        iteration=iteration.number,
        settings=iteration.settings,
        validation_accuracy_before_retraining=iteration.quality_before,
        validation_accuracy=iteration.quality,
        batch_size_proposed=iteration.batch_size_proposed,
        wall_seconds=iteration.wall_seconds,
    )


_HEAD: Final = (
    *("network", "parameters", "removed", "times fewer", "accuracy before retraining", "after", "test", "test, int8"),
    "test, from random weights",
    *("times faster: int8", "float32, batches of 100"),
)
_CURVES: Final = """Accuracy on the test part against the iteration (dotted: on the validation part before retraining),
how many times faster the int8 file is than the original's, and one against the other. Crosses are one-shot pruning."""
_NOTE: Final = """Accuracy before and after retraining is of the validation part; "test" is the float network on the
test part, which chose nothing, and "test, int8" the int8 file; "from random weights" is the same shape trained anew:
the median of its seeds, the least and the largest. The last two columns are times faster than the original
of the same kind on one thread: the int8 file image by image, and float32 in the engine that trains in batches of 100.
All networks were timed alternating in one run."""


def write_report(path: Path, results: StudyResults) -> None:
    """Write the page of a study's results. Raises StorageProblem."""
    runs = {name: found for name, found in results.runs.items() if found.measured}
    curves = [_curve(name, found.measured, results.original) for name, found in runs.items()]
    others = {name: (row.speed_up["int8"], row.test_accuracy) for name, row in results.baselines.items()}
    profiled = profile_parts(results.profile) if results.profile else []
    sections = [
        Section(title="Original", parts=[_table({ORIGINAL: results.original}), _milliseconds(results.original)]),
        Section(title="Accuracy and speed", parts=_plots(curves, others)),
        *[Section(title=f"Run {name}", parts=_run(found)) for name, found in runs.items()],
        Section(title="One-shot pruning", parts=[_table(results.baselines)] if results.baselines else []),
        Section(title="Time per iteration of the original", parts=profiled),
    ]
    publish(path, page(Report(title=f"Pruning study {results.study}", lead=_NOTE, sections=sections)))


def _plots(curves: Sequence[Curve], others: Mapping[str, tuple[float, float]]) -> list[Part]:
    if not curves:
        return []
    return [Figure(svg=pruning_plots(curves, quality="test accuracy", points=others), caption=_CURVES)]


def _run(found: RunResults) -> list[Part]:
    names = [field.name for field in fields(Settings)]
    settings = [
        [str(row.iteration), *(f"{getattr(row.settings, name):.4g}" for name in names)] for row in found.measured
    ]
    head = ("iteration", *(name.replace("_", " ") for name in names))
    return [
        Text(f"Stopped by: {found.stopped_by.replace('_', ' ')}."),
        _table({str(row.iteration): row for row in found.measured}),
        Table(head=head, rows=settings, caption="The settings of each iteration."),
    ]


def _table(rows: Mapping[str, NetworkFigures] | Mapping[str, MeasuredIteration]) -> Table:
    return Table(head=_HEAD, rows=[_cells(name, row) for name, row in rows.items()])


def _cells(name: str, row: NetworkFigures | MeasuredIteration) -> list[str]:
    validation, seeds = ["-", "-"], None
    if isinstance(row, MeasuredIteration):
        validation = [f"{row.validation_accuracy_before_retraining:.4f}", f"{row.validation_accuracy:.4f}"]
        seeds = row.test_accuracy_from_random_weights
    return [
        name,
        f"{row.parameters:,}",
        f"{row.removed_share:.2%}",
        f"{row.times_fewer_parameters:.1f}",
        *validation,
        f"{row.test_accuracy:.4f}",
        f"{row.test_accuracy_int8:.4f}",
        _spread(seeds or ()),
        *(f"{row.speed_up[kind]:.1f}" for kind in ("int8", "engine_batch") if kind in row.speed_up),
    ]


def _spread(values: Sequence[float]) -> str:
    """The median, least and largest of the seeds."""
    return f"{np.median(values):.4f} ({min(values):.4f} to {max(values):.4f})" if values else "-"


def _milliseconds(row: NetworkFigures) -> Table:
    kinds = [[kind.replace("_", " "), f"{taken:.3f}"] for kind, taken in row.milliseconds_per_image.items()]
    return Table(head=("the original as", "ms per image"), rows=kinds)


def _curve(name: str, rows: Sequence[MeasuredIteration], original: NetworkFigures) -> Curve:
    return Curve(
        name=name,
        quality=[original.test_accuracy, *(row.test_accuracy for row in rows)],
        before=[None, *(row.validation_accuracy_before_retraining for row in rows)],
        speed_up=[original.speed_up["int8"], *(row.speed_up["int8"] for row in rows)],
    )


_KEY_LENGTH: Final = 12  # of the digest in a file's name: what was made otherwise has another name


def run_study(
    recipe: StudyRecipe, *, step: str, say: Callable[[str], None], progress: RunProgress = lambda *_: None
) -> None:
    """Run a study to its end, or resume it; step "report" tests, times and reports what there is so far."""
    require_publishable(recipe.results, recipe.results.with_name("report.html"))
    study = Study(recipe, say=say, progress=progress)
    study.report() if step == "report" else study.run()


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
        raise UsageProblem(reason("data_unreadable", path=path, detail=problem)) from problem
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
    """The steps of a study in one folder; each resumes after it was stopped."""

    def __init__(
        self,
        recipe: StudyRecipe,
        *,
        say: Callable[[str], None] = lambda _: None,
        progress: RunProgress = lambda *_: None,
        timer: Callable[..., Mapping[str, Milliseconds]] = time_networks,
        tester: Callable[..., Conversion] = convert_and_test,
    ) -> None:
        """`say` is told what happens, `progress` how far it is; networks are converted and tested, and then timed."""
        self._recipe, self._folder, self._say, self._timer = recipe, recipe.run, say, timer
        self._progress, self._tester = progress, tester
        self._parts = _read_parts(recipe.data, seed=recipe.seed)
        self._key = digest(self._parts, recipe.original, recipe.seed)
        self._settings = EngineSettings(weight_decay=0.0, loss="categorical", threads=recipe.threads)
        self._training_settings = replace(self._settings, threads=recipe.training_threads)

    def run(self) -> StudyResults:
        """Everything that is not done yet, and then the report."""
        for run in self._recipe.runs:
            self.run_law(run)
        for row in self._recipe.baselines:
            self.run_baseline(row)
        if scratch := self._recipe.scratch:
            for name in scratch.runs:
                for iteration in self._run_folder(self._recipe.run_named(name)).iterations()[1:]:
                    self._from_random_weights(f"{name}/{iteration.number}", scratch)
        return self.report()

    def report(self) -> StudyResults:
        """Test and time every network there is so far, in one go; results and report, kept where the recipe says."""
        networks = {ORIGINAL: self.original()}
        for run in self._recipe.runs:
            folder = self._run_folder(run)
            for iteration in folder.iterations()[1:]:
                networks[f"{run.name}/{iteration.number}"] = folder.network(iteration.number)
        for row in self._recipe.baselines:
            if self._baseline_path(row).is_file():
                networks[row.name] = self.run_baseline(row)
        results = self._results(networks)
        publish(self._recipe.results, as_json(results) + b"\n")
        write_report(self._recipe.results.with_name("report.html"), results)
        return results

    def original(self) -> Network:
        """The trained original; trained once for each data, seed and way of training, then kept."""
        recipe = self._recipe.original
        specification = vgg16_dense(dropout=recipe.dropout).scaled(recipe.width)
        path = self._folder / f"original-{self._key[:_KEY_LENGTH]}.npz"
        if not path.is_file():
            self._say("training the original")
            trained = fit(
                specification,
                initial_weights(specification, seed=self._recipe.seed),
                data=self._parts.training,
                effort=recipe.training,
                seed=self._recipe.seed,
                settings=replace(self._training_settings, precision=recipe.precision),
                folder=self._folder / ORIGINAL,
                progress=self._epoch_progress(ORIGINAL),
            )
            save_weights(path, trained)
            remove_checkpoints(self._folder / ORIGINAL)
        return specification, load_weights(path)

    def _epoch_progress(self, what: str) -> Progress:
        """Told of each part of a training: the bar, and a line."""

        def progress(row: EpochFigures) -> None:
            self._progress(f"{what}: parts", row.epoch, row.epochs)
            self._say(f"  {what}: part {row.epoch} of {row.epochs}, loss {row.loss:.3f}")

        return progress

    def run_law(self, run: RunRecipe) -> str:
        """Prune by one set of laws; the rule that ended it."""
        folder = self._run_folder(run)
        if (rows := folder.iterations()) and (why := run.stop.why(rows)):
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

    def _task(self, name: str, *, run: RunRecipe | BaselineRecipe) -> ArrayTask:
        training = self._parts.training
        if isinstance(run, RunRecipe) and run.teacher:
            teacher, _ = self._network_after(run.teacher, run.teacher_iteration)
            share, temperature = run.teacher_share, run.temperature
            training = distillation_targets(
                training, *teacher, share=share, temperature=temperature, settings=self._training_settings
            )
        return ArrayTask(
            training=training,
            validation=self._parts.validation,
            settings=self._training_settings,
            calibration=run.calibration,
            batch_sizes=run.batch_sizes if isinstance(run, RunRecipe) else (),
            folder=self._folder / name,
            progress=self._epoch_progress(name),
        )

    def _take_measured_beginning(self, run: RunRecipe, folder: RunFolder) -> None:
        """What another run has measured of the same: a large original takes minutes.

        That is the network it begins with, and the first iteration where the laws begin alike.
        """
        if run.continues:
            network, row = self._network_after(run.continues, run.after_iteration)
            folder.add(replace(row, number=0, settings=None, batch_size_proposed=None), *network)
            return
        for other in self._recipe.runs:
            theirs = self._run_folder(other)
            rows = () if other is run or other.continues else theirs.iterations()
            if rows:
                # The same settings on the same network with the same seed end in the same network.
                shared = rows[:2] if _begin_alike(run, other) else rows[:1]
                for row in shared:
                    folder.add(replace(row, batch_size_proposed=None), *theirs.network(row.number))
                return

    def _beginning(self, run: RunRecipe) -> Network:
        return self._network_after(run.continues, run.after_iteration)[0] if run.continues else self.original()

    def _network_after(self, name: str, iteration: int | None) -> tuple[Network, Iteration]:
        """What a run had after an iteration; None: the last network that kept the quality asked for.

        Raises UsageProblem `iteration_missing`.
        """
        run = self._recipe.run_named(name)
        folder = self._run_folder(run)
        found = [
            row
            for row in folder.iterations()
            if (row.quality >= run.stop.lowest_quality if iteration is None else row.number == iteration)
        ]
        if not found:
            raise UsageProblem(reason("iteration_missing", run=name, iteration=iteration or 0))
        return folder.network(found[-1].number), found[-1]

    def _run_folder(self, run: RunRecipe) -> RunFolder:
        return RunFolder(self._folder / run.name, fingerprint=f"{run.fingerprint} {self._key}")

    def run_baseline(self, row: BaselineRecipe) -> Network:
        """Cut once, train once; kept."""
        path = self._baseline_path(row)
        if not path.is_file():
            self._say(f"one-shot pruning: {row.kind}, {row.share:g} of each layer's channels kept")
            whole = self.original()
            keep = one_shot(*whole, kind=row.kind, share=row.share, seed=self._recipe.seed)
            task = self._task(row.name, run=row)
            specification, weights = task.cut(*whole, keep=keep)
            weights = task.retrain(specification, weights, effort=row.training, seed=self._recipe.seed)
            save_network(path, path.with_suffix(".json"), specification, weights)
        return load_network(path, path.with_suffix(".json"))

    def _baseline_path(self, row: BaselineRecipe) -> Path:
        key = digest(self._key, row)[:_KEY_LENGTH]
        return self._folder / f"{row.name.replace('.', '-')}-{key}.npz"

    def _from_random_weights(self, name: str, scratch: Scratch, *, trains: bool = True) -> list[float]:
        """What the shape of a pruned network gets right of the test part, 0..1, by seed; kept one by one.

        trains  whether what is missing is trained now
        """
        run, _, number = name.partition("/")
        shape = without_dropout(self._run_folder(self._recipe.run_named(run)).network(int(number))[0])
        path = self._folder / "scratch" / f"{digest(self._key, shape, scratch.training)}.json"
        found = _read(path, list[float]) or []
        for seed in range(len(found), scratch.seeds if trains else 0):
            self._say(f"from random weights: {name}, seed {seed}")
            weights = fit(
                shape,
                initial_weights(shape, seed=seed),
                data=self._parts.training,
                effort=scratch.training,
                seed=seed,
                settings=self._training_settings,
                folder=path.parent / path.stem,
                progress=self._epoch_progress(name),
            )
            remove_checkpoints(path.parent / path.stem)
            found.append(quality(shape, weights, data=self._parts.test, settings=self._training_settings)[0])
            write_atomically(path, as_json(found))
        return found[: scratch.seeds]

    def _results(self, networks: Mapping[str, Network]) -> StudyResults:
        images = np.rint(self._parts.training.images[: self._recipe.representative] * 255).astype(np.uint8)
        found = {name: self._tested(name, network, images) for name, network in networks.items()}
        self._say("timing every network")
        timed = self._timer(
            networks,
            files={name: one.int8 for name, one in found.items()},
            images=images,
            settings=self._settings,
            rounds=self._recipe.rounds,
        )
        whole = (networks[ORIGINAL], timed[ORIGINAL])
        rows = {name: row_of(networks[name], of=found[name], timed=timed[name], original=whole) for name in networks}
        names = [row.name for row in self._recipe.baselines]
        return StudyResults(
            study=self._recipe.name,
            original=rows[ORIGINAL],
            runs={run.name: self._table(run, rows) for run in self._recipe.runs},
            baselines={name: rows[name] for name in names if name in rows},
            profile=_read(self._folder / "profile" / PROFILE_NAME, Profile),
        )

    def _tested(self, name: str, network: Network, images: NDArray[np.uint8]) -> Conversion:
        return self._tester(
            network,
            folder=self._folder / "tested" / name.replace("/", "-"),
            images=images,
            test=self._parts.test,
            settings=self._training_settings,
            say=lambda: self._say(f"converting and testing {name}"),
        )

    def _table(self, run: RunRecipe, rows: Mapping[str, NetworkFigures]) -> RunResults:
        iterations = self._run_folder(run).iterations()
        table = tuple(self._table_row(run, iteration, rows) for iteration in iterations)
        why = run.stop.why(iterations) if iterations else None
        return RunResults(stopped_by=why or "not finished", iterations=table)

    def _table_row(self, run: RunRecipe, iteration: Iteration, rows: Mapping[str, NetworkFigures]) -> IterationFigures:
        row, name, scratch = recorded(iteration), f"{run.name}/{iteration.number}", self._recipe.scratch
        if not iteration.number:
            return row
        seeds = None
        if scratch and run.name in scratch.runs:
            seeds = tuple(self._from_random_weights(name, scratch, trains=False))
        whole = {**structs.asdict(row), **structs.asdict(rows[name])}
        return MeasuredIteration(**whole, test_accuracy_from_random_weights=seeds)


def _begin_alike(run: RunRecipe, other: RunRecipe) -> bool:
    """Whether two runs do the same in their first iteration."""
    rest = [(one.cut_kind, one.largest_share, one.multiple, one.calibration, one.teacher) for one in (run, other)]
    return run.first() == other.first() and rest[0] == rest[1]


def _line(row: Iteration) -> str:
    return (
        f"{row.number}: {row.parameters} parameters, accuracy {row.quality_before:.4f} before and {row.quality:.4f} "
        f"after retraining, {row.seconds_per_image * 1e3:.3f} ms per image, {row.wall_seconds:.0f} s"
    )
