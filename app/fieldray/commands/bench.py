"""`fieldray doctor` and `fieldray bench`: whether this computer can screen, how fast, and which changes would help."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.backends import BACKENDS
from fieldray.commands.console import (
    Console,
    add_command,
    add_command_group,
    duration_text,
    parse_path_option,
    parse_text_option,
)
from fieldray.commands.options import (
    SinglePackAction,
    add_pack_acceptance_options,
    add_pack_options,
    load_pack,
    name_of_pack_to_measure,
    pack_library,
)
from fieldray.errors import UsageProblem
from fieldray.paths import data_folder
from fieldray.process_environment import usable_cores
from fieldray.reasons import reason

if TYPE_CHECKING:
    from fieldray.bench.benchmark_case import BenchmarkCase, BenchmarkReport, LoadedImage, MeasurementSize
    from fieldray.bench.device import EnergyMeter, Measurement
    from fieldray.bench.host import ComputerPart
    from fieldray.domain.model import Model
    from fieldray.reasons import Reason


_REHEARSED: Final = 3  # images of the trial; the third shows the steady time


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands `doctor` and `bench` with their options."""
    doctor = add_command(
        commands,
        "doctor",
        run=run_doctor,
        description="Check this computer, screen a test image, and report what to change.",
        epilog="Exit code: 0 this computer can screen images; 1 this computer cannot.",
    )
    doctor.set_defaults(home_problem=None)
    add_pack_options(doctor, default="the one of `fieldray packs default`, else the first that can be used")
    _add_out(doctor)
    _add_bench(add_command_group(commands, "bench"))


def _add_bench(actions: argparse._SubParsersAction[Any]) -> None:
    device = add_command(
        actions,
        "device",
        "measure the time per image on each device; report the first two images (warm-up) separately",
        run=run_device,
    )
    device.add_argument(
        "--pack",
        type=parse_text_option,
        metavar="DIR|ID",
        action="append",
        help="a pack to measure; can be given more than once",
    )
    device.add_argument(
        "--threads", type=whole_number_at_least(1), default=1, metavar="N", help="threads on the CPU (default: 1)"
    )
    for option, unit, text in (
        (
            "--power-w",
            "WATTS",
            "power draw of a device that cannot be measured here, to report images per second per watt",
        ),
        ("--price-usd", "DOLLARS", "price of a device, to report images per second per dollar"),
    ):
        device.add_argument(option, type=_of_backend, action="append", default=[], metavar=f"DEVICE={unit}", help=text)
    load = add_command(actions, "load", "measure the time per image under CPU load", run=run_load)
    load.add_argument(
        "--pack", type=parse_text_option, action=SinglePackAction, metavar="DIR|ID", help="the pack to measure"
    )
    host = add_command(
        actions, "host", "compare the speed of a pack with more threads or on other devices", run=run_host
    )
    host.add_argument(
        "--pack", type=parse_text_option, action=SinglePackAction, metavar="DIR|ID", help="the pack to measure with"
    )
    host.add_argument(
        "--float-file",
        type=parse_path_option,
        metavar="FILE",
        help="the network of the pack in floating point (.tflite), for comparison",
    )
    host.add_argument(
        "--max-clock",
        action="store_true",
        help="also run the Edge TPU at its highest clock speed; the Edge TPU gets hot",
    )
    for action in (device, load, host):
        _add_effort(action)


