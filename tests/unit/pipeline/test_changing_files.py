"""Files that change between their discovery and their reading by the child, or between two runs.

One outcome is of one file: header, hash and pixels are of the same bytes, whatever had this name before.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeEngine, RunElsewhere
from fieldray.domain.finding import Outcome, ScreenedOutcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.model import HeaderRules, InputSpec, Model
from fieldray.domain.pack_setup import set_up_pack
from fieldray.domain.run import Event, ImageDone
from fieldray.imaging.synthetic import chest_phantom
from fieldray.pipeline.batch import Batch, make_batch
from fieldray.pipeline.batch_ports import BatchOptions
from fieldray.store.results import ResultQuery
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from fieldray.workers.pool import WorkerPool
from phantoms import write_bad_inputs, write_collection, write_dicom
from tiny_models import tiny_manifest, tiny_model

IMAGE = chest_phantom(160, 128, 7, abnormal=False)
ADULTS = set_up_pack(tiny_model(manifest=tiny_manifest(accepted=HeaderRules(ages_years=(18, 90)))))
Change = Callable[[Path], None]


class WorkersThatChangeFiles:
    """Real workers; before a file is opened for the first time, the test changes the file."""

    def __init__(self, pool: WorkerPool, changes: Mapping[str, Change]) -> None:
        self._pool = pool
        self._changes = dict(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def analyse_for_models(
        self, questions: Sequence[tuple[AnalysisRequest, Model | None]], *, run_elsewhere: RunElsewhere, **_: Any
    ) -> tuple[AnalysisResult, ...]:
        ((question, model),) = questions
        self._change(question.ref)
        assert model
        seen = self._pool.analyse(
            replace(question, whole_image_input_spec=model.manifest.input, classifier_location="nowhere"), model=None
        )
        if seen.input_values is not None and not seen.problem:
            run_elsewhere(0, seen.input_values)
        return (seen,)

    def hash_file(self, ref: ImageRef) -> tuple[str, bytes]:
        self._change(ref)
        return self._pool.hash_file(ref)

    def abort_calls(self) -> None:
        """Nothing: the pool belongs to the module."""

    def _change(self, ref: ImageRef) -> None:
        change = self._changes.pop(ref.path.name, None)
        if change:
            change(ref.path)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """A pool whose child and helper processes have started before a test looks for leftover processes."""
    first = ImageRef(path=image(tmp_path_factory.mktemp("first") / "image.dcm"))
    with WorkerPool(1, timeout_s=30, memory_limit_mb=1024) as pool:
        pool.read_network_input(first, InputSpec(height=64, width=64))
        yield pool


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An empty folder to screen."""
    folder = tmp_path / "images"
    folder.mkdir()
    return folder


class Screening:
    """One completed run over a folder: the batch, and the outcomes by file name."""

    def __init__(
        self, folder: Path, pool: WorkerPool, changes: Mapping[str, Change] | None = None, *, as_new_run: bool = False
    ) -> None:
        self.events: list[ImageDone] = []
        self.database = folder.parent / "results.sqlite"
        self.batch: Batch = make_batch(
            [folder],
            [ADULTS],
            engine=FakeEngine(),
            workers=WorkersThatChangeFiles(pool, changes or {}),
            database=self.database,
            publish=self._publish,
            options=BatchOptions(as_new_run=as_new_run),
        )
        self.batch.start()
        assert self.batch.join(60)
        assert self.batch.state == "finished"

    def _publish(self, event: Event) -> None:
        if isinstance(event, ImageDone):
            self.events.append(event)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        return {
            event.image.most_urgent_result.outcome.ref.path.name: event.image.most_urgent_result.outcome
            for event in self.events
        }

    @property
    def taken_over(self) -> set[str]:
        return {
            event.image.most_urgent_result.outcome.ref.path.name
            for event in self.events
            if event.image.most_urgent_result.is_reused
        }


def image(path: Path, *, age: str = "045Y", number: int = 1) -> Path:
    """A chest X-ray of a patient of this age."""
    return write_dicom(path, IMAGE, number=number, changes={"PatientAge": age, "PatientID": f"P-{age}-{number}"})


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def become(make: Callable[[Path], object]) -> Change:
    """Replace the file at once, as a copy program does by renaming a temporary file."""

    def change(path: Path) -> None:
        temporary = path.with_name(f".{path.name}.temporary")  # two files change at the same time
        make(temporary)
        temporary.replace(path)

    return change


def child(path: Path) -> object:
    return image(path, age="007Y")


@pytest.mark.parametrize(("before", "after"), [("045Y", "007Y"), ("007Y", "045Y")])
def test_a_file_swapped_after_discovery_is_judged_by_its_new_header(
    images: Path, pool: WorkerPool, before: str, after: str
) -> None:
    path = image(images / "a.dcm", age=before)
    outcome = Screening(images, pool, {"a.dcm": become(lambda path: image(path, age=after))}).outcomes["a.dcm"]
    assert outcome.status == ("refused" if after == "007Y" else "screened")
    assert (outcome.ref.header.patient_age_years, outcome.ref.header.patient_id) == (int(after[:3]), f"P-{after}-1")
    assert outcome.facts.content_sha256 == hash_of(path)


