"""The real inspection of this computer: software, storage, and one image screened."""

from __future__ import annotations

from pathlib import Path

from fake_compilers import edgetpu_model
from fieldray.bench.device import cases_on_this_computer
from fieldray.bench.host import (
    ComputerPart,
    ScreeningTrial,
    findings_by_severity,
    inspect_computer,
    inspect_storage,
    try_screening,
)
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import PackCandidate
from fieldray.packs.signing import TrustStore
from fieldray.reasons import Reason, reason
from tiny_models import tiny_model

TRIAL = ScreeningTrial(pack_name="chest-1.0.0", duration_s=0.84, has_edgetpu_file=True)


def pack(name: str, problem: Reason | None = None) -> PackCandidate:
    return PackCandidate(
        folder=Path(name), origin="drive", trust="trusted", pack_id=name, version="1.0.0", problem=problem
    )


def storage(home: Path, *packs: PackCandidate, free_mb: int = 50_000, trial: ScreeningTrial = TRIAL) -> ComputerPart:
    return inspect_storage(home, free_mb=free_mb, keys=TrustStore(home), packs=packs, trial=trial)


def test_where_results_are_kept(home: Path) -> None:
    assert storage(home).facts == {"Results": f"{home}, 50000 MB free", "Trusted keys": "0", "Packs": "none"}
    assert [one.reason.code for one in storage(home, free_mb=200).findings] == ["host_disk"]
    (gone,) = storage(home / "gone").findings
    assert (gone.severity, gone.reason.code) == ("stop", "not_writable")
    (home / "pack_trust.json").write_text("{")
    (damaged,) = storage(home).findings
    assert (damaged.severity, damaged.reason.code) == ("stop", "trust_damaged")


def test_a_pack_that_would_not_load_is_named_once(home: Path) -> None:
    why = reason("pack_unsigned")
    packs = pack("well"), pack("lungs", reason("pack_not_classifier", kind="lung-fields")), pack("other", why)
    part = storage(home, *packs)
    (found,) = part.findings
    assert found.severity == "change" and "other-1.0.0" in found.reason.text and "no signature" in found.reason.text
    assert part.facts["Packs"] == "well-1.0.0 (drive), lungs-1.0.0 (drive), other-1.0.0 (drive)"
    assert storage(home, *packs, trial=ScreeningTrial(problem=why)).findings == []


def test_a_missing_runtime_is_reported_once_in_the_whole_inspection(home: Path, tmp_path: Path) -> None:
    def load() -> Model:
        raise BackendProblem(reason("no_runtime"))

    parts = inspect_computer(home, PackLibrary(home, builtin_root=tmp_path), load_pack=load)
    facts = {name for part in parts for name in part.facts}
    assert facts >= {"System", "CPU", "Memory", "Edge TPU", "Program", "Libraries", "Results", "Packs"}
    assert [one.reason.code for one in findings_by_severity(parts)].count(
        "no_runtime"
    ) == 1  # that of the screening trial: it is installed


def test_one_image_is_screened() -> None:
    trial = try_screening(tiny_model)
    assert (trial.problem, trial.pack_name) == (None, "tiny-1.0.0")
    assert (trial.has_edgetpu_file, try_screening(edgetpu_model).has_edgetpu_file) == (False, True)
    assert trial.duration_s > 0


def test_devices_that_can_run_a_pack_are_listed() -> None:
    names = [case.name for case in cases_on_this_computer(tiny_model(), cores=5, float_file=b"x", max_clock=True)]
    assert names == [
        "cpu, 1 thread",
        "cpu, 2 threads",
        "cpu, 4 threads",
        "cpu, 1 thread, floating point",
        "edgetpu",
        "edgetpu, highest clock",
    ]
