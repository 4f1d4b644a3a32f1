"""What `pipeline` does once its arguments are known: an archive, the rounds, and a few starts."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.archive import Archive, Wanted, make_archive
from benchmarks.contestants import PROGRAM, SCRIPT, compare_runs
from benchmarks.image_files import KINDS
from benchmarks.pipeline_report import PipelineRun, pipeline_report
from benchmarks.screening import fill, screen_once
from fieldray.bench.benchmark_case import Report
from fieldray.commands.console import Console
from fieldray.commands.options import drives_with_packs, find_pack, load_pack, pack_library, pack_to_measure
from fieldray.domain.model import Model
from fieldray.processes.wire import Message
from fieldray.surroundings import usable_cores

_STARTING_IMAGES: Final = 12


def report(options: argparse.Namespace, console: Console) -> Report:
    """From files to scores, compared with the usual script. Raises PackProblem, UsageProblem, ScreeningFailed."""
    library = pack_library()
    options.pack = str(find_pack(library, options.pack or pack_to_measure(library, drives_with_packs())))
    model, cores = load_pack(library, options.pack, options), usable_cores()
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        archive = _archive(options, model, Path(folder), console)
        results = compare_runs(
            _openings(model, options, archive),
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
            console.print_line(f"{kind.name} is left out: without python-gdcm the usual script cannot read it here")
    return archive


def _openings(model: Model, options: argparse.Namespace, archive: Archive) -> dict[str, Message]:
    """What each is opened with: the program with the pack, the script with its network."""
    first = {"ask": "open", "first": [str(path) for path in sorted(archive.first_folder.iterdir())]}
    rules = {"pack": options.pack, "allow_older": options.allow_older, "allow_legacy": options.allow_legacy}
    network = np.frombuffer(model.files["litert"], np.uint8)
    return {PROGRAM: Message({**first, **rules}), SCRIPT: Message(first, {"model": network})}


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
