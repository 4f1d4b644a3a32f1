"""What a study's networks are worth: converted and tested once, then timed alternately, then laid out as a report.

The report has a table for each run, and accuracy against iteration and speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.engine import EngineSettings
from fieldray_adapt.files import digest, publish, write_atomically
from fieldray_adapt.fit import Labelled, quality
from fieldray_adapt.page import Figure, Part, Report, Section, Table, Text, page
from fieldray_adapt.plots import Curve, pruning_plots
from fieldray_adapt.profile import profile_parts
from fieldray_adapt.prune.loop import Iteration
from fieldray_adapt.prune.timing import Files, Network, Timed, files_of
from fieldray_adapt.specification import multiply_adds, parameters


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """A network's files, and the share of test images that the float network and the int8 file get right."""

    files: Files
    accuracy: float
    accuracy_int8: float


def convert_and_test(
    network: Network,
    *,
    folder: Path,
    images: NDArray[np.uint8],
    test: Labelled,
    settings: EngineSettings,
    with_float: bool = True,
    say: Callable[[], None] = lambda: None,
) -> Conversion:
    """Convert and test a network, or take what `folder` keeps of it; `say` is told if there is work to do.

    Parameters
    ----------
    images
        Training images (n, height, width, channels) uint8 that decide the ranges of the integers.
    with_float
        Make a float32 file too.
    """
    key = digest(*network, images, test, with_float)
    found = _stored(folder, key)
    if found is None:
        say()
        files = files_of(network, images=images, with_float=with_float)
        right, _ = quality(*network, data=test, settings=settings)
        found = Conversion(files, right, file_accuracy(files.int8, test))
        if files.float32 is not None:
            write_atomically(folder / "float32.tflite", files.float32)
        write_atomically(folder / "int8.tflite", files.int8)
        facts = {"key": key, "accuracy": found.accuracy, "accuracy_int8": found.accuracy_int8}
        write_atomically(folder / "tested.json", json.dumps(facts).encode())
    return found


def _stored(folder: Path, key: str) -> Conversion | None:
    """What an earlier run left, if it is of this very network; the facts are written last."""
    path = folder / "tested.json"
    facts = json.loads(path.read_text()) if path.is_file() else {}
    if facts.get("key") != key:
        return None
    whole = folder / "float32.tflite"
    files = Files((folder / "int8.tflite").read_bytes(), whole.read_bytes() if whole.is_file() else None)
    return Conversion(files, facts["accuracy"], facts["accuracy_int8"])


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


def row_of(network: Network, *, of: Conversion, timed: Timed, original: tuple[Network, Timed]) -> dict[str, Any]:
    """A network's line of the table, ready for JSON; `original` is what it is compared with."""
    whole, here = parameters(original[0][0]), parameters(network[0])
    return {
        "parameters": here,
        "times_fewer_parameters": whole / here,
        "removed_share": 1 - here / whole,
        "multiply_adds": multiply_adds(network[0]),
        "test_accuracy": of.accuracy,
        "test_accuracy_int8": of.accuracy_int8,
        "milliseconds_per_image": dict(timed.milliseconds),
        "speed_up": timed.against(original[1]),
        "int8_bytes": timed.int8_bytes,
        "channels": dict(network[0].channels),
    }


def iteration_row(iteration: Iteration, row: Mapping[str, Any]) -> dict[str, Any]:
    """An iteration's line: what its run recorded, and the network's own line."""
    return {
        "iteration": iteration.number,
        "settings": None if iteration.settings is None else asdict(iteration.settings),
        "validation_accuracy_before_retraining": iteration.quality_before,
        "validation_accuracy": iteration.quality,
        "batch_size_proposed": iteration.batch_size_proposed,
        "wall_seconds": iteration.wall_seconds,
        **row,
    }


