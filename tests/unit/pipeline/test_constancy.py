"""The constancy test: signed expected results, differences, stored records, and the date of the next test."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fieldray.domain.finding import Finding, Outcome, RefusedOutcome
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem, PackProblem, StorageProblem, UsageProblem
from fieldray.imaging.synthetic import constancy_test_files
from fieldray.packs.library import PackLibrary
from fieldray.packs.signing import sign
from fieldray.paths import asset_path
from fieldray.pipeline.constancy import (
    SCORE_TOLERANCE,
    TEST_INTERVAL_DAYS,
    ConstancyRecord,
    ConstancyRecords,
    ExpectedResult,
    pack_key,
    run_constancy_test,
    shipped_expected_results,
)
from fieldray.pipeline.session import Session
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from outcomes import screened
from packs_factory import key
from raised import raises
from shipped_packs import ADULTS
from tiny_models import tiny_manifest, tiny_model

FILES = list(constancy_test_files())
IMAGES = len(FILES)
POINT = tiny_manifest().operating_points[0]


@dataclass(eq=False)
class Screening:
    """A session that gives the test's answers."""

    model: Model | None = field(default_factory=tiny_model)
    answer: Callable[[ImageRef], Outcome | None] = lambda ref: of(ref, 0.9)
    absent: str = ""
    devices: list[str | None] = field(default_factory=list)

    def choose_devices(self, only: str | None = None) -> None:
        self.devices.append(only)

    def screen_one(self, ref: ImageRef) -> Outcome | None:
        if self.devices[-1] == self.absent:
            raise BackendProblem(reason("edgetpu_not_here"))
        return self.answer(ref)


def of(ref: ImageRef, score: float) -> Outcome:
    finding = Finding(label="opacity", score=score, point=POINT, decision="above" if score > 0.5 else "below")
    return replace(screened(ref), findings=(finding,))


def record(**changes: object) -> ConstancyRecord:
    values = {"device": "cpu", "at_s": 1.7e9, "program": "0.2.0", "images": 37, "different": 0, "largest": 0.01}
    return ConstancyRecord(**{"subject": pack_key(tiny_model()), **values, **changes})


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDRAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "fieldray.pipeline.constancy.constancy_test_files", lambda: FILES
    )  # the images are drawn only once


# ---- expected results


def test_every_shipped_pack_has_expected_results_of_its_own_networks(tmp_path: Path) -> None:
    library = PackLibrary(tmp_path)
    models = [library.load(found.folder) for found in library.builtin() if found.can_screen]
    assert shipped_expected_results().answers.keys() == set(map(pack_key, models))
    by_pack = [
        {answer.category for answer in answers.values()} for answers in shipped_expected_results().answers.values()
    ]
    assert all({"abnormal", "unsure", "read_first", "refused"} <= categories for categories in by_pack)
    assert "normal" in set().union(*by_pack)


def test_unsigned_or_changed_expected_results_are_refused(tmp_path: Path) -> None:
    for suffix in ("json", "sig"):
        shutil.copy(asset_path(f"constancy.{suffix}"), tmp_path)
    assert shipped_expected_results(tmp_path / "constancy.json") == shipped_expected_results()
    content = (tmp_path / "constancy.json").read_bytes()
    changed = content.replace(b'"abnormal": 0.9', b'"abnormal": 0.8', 1)
    assert changed != content
    (tmp_path / "constancy.json").write_bytes(changed)
    refused(tmp_path)
    (tmp_path / "constancy.sig").write_bytes(sign(changed, key=key(1)))  # anybody can sign with a key of their own
    refused(tmp_path)
    (tmp_path / "constancy.json").unlink()
    refused(tmp_path)


def refused(folder: Path) -> None:
    with raises(StorageProblem, "constancy_set"):
        shipped_expected_results(folder / "constancy.json")


def test_a_shipped_pack_passes_the_constancy_test_here(tmp_path: Path) -> None:
    records = ConstancyRecords(tmp_path)
    with Session(Settings(), lambda _: None, database=tmp_path / "results.sqlite") as session:
        session.use_packs(PackLibrary(tmp_path).load(ADULTS))
        (found,) = run_constancy_test(session, records)
        assert session.model and records.state_sentences(session.model) == (found,)
    assert found.code == "constancy_passed"
    assert dict(found.parameters)["images"] == str(IMAGES - 1)  # one image is near a limit of the lung fields


# ---- a pack without expected results


