"""Prior images: found in a store, read from a file, and compared by processes that end with the window."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.domain.comparison import ComparisonProblem, PairComparison
from fieldray.domain.finding import Outcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.prior_image import PriorImage, prior_from
from fieldray.errors import Cancelled, EnvironmentProblem, InputProblem, Unreadable, UsageProblem
from fieldray.imaging.synthetic import chest_phantom
from fieldray.pipeline.compare import ComparedPair, PairImage, PriorFinder
from fieldray.reasons import reason
from outcomes import failed, image_ref, read_facts, screened
from phantoms import write_dicom
from raised import raises
from stores import keep


def image(folder: Path, name: str, day: str, *, patient: str = "PX-1", content: str = "") -> Outcome:
    header = ImageHeader(patient_id=patient, study_date=day, sop_instance_uid=f"1.2.{name}")
    ref = replace(image_ref(name, header=header), path=folder / name)
    return replace(screened(ref), facts=read_facts(hashlib.sha256((content or name).encode()).hexdigest()))


class FakeComparer:
    """Answers once `may_answer` is set; `cancel` ends a waiting comparison."""

    def __init__(self) -> None:
        self.asked: list[tuple[ImageRef, ImageRef]] = []
        self.read: dict[str, str] = {}  # by file name: the content that the file is found to have
        self.may_answer, self.is_asked = threading.Event(), threading.Event()
        self.is_cancelled = self.is_closed = False
        self.may_answer.set()

    def compare(
        self, prior: ImageRef, current: ImageRef, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> ComparedPair:
        self.asked.append((prior, current))
        self.is_asked.set()
        self.may_answer.wait(10)
        if self.is_cancelled:
            raise Cancelled
        problem = ComparisonProblem(reason=reason("compare_unlike"))
        comparison = PairComparison(prior=None, current=None, problem=problem)
        found = [PairImage(ref=ref, facts=read_facts(self.read.get(ref.path.name, ""))) for ref in (prior, current)]
        return ComparedPair(prior=found[0], current=found[1], comparison=comparison)

    def cancel(self) -> None:
        self.is_cancelled = True
        self.may_answer.set()


@pytest.fixture
def comparer() -> FakeComparer:
    return FakeComparer()


@pytest.fixture
def priors(tmp_path: Path, comparer: FakeComparer) -> PriorFinder:
    def opened(ends: contextlib.ExitStack) -> FakeComparer:
        ends.callback(lambda: setattr(comparer, "is_closed", True))
        return comparer

    return PriorFinder(tmp_path / "results.sqlite", opened)  # type: ignore[arg-type]


def test_each_prior_image_is_found_once_with_its_newest_result(tmp_path: Path, priors: PriorFinder) -> None:
    current = image(tmp_path, "current.dcm", "20240405")
    before, older = image(tmp_path, "before.dcm", "20210205"), image(tmp_path, "older.dcm", "20190101")
    another = image(tmp_path, "another.dcm", "20210205", patient="PX-11")
    gone = image(tmp_path, "gone.dcm", "20200101")
    broken = replace(failed(image_ref("broken.dcm")), ref=replace(before.ref, path=tmp_path / "broken.dcm"))
    for there in (current, before, older, another, broken):
        there.ref.path.touch()
    for outcomes in ([before, older, gone], [current, before, another, broken]):
        keep(tmp_path / "results.sqlite", outcomes)
    found = priors.stored_priors(current)
    assert [found_image.ref.path.name for found_image in found.images] == ["before.dcm", "older.dcm"]
    assert [found_image.run_id for found_image in found.images] == [2, 1]
    assert found.missing_file_count == 1


def test_without_a_patient_id_no_priors_are_searched_for(tmp_path: Path, priors: PriorFinder) -> None:
    keep(tmp_path / "results.sqlite", [image(tmp_path, "a.dcm", "20210205", patient="")])
    assert priors.stored_priors(image(tmp_path, "b.dcm", "20240405", patient="")).images == ()
    assert priors.stored_priors(image(tmp_path, "b.dcm", "20240405", patient="ANONYMOUS")).images == ()


@pytest.mark.parametrize("number", ['"', "\\", "%_", "é \u202e", "' OR 1=1 --", '", "patient_id": "PX-1', "y" * 70_000])
def test_a_patient_id_matches_only_itself(tmp_path: Path, priors: PriorFinder, number: str) -> None:
    hostile = image(tmp_path, "hostile.dcm", "20210205", patient=number)
    plain = image(tmp_path, "plain.dcm", "20210205")
    for outcome in (hostile, plain):
        outcome.ref.path.touch()
    keep(tmp_path / "results.sqlite", [hostile, plain])
    (found,) = priors.stored_priors(image(tmp_path, "current.dcm", "20240405", patient=number)).images
    assert found.ref.path == hostile.ref.path


def test_a_chosen_file_is_read_with_its_header(tmp_path: Path, priors: PriorFinder) -> None:
    write_dicom(tmp_path / "a.dcm", chest_phantom(160, 128, seed=1, abnormal=False))
    found = priors.screen_file(tmp_path / "a.dcm", image(tmp_path, "current.dcm", "20240405"))
    assert found.ref.kind == "dicom"
    assert found.facts.content_sha256 == ""
    assert found.category == "not_assessed"


def test_a_chosen_file_is_screened_with_the_current_operating_point(tmp_path: Path) -> None:
    write_dicom(tmp_path / "a.dcm", chest_phantom(160, 128, seed=1, abnormal=False))
    current, asked = image(tmp_path, "current.dcm", "20240405"), list[str | None]()

    def screen(ref: ImageRef, point: str | None) -> Outcome | None:
        asked.append(point)
        if len(asked) == 1:
            return screened(ref)
        if len(asked) == 2:
            return replace(failed(ref), ref=ref)
        raise UsageProblem(reason("operating_point", name="x", known="y"))

    made = PriorFinder(tmp_path / "results.sqlite", lambda ends: FakeComparer(), screen)  # type: ignore[arg-type, return-value]
    categories = [made.screen_file(tmp_path / "a.dcm", current).category for _ in range(3)]
    assert categories == ["abnormal", "not_assessed", "not_assessed"]
    assert asked == ["screening"] * 3


def test_a_chosen_file_without_an_image_is_refused_with_a_reason(tmp_path: Path, priors: PriorFinder) -> None:
    (tmp_path / "notes.txt").write_text("no image", encoding="utf-8")
    (tmp_path / "empty.dcm").touch()
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    current = image(tmp_path, "current.dcm", "20240405")
    codes = {"notes.txt": "not_an_image", "empty.dcm": "empty", "folder": "prior_no_image", "a.zip": "prior_in_zip"}
    for name, code in codes.items():
        with raises(InputProblem, code):
            priors.screen_file(tmp_path / name, current)
    with pytest.raises(UsageProblem):
        priors.screen_file(tmp_path / "absent.dcm", current)


def pair(folder: Path) -> tuple[PriorImage, Outcome]:
    current = image(folder, "current.dcm", "20240405")
    return prior_from(image(folder, "before.dcm", "20210205"), current, "history"), current


def test_one_comparer_serves_all_pairs_and_closes_with_the_finder(
    tmp_path: Path, priors: PriorFinder, comparer: FakeComparer
) -> None:
    prior, current = pair(tmp_path)
    for _ in range(2):
        assert priors.compare(prior, current).problem.reason.code == "compare_unlike"
    assert comparer.asked == 2 * [(prior.outcome.ref, current.ref)]
    priors.close()
    assert comparer.is_closed
    with pytest.raises(EnvironmentProblem):
        priors.compare(prior, current)


@pytest.mark.parametrize("replaced", ["before.dcm", "current.dcm"])
def test_a_file_replaced_since_screening_is_not_compared(
    tmp_path: Path, priors: PriorFinder, comparer: FakeComparer, replaced: str
) -> None:
    prior, current = pair(tmp_path)
    comparer.read = {one.ref.path.name: one.facts.content_sha256 for one in (prior.outcome, current)}
    assert priors.compare(prior, current).problem.reason.code == "compare_unlike"
    comparer.read[replaced] = hashlib.sha256(b"another image").hexdigest()
    with raises(Unreadable, "changed"):
        priors.compare(prior, current)


def test_closing_ends_the_comparison_under_way(tmp_path: Path, priors: PriorFinder, comparer: FakeComparer) -> None:
    prior, current = pair(tmp_path)
    comparer.may_answer.clear()
    raised: list[Exception] = []

    def work() -> None:
        try:
            priors.compare(prior, current)
        except Cancelled as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert comparer.is_asked.wait(10)
    priors.close()
    thread.join(10)
    assert len(raised) == 1
    assert comparer.is_closed


def test_a_comparer_that_fails_to_open_is_cleaned_up(tmp_path: Path) -> None:
    ended: list[bool] = []

    def opened(ends: contextlib.ExitStack) -> FakeComparer:
        ends.callback(lambda: ended.append(True))
        raise EnvironmentProblem(reason("compare_no_lungs_pack"))

    made = PriorFinder(tmp_path / "results.sqlite", opened)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentProblem):
        made.compare(*pair(tmp_path))
    assert ended == [True]
    made.close()
