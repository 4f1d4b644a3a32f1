"""What `fieldray bench` and `fieldray doctor` do once their arguments are known."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fieldray.bench import host_variants, measurement
from fieldray.bench import load as load_study
from fieldray.bench.advice import can_screen, findings
from fieldray.bench.benchmark_case import BenchmarkCase, on_every_backend, usable
from fieldray.bench.device_report import Costs, device_report
from fieldray.bench.facts import HostFacts, look
from fieldray.bench.host_report import host_report
from fieldray.bench.images import MOST_IMAGES, LoadedImage, find_images, one_decoder, read_images
from fieldray.bench.load_report import load_report
from fieldray.bench.measurement import Effort
from fieldray.bench.output import lines, write
from fieldray.bench.report import Report
from fieldray.commands.console import Console
from fieldray.commands.pack_options import drives_with_packs, load_pack
from fieldray.domain.model import InputSpec, Model
from fieldray.errors import BackendProblem, UsageProblem
from fieldray.inference.cores import usable_cores
from fieldray.packs.library import PackLibrary
from fieldray.paths import user_data
from fieldray.reasons import Reason, reason

ImagesFor = Callable[[InputSpec], tuple[LoadedImage, ...]]


def device(options: argparse.Namespace, console: Console) -> int:
    """See `commands.bench.run_device`."""
    library = PackLibrary(user_data())
    models = [load_pack(library, name, options) for name in options.pack or (None,)]
    asked = [subject for model in models for subject in on_every_backend(model, threads=options.threads)]
    subjects, problems = _usable(asked)
    with _images(options) as (images_for, images):
        measured = measurement.measure(
            {subject: images_for(subject.model.manifest.input) for subject in subjects},
            _effort(options),
            notify=console.bar,
        )
    costs = Costs(power_w=dict(options.power_w), price_usd=dict(options.price_usd))
    return show(device_report(measured, costs=costs, problems=problems, images=images), options.out, console)


def load(options: argparse.Namespace, console: Console) -> int:
    """See `commands.bench.run_load`."""
    model, cores = _model(options), usable_cores()
    subjects, problems = _usable(load_study.load_cases(model, cores=cores))
    with _images(options) as (images_for, images):
        cells = load_study.measure(
            subjects, images_for(model.manifest.input), _effort(options), cores=cores, notify=console.bar
        )
    return show(load_report(cells, problems=problems, images=images), options.out, console)


def host(options: argparse.Namespace, console: Console) -> int:
    """See `commands.bench.run_host`."""
    model = _model(options)
    console.bar("looking at this computer")
    facts = _facts(lambda: model)
    found = findings(facts)
    asked = host_variants.ways(
        model,
        cores=usable_cores(),
        runtimes=facts.software.runtimes,
        float_file=file_bytes(options.float_file) if options.float_file else None,
        max_clock=options.max_clock,
    )
    subjects, problems = _usable(asked)
    with _images(options) as (images_for, images):
        measured = host_variants.measure(
            subjects, images_for(model.manifest.input), _effort(options), notify=console.bar
        )
    blocks = host_variants.blocks(measured, problems=problems, images=images)
    report = host_report(facts, found, kind="bench-host", measured=blocks, factors=host_variants.data(measured))
    return show(report, options.out, console)


def doctor(options: argparse.Namespace, console: Console) -> int:
    """See `commands.doctor.run`."""
    console.bar("looking at this computer")
    found = findings(facts := _facts(lambda: _model(options)))
    show(host_report(facts, found, kind="doctor"), options.out, console)
    return 0 if can_screen(found) else 1


def _facts(load: Callable[[], Model]) -> HostFacts:
    home = user_data()
    return look(home, PackLibrary(home), drives=drives_with_packs(), load=load)


def _model(options: argparse.Namespace) -> Model:
    return load_pack(PackLibrary(user_data()), options.pack, options)


def _usable(asked: Sequence[BenchmarkCase]) -> tuple[tuple[BenchmarkCase, ...], Mapping[str, Reason]]:
    """Those that can be run; the first of them is what all others are compared with. Raises BackendProblem."""
    subjects, problems = usable(asked)
    if asked[0] not in subjects:
        raise BackendProblem(problems[asked[0].name])
    return subjects, problems


def _effort(options: argparse.Namespace) -> Effort:
    return Effort(repeats=options.repeats, images=options.images)


@contextlib.contextmanager
def _images(options: argparse.Namespace) -> Iterator[tuple[ImagesFor, str]]:
    """Images for any network, and what they are called; drawn ones are there while the block runs."""
    count = min(options.images, MOST_IMAGES)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as drawn_in:
        refs = find_images(options.folder, count=count, drawn_in=Path(drawn_in))

        def images_for(spec: InputSpec) -> tuple[LoadedImage, ...]:
            with one_decoder() as decoders:
                return read_images(refs, spec, decoders)

        whose = f"images of {options.folder}" if options.folder else "images drawn by the program"
        yield images_for, f"{len(refs)} {whose}"


def show(report: Report, out: Path | None, console: Console) -> int:
    """Print a report, and write it into a folder if one is given; the exit code. Raises StorageProblem."""
    for line in lines(report):
        console.say(line)
    for path in write(report, out) if out else ():
        console.say(f"Written: {path}")
    return 0


def file_bytes(path: Path) -> bytes:
    """A file named on the command line. Raises UsageProblem (unreadable)."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageProblem(reason("unreadable", detail=f"{path}: {error.strerror}")) from error
