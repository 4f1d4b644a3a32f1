"""Everything known about a computer, as values. What follows from it is in `advice`."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from fieldray.bench.benchmark_case import Decoders, find_images, one_decoder
from fieldray.bench.machine import MachineFacts, machine_facts
from fieldray.domain.model import Model
from fieldray.domain.prediction import Prediction, Request
from fieldray.errors import FieldrayError, StorageProblem
from fieldray.inference.coral import status
from fieldray.inference.coral.status import CoralStatus
from fieldray.inference.cpu import cpu_kind
from fieldray.inference.engine import Engine
from fieldray.inference.runtime import RUNTIMES
from fieldray.packs.library import PackLibrary
from fieldray.paths import VERSION
from fieldray.reasons import Reason, reason

# import name: package name
_LIBRARIES: Final = {
    "numpy": "numpy",
    "PIL": "pillow",
    "pydicom": "pydicom",
    "openjpeg": "pylibjpeg-openjpeg",
    "jpeg_ls": "pyjpegls",
    "imagecodecs": "imagecodecs",
    "psutil": "psutil",
    "cryptography": "cryptography",
    "PySide6": "PySide6-Essentials",
    "ai_edge_litert": "ai-edge-litert",
    "tflite_runtime": "tflite-runtime",
}
_OPTIONAL: Final = frozenset({"PySide6", *RUNTIMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFacts:
    """`versions` by import name, empty where a package is missing; the installed `runtimes`, in order of use."""

    program: str
    python: str
    versions: Mapping[str, str]
    runtimes: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Required packages that are missing; runtimes and window are reported separately."""
        return tuple(_LIBRARIES[name] for name in _LIBRARIES if name not in _OPTIONAL and not self.versions[name])


def software_facts() -> SoftwareFacts:
    """Ask the packages' own records; nothing is imported."""
    return SoftwareFacts(
        program=VERSION,
        python=platform.python_version(),
        versions={name: _version(name, installed_as) for name, installed_as in _LIBRARIES.items()},
        runtimes=tuple(name for name in RUNTIMES if _is_installed(name)),
    )


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _version(name: str, installed_as: str) -> str:
    if not _is_installed(name):
        return ""
    try:
        return metadata.version(installed_as)
    except metadata.PackageNotFoundError:  # installed without its record, as in the installed program
        return "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """A pack within reach, and why it cannot be loaded (None if it can)."""

    name: str
    origin: str
    problem: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """`results` is the folder of results; `problem` and `trust_problem` say what is wrong with it and with the keys."""

    results: str
    free_mb: int
    problem: Reason | None
    trusted_keys: int
    trust_problem: Reason | None
    packs: tuple[PackFacts, ...]


def check_storage(home: Path, library: PackLibrary, *, drives: Iterable[Path]) -> StorageFacts:
    """Check room, permission, trusted keys and packs; `home` is the user's data folder."""
    keys, trust_problem = 0, None
    try:
        keys = len(library.trusted())
    except StorageProblem as problem:
        trust_problem = problem.reason
    found = library.available(drives)
    return StorageFacts(
        results=str(home),
        free_mb=shutil.disk_usage(home).free // 2**20,
        problem=_write_problem(home),
        trusted_keys=keys,
        trust_problem=trust_problem,
        packs=tuple(PackFacts(name=one.pack_name, origin=one.origin, problem=one.problem) for one in found),
    )


def _write_problem(folder: Path) -> Reason | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"fieldray")
    except OSError as error:
        return reason("not_writable", path=folder, detail=error.strerror or error)
    return None


_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFacts:
    """Why the trial failed (`problem`); or which backend ran the image, and the seconds from pack to result."""

    pack_name: str = ""
    problem: Reason | None = None
    backend: str = ""
    seconds: float = 0.0


def try_screening(
    load: Callable[[], Model],
    *,
    engines: Callable[[], Engine] = lambda: Engine(lambda _: None, kinds=(cpu_kind(),)),
    decoders: Decoders = one_decoder,
) -> TrialFacts:
    """Prove that this computer can screen: draw, write, read and run one image with the pack that `load` gives."""
    pack_name = ""
    try:
        model = load()
        pack_name = model.pack_name
        prediction, seconds = _screen(model, engines, decoders)
    except FieldrayError as problem:
        return TrialFacts(pack_name=pack_name, problem=problem.reason)
    except (OSError, TimeoutError) as error:
        return TrialFacts(pack_name=pack_name, problem=reason("host_trial_stopped", detail=error))
    return TrialFacts(pack_name=pack_name, backend=prediction.backend, seconds=seconds)


def _screen(model: Model, engines: Callable[[], Engine], decoders: Decoders) -> tuple[Prediction, float]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        (ref,) = find_images(None, count=1, drawn_in=Path(folder))
        began_s = time.perf_counter()
        engine = ends.enter_context(engines())
        engine.open(model)
        pool = ends.enter_context(decoders())
        result = pool.read(ref, model.manifest.input)
        if result.tensor is None:
            assert result.problem
            raise FieldrayError(result.problem)
        engine.wait_ready(timeout_s=_TIMEOUT_S)
        request = Request(request_id=1, values=result.tensor.values)
        return engine.submit(request).result(_TIMEOUT_S), time.perf_counter() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One inspection of a computer."""

    machine: MachineFacts
    software: SoftwareFacts
    storage: StorageFacts
    edgetpu: CoralStatus
    trial: TrialFacts


def inspect(home: Path, library: PackLibrary, *, drives: Iterable[Path], load: Callable[[], Model]) -> HostFacts:
    """Inspect everything and screen one image with the pack that `load` gives; takes a few seconds."""
    return HostFacts(
        machine=machine_facts(),
        software=software_facts(),
        storage=check_storage(home, library, drives=drives),
        edgetpu=status.look(),
        trial=try_screening(load),
    )