def test_the_first_results_are_stored_and_later_ones_compared_with_them(tmp_path: Path) -> None:
    session, records = Screening(), ConstancyRecords(tmp_path)
    first = run_constancy_test(session, records)
    assert (codes(first), records.path.is_file()) == (["constancy_first"], True)
    assert session.devices == ["cpu", None] and dict(first[0].parameters)["images"] == str(IMAGES)
    assert codes(run_constancy_test(session, records)) == ["constancy_passed"]
    session.answer = lambda ref: of(ref, 0.9 - SCORE_TOLERANCE - 0.001 * (ref.path.name == "published-normal-1.jpg"))
    failed, image = run_constancy_test(session, records)
    assert (failed.code, dict(failed.parameters)["different"]) == ("constancy_failed", "1")
    assert image.text == "children/published-normal-1.jpg: expected result abnormal 0.900, found abnormal 0.839."
    assert codes(run_constancy_test(replace(session, model=replace(tiny_model(), model_sha256="other")), records)) == [
        "constancy_first"
    ]


def test_a_missing_device_is_reported_as_not_tested(tmp_path: Path) -> None:
    model = replace(tiny_model(), files={"litert": b"", "edgetpu": b""})
    session, records = Screening(model=model, absent="edgetpu"), ConstancyRecords(tmp_path)
    on_cpu, on_edgetpu = run_constancy_test(session, records)
    assert on_cpu.code == "constancy_first"
    assert on_edgetpu.text == "Constancy test (Edge TPU): not run. No Edge TPU is connected."
    assert session.devices == ["cpu", "edgetpu", None] and len(records.state_sentences(model)) == 1


def test_the_constancy_test_needs_a_pack_and_no_run(tmp_path: Path) -> None:
    records = ConstancyRecords(tmp_path)
    with pytest.raises(PackProblem):
        run_constancy_test(Screening(model=None), records)
    busy = Screening(answer=lambda ref: None)
    with pytest.raises(UsageProblem) as caught:
        run_constancy_test(busy, records)
    assert (caught.value.reason.code, busy.devices[-1], records.path.exists()) == ("constancy_busy", None, False)


def codes(found: Iterable[Reason]) -> list[str]:
    return [one.code for one in found]


# ---- differences


def test_a_result_differs_by_score_reason_or_class() -> None:
    manifest, low = tiny_manifest(), POINT.unsure_low
    firm = ExpectedResult(category="abnormal", code="", scores={"opacity": 0.9})

    def differs(expected: ExpectedResult, **changes: object) -> bool:
        values = {name: getattr(expected, name) for name in ("category", "code", "scores")}
        return expected.differs_from(ExpectedResult(**{**values, **changes}), manifest)

    assert not differs(firm) and not differs(firm, scores={"opacity": 0.9 - SCORE_TOLERANCE + 1e-6})
    assert differs(firm, scores={"opacity": 0.9 - SCORE_TOLERANCE - 1e-6})
    assert differs(firm, scores={}) and differs(firm, code="left_lung_unseen") and differs(firm, category="normal")
    near = ExpectedResult(category="normal", code="", scores={"opacity": low - SCORE_TOLERANCE / 2})
    assert not differs(near, category="unsure", scores={"opacity": low + SCORE_TOLERANCE / 4})
    assert firm.differs_from(None, manifest)
    turned = ExpectedResult.from_outcome(RefusedOutcome(ref=screened().ref, reason=reason("rotated")))
    assert (turned.category, turned.code, turned.scores) == ("refused", "rotated", {})
    assert differs(turned, code="view")


# ---- stored records


def add(records: ConstancyRecords, one: ConstancyRecord) -> None:
    records.add(one, {})


def test_the_next_test_is_due_after_a_month_or_with_another_version(tmp_path: Path) -> None:
    records, model, now_s = ConstancyRecords(tmp_path), tiny_model(), datetime.datetime.now().timestamp()
    assert [why.code for why in records.state_sentences(model)] == ["constancy_never"]
    add(records, record(at_s=now_s - 86_400 * (TEST_INTERVAL_DAYS - 2)))
    assert [why.code for why in records.state_sentences(model)] == ["constancy_passed"]
    add(records, record(at_s=now_s - 86_400 * (TEST_INTERVAL_DAYS + 2)))
    assert [why.code for why in records.state_sentences(model)] == ["constancy_passed", "constancy_due"]
    add(records, record(at_s=now_s, program="0.1.0", different=1))
    assert [why.code for why in records.state_sentences(model)] == ["constancy_failed", "constancy_due"]
    add(records, record(at_s=now_s, device="edgetpu"))
    assert [why.code for why in records.state_sentences(model)] == [
        "constancy_failed",
        "constancy_passed",
        "constancy_due",
    ]
    assert records.state_sentences(replace(model, model_sha256="other"))[0].code == "constancy_never"


def test_damaged_records_are_never_read_as_empty(tmp_path: Path) -> None:
    records = ConstancyRecords(tmp_path)
    add(records, record())
    records.path.write_bytes(damaged := records.path.read_bytes()[:-9])
    with pytest.raises(StorageProblem):
        add(records, record())
    assert codes(records.state_sentences(tiny_model())) == ["constancy_unreadable"]
    assert records.path.read_bytes() == damaged