def run_doctor(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray doctor`: inspect this computer. Returns the exit code. Raises StorageProblem, UsageProblem."""
    from fieldray.bench.host import ComputerPart, HostFinding, can_screen, findings_by_severity, host_report

    parts = _parts(lambda: load_pack_to_measure(options), console)
    if options.home_problem:  # the other checks were made in a temporary folder
        parts = (*parts, ComputerPart([HostFinding("stop", options.home_problem)], {}))
    print_report(host_report(parts), options.out, console)
    return 0 if can_screen(findings_by_severity(parts)) else 1


def run_device(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray bench device`: measure packs on backends. Returns the exit code.

    Raises PackProblem, UsageProblem, BackendProblem, StorageProblem.
    """
    from fieldray.bench import device
    from fieldray.bench.benchmark_case import cases_on_all_backends

    library = pack_library()
    names = options.pack or (name_of_pack_to_measure(library),)
    models = [load_pack(library, name, options) for name in names]
    cases = [case for model in models for case in cases_on_all_backends(model, threads=options.threads)]
    meter = device.EnergyMeter()
    rehearsed = partial(_measured_after_rehearsal, console=console, meter=meter)
    measured, problems, images = _measured(options, console, cases, rehearsed)
    if meter.problem:
        problems = {**problems, "power of the CPU": meter.problem}
    costs = device.BackendCosts(power_w_by_backend=dict(options.power_w), price_usd_by_backend=dict(options.price_usd))
    report = device.device_report(measured, costs=costs, problems=problems, image_phrase=images)
    return print_report(report, options.out, console)


def run_load(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray bench load`: measure under CPU load. Returns the exit code.

    Raises PackProblem, UsageProblem, BackendProblem, StorageProblem.
    """
    from fieldray.bench import device, load

    model, cores = load_pack_to_measure(options), usable_cores()
    cases = load.load_study_cases(model, cores=cores)
    under_loads = partial(device.measure_cases, options=replace(load.LOAD_STUDY_OPTIONS, load_process_count=cores))
    cells, problems, images = _measured(options, console, cases, under_loads)
    report = load.load_study_report(cells, problems=problems, image_phrase=images)
    load.store_load_study(report)
    return print_report(report, options.out, console)


def run_host(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray bench host`: inspect the computer, and measure ways to run a pack. Returns the exit code.

    Raises PackProblem, UsageProblem, BackendProblem, StorageProblem.
    """
    from fieldray.bench import device
    from fieldray.bench.host import host_report

    model = load_pack_to_measure(options)
    parts = _parts(lambda: model, console)
    cases = device.cases_on_this_computer(
        model,
        cores=usable_cores(),
        float_file=read_file_bytes(options.float_file) if options.float_file else None,
        max_clock=options.max_clock,
    )
    network = partial(device.measure_cases, options=device.MeasurementOptions(scopes=(device.NETWORK_ONLY_SCOPE,)))
    measured, problems, images = _measured(options, console, cases, network)
    report = device.device_report(
        measured, problems=problems, image_phrase=images, more_sentences=device.NOT_MEASURED_SENTENCES
    )
    return print_report(host_report(parts, measured=report), options.out, console)


def _parts(load: Callable[[], Model], console: Console) -> tuple[ComputerPart, ...]:
    """Inspect this computer part by part, with a trial of the pack that `load` returns. Raises StorageProblem."""
    from fieldray.bench.host import inspect_computer

    console.show_progress_bar("checking this computer")
    return inspect_computer(data_folder(), pack_library(), load_pack=load)


def load_pack_to_measure(options: argparse.Namespace) -> Model:
    """Load the pack that the option `--pack` names, or else the default pack for measurements.

    Raises PackProblem, StorageProblem.
    """
    library = pack_library()
    return load_pack(library, options.pack or name_of_pack_to_measure(library), options)


def print_report(report: BenchmarkReport, out: Path | None, console: Console) -> int:
    """Print a report, and write a JSON file of the report into the folder `out` if given. Returns the exit code 0.

    Raises StorageProblem.
    """
    from fieldray.bench.benchmark_case import write_report
    from fieldray.reports.document import console_lines

    console.print_lines(console_lines(report.blocks))
    if out:
        console.print_line(f"Written: {write_report(report, out)}")
    return 0


def read_file_bytes(path: Path) -> bytes:
    """Return the content of a file that the command line names. Raises UsageProblem (unreadable)."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageProblem(reason("unreadable", detail=f"{path}: {error.strerror}")) from error


def whole_number_at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of at least `minimum`."""

    def number(text: str) -> int:
        found = int(text)
        if found < minimum:
            raise argparse.ArgumentTypeError(f"{minimum} or more")
        return found

    return number


def _measured(
    options: argparse.Namespace,
    console: Console,
    asked: Sequence[BenchmarkCase],
    measure: Callable[..., tuple[Measurement, ...]],
) -> tuple[tuple[Measurement, ...], Mapping[str, Reason], str]:
    """Find the cases that can run, read the images and time the cases with `measure`.

    Returns three values: the measurements, the reasons why cases were left out (by case name), and a phrase that names
    the images.
    """
    import tempfile

    from fieldray.bench.benchmark_case import (
        MAX_IMAGE_COUNT,
        MeasurementSize,
        find_images,
        find_usable_cases,
        open_one_worker,
        read_images,
    )

    console.logs_progress = True
    cases, problems = find_usable_cases(asked)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as synthetic_folder:
        refs = find_images(
            options.folder, count=min(options.images, MAX_IMAGE_COUNT), synthetic_folder=Path(synthetic_folder)
        )
        with open_one_worker() as readers:
            images = {spec: read_images(refs, spec, readers) for spec in {case.model.manifest.input for case in cases}}
        given = {case: images[case.model.manifest.input] for case in cases}
        effort = MeasurementSize(repetition_count=options.repeats, image_count=options.images)
        measured = measure(given, effort, notify=console.show_progress_bar)
    source = f"images of {options.folder}" if options.folder else "images generated by the program"
    return measured, problems, f"{len(refs)} {source}"


def _measured_after_rehearsal(
    given: Mapping[BenchmarkCase, Sequence[LoadedImage]],
    effort: MeasurementSize,
    *,
    notify: Callable[[str], None],
    console: Console,
    meter: EnergyMeter,
) -> tuple[Measurement, ...]:
    """Time all cases. First run a short trial, from which the duration is estimated and printed."""
    from fieldray.bench import device

    began_s = time.monotonic()
    short = device.measure_cases(
        given, replace(effort, repetition_count=1, image_count=_REHEARSED), notify=lambda _text: None
    )
    each_s = sum(one.times_ms_by_repetition[0][-1] for one in short if one.times_ms_by_repetition) / 1000
    total_s = effort.repetition_count * (time.monotonic() - began_s + (effort.image_count - _REHEARSED) * each_s)
    console.print_line(f"This will take about {duration_text(total_s)}.")
    return device.measure_cases(given, effort, notify=notify, options=device.MeasurementOptions(energy_meter=meter))


def _add_effort(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=parse_path_option, help="folder of images to use (default: generated images)"
    )
    add_pack_acceptance_options(parser)
    least = whole_number_at_least(3)  # the first two are reported separately
    parser.add_argument(
        "--images", type=least, default=50, metavar="N", help="images per repetition, 3 or more (default: 50)"
    )
    parser.add_argument(
        "--repeats",
        type=whole_number_at_least(1),
        default=5,
        metavar="N",
        help="repetitions, each in a fresh process (default: 5)",
    )
    _add_out(parser)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=parse_path_option, metavar="DIR", help="write all figures as JSON to this folder")


def _of_backend(text: str) -> tuple[str, float]:
    """Parse an option such as `edgetpu=2` into ("edgetpu", 2.0)."""
    backend, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if backend not in BACKENDS.names or not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"give {' or '.join(BACKENDS.names)}=NUMBER")
    return backend, number