_HEAD: Final = (
    *("network", "parameters", "removed", "times fewer", "accuracy before retraining", "after", "test", "test, int8"),
    *("times faster: int8", "float32", "float32, batches of 100"),
)
_CURVES: Final = """Accuracy on the test part against the iteration (dotted: on the validation part before retraining),
how many times faster the int8 file is than the original's, and one against the other. Crosses are one-shot pruning."""
_NOTE: Final = """Accuracy before and after retraining is of the validation part; "test" is the float network on the
test part, which chose nothing, and "test, int8" the int8 file. The last three columns are times faster than the
original of the same kind on one thread: the int8 file and the float file image by image, and float32 in the engine that
trains in batches of 100. All networks were timed alternating in one run."""


def write_report(path: Path, results: Mapping[str, Any]) -> None:
    """Write the page of a study's results (as `Study.report` returns them). Raises StorageProblem."""
    runs = {name: found for name, found in results["runs"].items() if len(found["iterations"]) > 1}
    original = results["original"]
    curves = [_curve(name, found["iterations"], original) for name, found in runs.items()]
    others = {name: (row["speed_up"]["int8"], row["test_accuracy"]) for name, row in results["baselines"].items()}
    sections = [
        Section(title="Original", parts=[_table([_cells("original", original)]), _milliseconds(original)]),
        Section(title="Accuracy and speed", parts=_plots(curves, others)),
        *[Section(title=f"Run {name}", parts=_run(found)) for name, found in runs.items()],
        Section(title="One-shot pruning", parts=_baselines(results["baselines"])),
        Section(
            title="Time per iteration of the original",
            parts=profile_parts(results["profile"]) if "profile" in results else [],
        ),
    ]
    publish(path, page(Report(title=f"Pruning study {results['study']}", lead=_NOTE, sections=sections)))


def _plots(curves: Sequence[Curve], others: Mapping[str, tuple[float, float]]) -> list[Part]:
    if not curves:
        return []
    return [Figure(svg=pruning_plots(curves, quality="test accuracy", points=others), caption=_CURVES)]


def _run(found: Mapping[str, Any]) -> list[Part]:
    rows = found["iterations"][1:]
    settings = [[str(row["iteration"]), *(f"{value:.4g}" for value in row["settings"].values())] for row in rows]
    names = [key.replace("_", " ") for key in rows[0]["settings"]]
    return [
        Text(f"Stopped by: {found['stopped_by'].replace('_', ' ')}."),
        _table([_cells(f"{row['iteration']}", row) for row in rows]),
        Table(head=("iteration", *names), rows=settings, caption="The settings of each iteration."),
    ]


def _baselines(rows: Mapping[str, Any]) -> list[Part]:
    return [_table([_cells(name, row) for name, row in rows.items()])] if rows else []


def _table(rows: Sequence[Sequence[str]]) -> Table:
    return Table(head=_HEAD[: len(rows[0])], rows=rows)


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    before, after = row.get("validation_accuracy_before_retraining"), row.get("validation_accuracy")
    accuracies = (before, after, row["test_accuracy"], row["test_accuracy_int8"])
    return [
        name,
        f"{row['parameters']:,}",
        f"{row['removed_share']:.2%}",
        f"{row['times_fewer_parameters']:.1f}",
        *("-" if value is None else f"{value:.4f}" for value in accuracies),
        *(f"{row['speed_up'][kind]:.1f}" for kind in ("int8", "float32", "engine_batch") if kind in row["speed_up"]),
    ]


def _milliseconds(row: Mapping[str, Any]) -> Table:
    kinds = [[kind.replace("_", " "), f"{taken:.3f}"] for kind, taken in row["milliseconds_per_image"].items()]
    return Table(head=("the original as", "ms per image"), rows=kinds)


def _curve(name: str, rows: list[Mapping[str, Any]], original: Mapping[str, Any]) -> Curve:
    networks = [rows[0] if "test_accuracy" in rows[0] else original, *rows[1:]]
    return Curve(
        name=name,
        quality=[row["test_accuracy"] for row in networks],
        before=[None, *(row["validation_accuracy_before_retraining"] for row in rows[1:])],
        speed_up=[row["speed_up"]["int8"] for row in networks],
    )