@pytest.mark.parametrize("as_new_run", [True, False])
def test_the_result_of_a_swapped_file_is_not_reused_for_another_image(
    images: Path, pool: WorkerPool, as_new_run: bool
) -> None:
    image(images / "a.dcm")
    Screening(images, pool, {"a.dcm": become(child)})
    for again in (Screening(images, pool, as_new_run=as_new_run), Screening(images, pool)):
        outcome = again.outcomes["a.dcm"]
        assert outcome.status == "refused"
        assert (outcome.reason.code, outcome.ref.header.patient_age_years) == ("age", 7.0)
    image(images / "a.dcm")
    assert Screening(images, pool, {"a.dcm": become(child)}).outcomes["a.dcm"].status == "refused"


def test_two_swapped_files_get_the_earlier_result_of_their_new_content(images: Path, pool: WorkerPool) -> None:
    """Discovery saw the other file's header, so neither that header nor its score may be used."""
    child(images / "a.dcm")
    image(images / "b.dcm", number=2)
    Screening(images, pool)
    adult, infant = (images / "b.dcm").read_bytes(), (images / "a.dcm").read_bytes()
    swaps = {
        "a.dcm": become(lambda path: path.write_bytes(adult)),
        "b.dcm": become(lambda path: path.write_bytes(infant)),
    }
    outcomes = Screening(images, pool, swaps).outcomes
    assert {name: (outcome.status, outcome.ref.header.patient_id) for name, outcome in outcomes.items()} == {
        "a.dcm": ("screened", "P-045Y-2"), "b.dcm": ("refused", "P-007Y-1")
    }  # fmt: skip
    for outcome in outcomes.values():
        assert outcome.facts.content_sha256 == hash_of(outcome.ref.path)


def test_a_refusal_by_header_has_a_hash_and_is_reused(images: Path, pool: WorkerPool) -> None:
    path = images / "a.dcm"
    child(path)
    first = Screening(images, pool).outcomes["a.dcm"]
    assert first.facts.content_sha256 == hash_of(path)
    again = Screening(images, pool)
    assert again.taken_over == {"a.dcm"}
    assert again.outcomes["a.dcm"].ref == first.ref


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(bytes(1000))


def into_frames(path: Path) -> object:
    return write_dicom(path, IMAGE, changes={"NumberOfFrames": 3})


def into_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inside.dcm", b"nothing")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (cut, "failed", "truncated"),
        (grow, "screened", None),
        (Path.unlink, "failed", "missing"),
        (lambda path: path.rename(path.with_name("elsewhere.dcm")), "failed", "missing"),
        (become(lambda path: path.write_text("a note")), "refused", "not_an_image"),
        (become(lambda path: path.write_bytes(b"")), "failed", "empty"),
        (become(into_frames), "failed", "changed"),
        (become(into_zip), "failed", "changed"),
        (lambda path: (path.unlink(), path.mkdir()), "failed", "unreadable"),
    ],
    ids=["cut", "grown", "deleted", "renamed", "a note", "emptied", "several frames", "a zip", "a folder"],
)
def test_a_file_that_changes_during_a_run_affects_only_its_own_result(
    images: Path, pool: WorkerPool, change: Change, status: str, code: str | None
) -> None:
    paths = [image(images / f"{name}.dcm", number=number) for number, name in enumerate("abc")]
    outcomes = Screening(images, pool, {"b.dcm": change}).outcomes
    assert {name: outcome.status for name, outcome in outcomes.items() if name != "elsewhere.dcm"} == {
        "a.dcm": "screened", "b.dcm": status, "c.dcm": "screened"
    }  # fmt: skip
    outcome = outcomes["b.dcm"]
    assert (None if isinstance(outcome, ScreenedOutcome) else outcome.reason.code) == code
    if paths[1].is_file() and code != "empty":
        assert outcome.facts.content_sha256 == hash_of(paths[1])
    if code == "not_an_image":  # nothing of the old file is stored
        assert (outcome.ref.kind, outcome.ref.header) == ("unknown", ImageHeader())


def test_discovery_and_the_child_read_the_same_header_of_the_same_file(images: Path, pool: WorkerPool) -> None:
    """Otherwise a result would never be reused."""
    write_collection(images)
    write_bad_inputs(images)
    first = Screening(images, pool)
    again = Screening(images, pool)
    kept = {name for name, outcome in first.outcomes.items() if outcome.status != "failed" and not outcome.ref.problem}
    assert len(kept) > 20
    assert again.taken_over >= kept


def test_a_result_whose_header_is_refused_is_not_reused(images: Path, pool: WorkerPool) -> None:
    """A stored score that the pack must not give, whoever wrote it, is replaced by a new result."""
    image(images / "a.dcm")
    first = Screening(images, pool)
    child(images / "a.dcm")
    with closing(sqlite3.connect(first.database)) as connection, connection:
        (text,) = connection.execute("SELECT header FROM images").fetchone()
        header = json.loads(text) | {"patient_age_years": 7.0, "patient_id": "P-007Y-1"}
        wrong = (json.dumps(header), bytes.fromhex(hash_of(images / "a.dcm")))
        connection.execute("UPDATE images SET header = ?, content_sha256 = ?", wrong)
    again = Screening(images, pool)
    assert again.taken_over == set()
    assert again.outcomes["a.dcm"].status == "refused"
    with ResultQuery(first.database) as decoder:
        assert decoder.category_counts(again.batch.run_id) == {"refused": 1}
