"""What `fieldray bench pipeline` does once its arguments are known: who takes part, and what is measured when."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from fieldray.bench.contest import contest_report as names
from fieldray.bench.contest.archive import Archive, Wanted, make_archive
from fieldray.bench.contest.contender import Contestant
from fieldray.bench.contest.contest_report import Contest, contest_report
from fieldray.bench.contest.decision_report import decision_report
from fieldray.bench.contest.decisions import compare
from fieldray.bench.contest.engine_race import race
from fieldray.bench.contest.program import make_float_file, time_first_result
from fieldray.bench.contest.run_comparison import compare_runs
from fieldray.bench.contest.stages import Stages, add_round, stage_decoders, time_reading
from fieldray.bench.report import Report
from fieldray.commands.console import Console
from fieldray.commands.measuring import file_bytes
from fieldray.commands.pack_options import find_pack, load_pack
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.study import ImageRef
from fieldray.errors import UsageProblem
from fieldray.imaging.image_files import KINDS
from fieldray.inference.cores import usable_cores
from fieldray.inference.cpu import cpu_kind
from fieldray.packs.library import PackLibrary
from fieldray.paths import user_data
from fieldray.reasons import reason

_STARTING_IMAGES: Final = 12
_ROOM: Final = "fieldray.bench.contest"


def pipeline(options: argparse.Namespace, console: Console) -> Report:
    """See `commands.bench.run_pipeline`."""
    library = PackLibrary(user_data())
    folder = find_pack(library, options.pack)
    options.pack = str(folder)
    model, cores = load_pack(library, options.pack, options), usable_cores()
    float_file, unavailable_reason = _float_file(options.float_file, model.manifest.input, console)
    int8_file = file_bytes(options.int8_file) if options.int8_file else None
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as place:
        wanted = Wanted(files=options.files, others=options.others, megapixels=options.megapixels, kinds=options.kinds)
        archive = make_archive(Path(place), wanted, source=options.folder, notify=console.bar)
        for kind in KINDS.values():
            if wanted.count(kind.name) and kind.name not in archive.files:
                console.say(f"{kind.name} is left out: the usual scripts cannot read it here without python-gdcm")
        refs, stages = [ImageRef(path=file.path) for file in archive.mixed], Stages()
        contenders = _contenders(model, options, float_file, unavailable_reason)
        results = compare_runs(
            tuple(contenders),
            archive,
            repeats=options.repeats,
            notify=console.bar,
            most_s=60 * options.minutes,
            between=lambda: add_round(stages, refs, model, cores=cores),
        )
        _, images = time_reading(refs[:8], model.manifest.input, cores=cores)
        effort = {"cores": cores, "repeats": options.repeats}
        contest = Contest(
            results=results,
            stages=stages,
            engines=race(model.files["litert"], images, notify=console.bar, **effort),
            other_engines=race(int8_file, images, notify=console.bar, **effort) if int8_file else (),
            first_result_s=tuple(_starts(archive, model, options, Path(place), console)),
            cores=cores,
            images=f"images of {options.folder}, enlarged" if options.folder else "images drawn by the program",
        )
    return contest_report(contest)


def decisions(options: argparse.Namespace, console: Console) -> Report:
    """Compare reading reduced with reading in full. Raises as `pipeline`, UsageProblem (nothing_to_measure)."""
    model = load_pack(PackLibrary(user_data()), options.pack, options)
    cores, backend = usable_cores(), cpu_kind(cores=1, budget_s=None).open()
    try:
        backend.start(model)
        with stage_decoders(cores) as decoders:
            effort = {"most": options.images, "cores": cores}
            kinds, notify = options.kinds, console.bar
            compared = compare(options.decisions, model, decoders, backend, kinds=kinds, notify=notify, **effort)
    finally:
        backend.close()
    if not compared.pairs:
        raise UsageProblem(reason("nothing_to_measure"))
    return decision_report(compared, pack=model.pack_name, images=f"images of {options.decisions}")


def _contenders(
    model: Model, options: argparse.Namespace, float_file: bytes | None, unavailable_reason: str
) -> Iterator[Contestant]:
    spec = model.manifest.input
    size = {"rows": spec.height, "columns": spec.width}
    rules = {"pack": options.pack, "allow_older": options.allow_older, "allow_legacy": options.allow_legacy}
    yield Contestant(name=names.PROGRAM, service="fieldray.commands.screen_service:handle", body=rules, is_batch=True)
    yield Contestant(name=names.CONVENTIONAL, service=f"{_ROOM}.conventional:handle", model=model.files["litert"])
    yield Contestant(
        name=names.DISSERTATION,
        service=f"{_ROOM}.dissertation:handle",
        model=float_file,
        unavailable_reason=unavailable_reason,
    )
    no_torch = "" if importlib.util.find_spec("torch") else "torch is not installed"
    yield Contestant(name=names.TORCH, service=f"{_ROOM}.torch_script:handle", body=size, unavailable_reason=no_torch)
    yield Contestant(name=names.FULL_DECODE, service=f"{_ROOM}.limits:decode_in_full")
    yield Contestant(name=names.LEAST_DECODE, service=f"{_ROOM}.least:handle", body={"spec": asdict(spec)})
    yield Contestant(name=names.BYTES, service=f"{_ROOM}.limits:read_bytes")


def _starts(
    archive: Archive, model: Model, options: argparse.Namespace, place: Path, console: Console
) -> Iterator[float]:
    """Seconds from nothing to the first result, a few times."""
    few = place / "start"
    few.mkdir()
    for path in itertools.islice(sorted(archive.mixed_folder.iterdir()), _STARTING_IMAGES):
        (few / path.name).symlink_to(path)
    for number in range(options.repeats):
        console.bar(f"start {number + 1} of {options.repeats}")
        seconds = time_first_result(_screen_arguments(model, options), few)
        if seconds is not None:
            yield seconds


def _screen_arguments(model: Model, options: argparse.Namespace) -> Sequence[str]:
    command = ["screen", "--json", "-", "--device", "cpu", "--pack", options.pack]
    command += ["--trust", model.fingerprint] if model.trust == "signed" else []
    command += ["--allow-older"] if options.allow_older else []
    return [*command, "--allow-legacy"] if model.trust == "legacy" else command


def _float_file(path: Path | None, spec: InputSpec, console: Console) -> tuple[bytes | None, str]:
    """A float32 network for the dissertation's way: the file given, else one made where TensorFlow is installed."""
    if path is not None:
        return file_bytes(path), ""
    if importlib.util.find_spec("tensorflow") is None:
        return None, "it needs a float32 file (--float-file), or TensorFlow to make one"
    console.bar("making a float32 network of full width")
    made = make_float_file(spec)
    return (made, "") if isinstance(made, bytes) else (None, made)
