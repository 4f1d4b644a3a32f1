"""What `pipeline` and `decisions` do once their arguments are known: who takes part, and what is measured when."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import pipeline_report as names
from benchmarks.archive import Archive, Wanted, make_archive
from benchmarks.contestants import Contestant, compare_runs
from benchmarks.image_files import KINDS
from benchmarks.pipeline_report import PipelineRun, pipeline_report
from benchmarks.program import make_float_file
from benchmarks.screening import fill, screen_once
from fieldray.bench.report import Report
from fieldray.commands.bench import file_bytes
from fieldray.commands.console import Console
from fieldray.commands.options import drives_with_packs, find_pack, load_pack, pack_library, pack_to_measure
from fieldray.domain.model import InputSpec, Model
from fieldray.processes.priority import usable_cores

_STARTING_IMAGES: Final = 12


def report(options: argparse.Namespace, console: Console) -> Report:
    """From files to scores, compared with the usual scripts. Raises PackProblem, UsageProblem, BackendProblem."""
    library = pack_library()
    options.pack = str(find_pack(library, options.pack or pack_to_measure(library, drives_with_packs())))
    model, cores = load_pack(library, options.pack, options), usable_cores()
    float_file, unavailable_reason = _float_file(options.float_file, model.manifest.input, console)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        archive = _archive(options, model, Path(folder), console)
        results = compare_runs(
            tuple(_contestants(model, options, float_file, unavailable_reason)),
            archive,
            repeats=options.repeats,
            notify=console.bar,
            most_s=60 * options.minutes,
        )
        measured = PipelineRun(
            results=results,
            first_result_s=tuple(_starts(archive, model, options, Path(folder), console)),
            cores=cores,
            images=f"images of {options.folder}, enlarged" if options.folder else "images drawn by the program",
        )
    return pipeline_report(measured)


def _archive(options: argparse.Namespace, model: Model, folder: Path, console: Console) -> Archive:
    ages = model.manifest.accepted.ages_years
    wanted = Wanted(
        files=options.files,
        others=options.others,
        megapixels=options.megapixels,
        kinds=options.kinds,
        age_years=sum(ages) // 2 if ages else None,
    )
    archive = make_archive(folder / "archive", wanted, source=options.folder, notify=console.bar)
    for kind in KINDS.values():
        if wanted.count(kind.name) and kind.name not in archive.files:
            console.print_line(f"{kind.name} is left out: without python-gdcm the usual scripts cannot read it here")
    return archive


def _contestants(
    model: Model, options: argparse.Namespace, float_file: bytes | None, unavailable_reason: str
) -> Iterator[Contestant]:
    rules = {"pack": options.pack, "allow_older": options.allow_older, "allow_legacy": options.allow_legacy}
    yield Contestant(name=names.PROGRAM, service="benchmarks.program:handle", body=rules, is_batch=True)
    yield Contestant(name=names.CONVENTIONAL, service="benchmarks.scripts:conventional", model=model.files["litert"])
    yield Contestant(
        name=names.DISSERTATION,
        service="benchmarks.scripts:dissertation",
        model=float_file,
        unavailable_reason=unavailable_reason,
    )
    yield Contestant(name=names.FULL_DECODE, service="benchmarks.scripts:decode_in_full")
    yield Contestant(name=names.BYTES, service="benchmarks.scripts:read_bytes")


def _starts(
    archive: Archive, model: Model, options: argparse.Namespace, folder: Path, console: Console
) -> Iterator[float]:
    """Seconds from nothing to the first result, a few times."""
    paths = list(itertools.islice(sorted(archive.mixed_folder.iterdir()), _STARTING_IMAGES))
    few = fill(folder / "start", paths, len(paths))
    rules = ["--pack", options.pack]
    rules += ["--trust", model.fingerprint] if model.trust == "signed" else []
    rules += ["--allow-older"] if options.allow_older else []
    rules += ["--allow-legacy"] if model.trust == "legacy" else []
    for number in range(options.repeats):
        console.bar(f"start {number + 1} of {options.repeats}")
        yield screen_once(few, rules).first_s


def _float_file(path: Path | None, spec: InputSpec, console: Console) -> tuple[bytes | None, str]:
    """A float32 network for the dissertation's way: the file given, else one made where TensorFlow is installed."""
    if path is not None:
        return file_bytes(path), ""
    if importlib.util.find_spec("tensorflow") is None:
        return None, "it needs a float32 file (--float-file), or TensorFlow to make one"
    console.bar("making a float32 network of full width")
    made = make_float_file(spec)
    return (made, "") if isinstance(made, bytes) else (None, made)
