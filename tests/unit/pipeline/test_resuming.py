"""Results that a run reuses for unchanged files, recognised by a sample of their content or by the whole content."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeEngine, FakeReaders
from fieldray.domain.finding import notes_of
from fieldray.domain.image import Correction, ImageRef
from fieldray.domain.model import HeaderRules, Model
from fieldray.domain.pack_setup import PackSetup, set_up_pack
from fieldray.domain.run import Event, ImageDone, ResultsTakenOver, ResumeOptions, RunChanged
from fieldray.imaging.source import FileStamper
from fieldray.imaging.whole_file import hash_file, read_bytes_and_state
from fieldray.pipeline.batch import Batch, make_batch
from fieldray.pipeline.batch_ports import BatchOptions, BatchPack, BatchPorts
from fieldray.pipeline.run_recorder import ResultsByContent
from fieldray.reasons import reason
from fieldray.store.deletion import delete_runs
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from fieldray.workers.pool import PoolClosed
from outcomes import image_ref, operating_point, pack_spec, run_spec, screened
from program import write_images
from tiny_models import tiny_manifest, tiny_model

SETUP = set_up_pack(tiny_model())


@pytest.fixture(autouse=True)
def _allow_stamps_of_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow stamps for new files: the files of these tests were made a moment ago."""
    monkeypatch.setattr("fieldray.imaging.source._MARGIN_S", -3600.0)


class Readers(FakeReaders):
    """Reads existing files and stamps them; records which files are hashed as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.hashed: list[str] = []
        self._stamps: FileStamper | None = None

    def set_stamper(self, stamps: FileStamper) -> None:
        self._stamps = stamps

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        ref, found = question.ref, super().analyse(question, model=model)
        data, state = read_bytes_and_state(ref)
        assert self._stamps
        stamp = b"" if ref.zip_member else self._stamps.stamp_of_data(ref.path, data, state)
        facts = replace(found.facts, content_sha256=hashlib.sha256(data).hexdigest(), file_stamp=stamp)
        return replace(found, facts=facts)

    def hash_file(self, ref: ImageRef) -> tuple[str, bytes]:
        assert self._stamps
        self.hashed.append(ref.path.name)
        return hash_file(ref, stamper=self._stamps)


class Run:
    """One completed run over a folder."""

    def __init__(
        self, folder: Path, *, stop_after: int = 0, setups: Sequence[PackSetup] = (SETUP,), **options: Any
    ) -> None:
        self.readers, self.events = Readers(), list[Event]()
        self.database, self._stop_after = folder.parent / "results.sqlite", stop_after
        self.batch: Batch = make_batch(
            [folder],
            setups,
            engine=FakeEngine(),
            workers=self.readers,
            database=self.database,
            publish=self._publish,
            options=BatchOptions(**options),
        )
        self.batch.start()
        assert self.batch.join(20)

    def _publish(self, event: Event) -> None:
        self.events.append(event)
        if self._stop_after and len(self.ready) == self._stop_after:
            self.batch.cancel()

    @property
    def ready(self) -> list[ImageDone]:
        return [event for event in self.events if isinstance(event, ImageDone)]

    @property
    def ways(self) -> dict[str, str]:
        """By file name: "screened", or recognised by its whole "content" or by a "sample" of it."""
        ways = {(False, False): "screened", (True, False): "content", (True, True): "sample"}
        return {
            event.image.most_urgent_result.outcome.ref.path.name: ways[
                event.image.most_urgent_result.is_reused, event.image.most_urgent_result.is_file_recognised_by_sample
            ]
            for event in self.ready
        }

    @property
    def taken_over(self) -> tuple[int, int]:
        """How many results were reused: recognised by a sample, and by the whole content."""
        counted = "SELECT is_resumed, COUNT(*) FROM answers WHERE run_id = ? GROUP BY 1"
        with closing(sqlite3.connect(self.database)) as store:
            found = dict(store.execute(counted, (self.batch.run_id,)).fetchall())
        return found.get(2, 0), found.get(1, 0)

    @property
    def notes(self) -> tuple[Any, ...]:
        ended = next(event for event in reversed(self.events) if isinstance(event, RunChanged))
        return (*ended.notes, *(note for notes in ended.pack_notes for note in notes))

    @property
    def pack_notes(self) -> tuple[tuple[Any, ...], ...]:
        return next(event.pack_notes for event in reversed(self.events) if isinstance(event, RunChanged))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Five images of eighteen kilobytes, in a folder of their own."""
    write_images(tmp_path / "images", 5, side=128)
    return tmp_path / "images"


def names(images: Path) -> set[str]:
    return {path.name for path in images.iterdir()}


def test_unchanged_files_are_recognised_by_a_sample_with_a_note(images: Path) -> None:
    first, second = Run(images), Run(images)
    assert second.batch.run_id != first.batch.run_id
    assert second.ways == dict.fromkeys(names(images), "sample")
    assert (second.readers.hashed, second.readers.read_names) == ([], [])
    assert second.notes == (reason("taken_over", count=5, sampled=5, whole=0),)
    assert (first.taken_over, second.taken_over) == ((0, 0), (5, 0))
    before, after = (
        {event.image.most_urgent_result.outcome.ref.path: event.image.most_urgent_result.outcome for event in run.ready}
        for run in (first, second)
    )
    for path, outcome in after.items():
        assert (outcome.facts.content_sha256, outcome.ref) == (before[path].facts.content_sha256, before[path].ref)


def test_verifying_reads_every_file_as_a_whole(images: Path) -> None:
    Run(images)
    second = Run(images, resume_options=ResumeOptions(verifies_content=True))
    assert second.ways == dict.fromkeys(names(images), "content")
    assert second.notes == (reason("taken_over", count=5, sampled=0, whole=5),)
    assert Run(images).taken_over == (5, 0)


def test_an_interrupted_run_resumes_with_its_own_rows(images: Path) -> None:
    first = Run(images, stop_after=1)
    done = set(first.ways)
    assert 0 < len(done) < 5
    second = Run(images)
    assert second.batch.run_id == first.batch.run_id
    assert second.ways == {name: "sample" if name in done else "screened" for name in names(images)}
    with HistoryQuery(second.database) as query:
        assert Counter(result.outcome.ref.path.name for result in query.results(second.batch.run_id)) == Counter(
            names(images)
        )
        rows = {result.row_id for result in query.results(second.batch.run_id)}
    assert rows == {event.image.most_urgent_result.result_id for event in (*first.ready, *second.ready)}


def rewrite(path: Path) -> None:
    """Write another content of the same size with the same modification time."""
    before, data = path.stat(), path.read_bytes()
    time.sleep(0.02)
    path.write_bytes(data[:-30] + bytes(30))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def exchange(path: Path) -> None:
    shutil.copyfile(path.with_name("image-004.png"), path)


@pytest.mark.parametrize(
    ("change", "way"),
    [(rewrite, "screened"), (exchange, "content"), (lambda path: os.utime(path, (1, 1)), "content")],
    ids=["rewritten", "exchanged", "touched"],
)
def test_a_changed_file_is_read_as_a_whole(images: Path, change: Callable[[Path], None], way: str) -> None:
    Run(images)
    change(images / "image-001.png")
    second = Run(images)
    assert second.ways == {name: way if name == "image-001.png" else "sample" for name in names(images)}
    (changed,) = (
        event for event in second.ready if event.image.most_urgent_result.outcome.ref.path.name == "image-001.png"
    )
    content = hashlib.sha256((images / "image-001.png").read_bytes()).hexdigest()
    assert changed.image.most_urgent_result.outcome.facts.content_sha256 == content
    assert Run(images).taken_over == (5, 0)


def test_a_renamed_file_is_read_as_a_whole(images: Path) -> None:
    Run(images)
    (images / "image-000.png").rename(images / "new name.png")
    assert Run(images).ways["new name.png"] == "content"


def test_reused_results_can_be_published_as_counts_by_class(images: Path) -> None:
    (images / "image-003.png").rename(images / "blank.png")
    (images / "image-004.png").rename(images / "bright.png")
    Run(images)
    second = Run(images, resume_options=ResumeOptions(reports_each_image=False))
    assert second.ready == []
    taken_over = [event for event in second.events if isinstance(event, ResultsTakenOver)]
    counts = Counter[tuple[str, tuple[str, ...]]]()
    for event in taken_over:
        counts.update(
            {(kind.category, kind.reason_and_note_codes): kind.result_count for kind in event.result_counts[0]}
        )
    assert counts == {("normal", ()): 3, ("abnormal", ()): 1, ("refused", ("blank",)): 1}
    with HistoryQuery(second.database) as query:
        rows = [result.row_id for result in query.results(second.batch.run_id)]
    assert sorted(row for event in taken_over for row in event.row_ids) == rows


@pytest.mark.parametrize("verifies", [False, True])
def test_overruled_results_are_reused_in_the_same_and_later_runs(images: Path, verifies: bool) -> None:
    """They keep their notes, which the run counts. A fresh run screens without the person's request."""
    first = Run(images, stop_after=4)
    was = first.ready[0].image.most_urgent_result.outcome
    side = reason("view", view="LL")
    wished = replace(was, ref=replace(was.ref, correction=Correction(90)), notes=(reason("screened_anyway"), side))
    with ResultStore(first.database) as store:
        store.save_image(first.batch.run_id, wished, spec=first.batch.spec)
    for number in (first.batch.run_id, first.batch.run_id + 1):
        again = Run(images, resume_options=ResumeOptions(verifies_content=verifies))
        assert again.batch.run_id == number
        (found,) = (
            event.image.most_urgent_result.outcome
            for event in again.ready
            if event.image.most_urgent_result.outcome.ref.path == was.ref.path
        )
        assert (found.ref, notes_of(found)) == (wished.ref, wished.notes)
        assert reason("asked_for_images", count=1) in again.notes
    afresh = Run(images, as_new_run=True)
    assert {notes_of(event.image.most_urgent_result.outcome) for event in afresh.ready} == {()}
    assert afresh.notes == ()


CHILDREN = tiny_model(manifest=tiny_manifest(accepted=HeaderRules(ages_years=(1, 5))))


@pytest.mark.parametrize("confirmed_first", [True, False])
@pytest.mark.parametrize("verifies", [False, True], ids=["by a sample", "by the content"])
def test_another_answer_about_ages_changes_notes_without_reading_images(
    images: Path, *, confirmed_first: bool, verifies: bool
) -> None:
    """In a run of two packs, the pack for all ages has no note on ages."""

    def run(*, ages_confirmed: bool, **options: Any) -> Run:
        packs = [set_up_pack(model, ages_confirmed=ages_confirmed) for model in (CHILDREN, tiny_model())]
        return Run(images, setups=packs, **options)

    def answered(made: Run) -> dict[str, list[tuple[Any, ...]]]:
        with HistoryQuery(made.database) as query:
            kept = query.images([event.image.row_id for event in made.ready])
        return {
            image.most_urgent_result.outcome.ref.path.name: [
                (answer.outcome.category, notes_of(answer.outcome)) for answer in image.results
            ]
            for image in kept
        }

    first = run(ages_confirmed=confirmed_first)
    second = run(ages_confirmed=not confirmed_first, resume_options=ResumeOptions(verifies_content=verifies))
    assert (second.readers.read_names, len(second.ready)) == ([], 5)
    assert second.batch.run_id != first.batch.run_id
    fresh = run(ages_confirmed=not confirmed_first, as_new_run=True)
    assert sorted(fresh.readers.read_names) == sorted(2 * [*names(images)])
    assert answered(second) == answered(fresh)
    assert {tuple(note.code for note in said[0][1]) for said in answered(second).values()} == {
        ("age_not_stated" if confirmed_first else "age_confirmed",)
    }
    assert {said[1][1] for said in answered(second).values()} == {()}
    back = run(ages_confirmed=confirmed_first)
    assert (back.readers.read_names, answered(back)) == ([], answered(first))


def test_a_missing_image_that_is_back_is_listed_again(images: Path) -> None:
    Run(images, stop_after=3)
    away = images.parent / "away.png"
    (images / "image-000.png").rename(away)
    finished = Run(images)
    with ResultStore(finished.database) as store:
        store.set_run_state(finished.batch.run_id, "cancelled")
    away.rename(images / "image-000.png")
    again = Run(images)
    assert again.batch.run_id == finished.batch.run_id
    with HistoryQuery(again.database) as query:
        assert query.absent_images(again.batch.run_id) == ()
        assert len(list(query.results(again.batch.run_id))) == 5


@pytest.mark.parametrize("change", ["key", "pack"])
def test_stamps_hold_for_one_key_and_one_version_of_the_rules(
    images: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(images)
    if change == "key":
        with closing(sqlite3.connect(first.database)) as connection, connection:
            connection.execute("UPDATE secrets SET value = randomblob(32)")
    else:
        monkeypatch.setattr("fieldray.domain.pack_setup._RULES_VERSION", 99)
    assert set(Run(images).ways.values()) == {"content" if change == "key" else "screened"}


def test_earlier_results_deleted_during_a_run_fail_it_until_the_next_start(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(images)

    def deleted_first(*arguments: Any, **options: Any) -> Any:
        delete_runs(first.database, [first.batch.run_id])
        return taken_over(*arguments, **options)

    taken_over = ResultStore.reuse_results
    monkeypatch.setattr(ResultStore, "reuse_results", deleted_first)
    second = Run(images)
    assert (second.batch.state, second.batch.reason and second.batch.reason.code) == ("failed", "results_lost")
    monkeypatch.undo()
    third = Run(images)
    assert (third.batch.state, set(third.ways.values())) == ("finished", {"screened"})


def test_a_file_that_became_a_link_or_zip_is_not_recognised_by_a_sample(images: Path) -> None:
    Run(images)
    first, second = images / "image-000.png", images / "image-001.png"
    first.rename(images.parent / "elsewhere.png")
    first.symlink_to(images.parent / "elsewhere.png")
    second.write_bytes(b"PK\x05\x06" + bytes(18))
    again = Run(images)
    assert again.ways["image-000.png"] == "content"
    assert again.ways["image-001.png"] == "screened"
    assert again.taken_over == (3, 1)


def test_hundreds_of_files_in_many_folders_are_all_recognised(tmp_path: Path) -> None:
    """Their names sort differently than their paths, and they are more than one query returns."""
    write_images(tmp_path / "one", 1, side=64)
    (only,) = (tmp_path / "one").iterdir()
    for folder in ("a", "a.b", "a b", "b"):
        for number in range(300):
            path = tmp_path / "images" / folder / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(only, path) if number else shutil.copyfile(only, path)
    Run(tmp_path / "images", resume_options=ResumeOptions(reports_each_image=False))
    second = Run(tmp_path / "images", resume_options=ResumeOptions(reports_each_image=False))
    assert second.taken_over == (1200, 0)
    assert second.readers.hashed == []


def test_a_cancelled_hashing_ends_the_look_up(tmp_path: Path) -> None:
    def given_up(_: ImageRef) -> tuple[str, bytes]:
        raise PoolClosed

    ports = BatchPorts(
        spec=run_spec(),
        packs=[BatchPack(spec=pack_spec(), check_header=lambda _: None)],
        discover=lambda _: iter(()),
        estimate_count=lambda _: 0,
        hash_file=given_up,
        set_stamper=lambda _: None,
        screen=lambda ref, _wanted: [screened(ref)],
        end_processes=lambda: None,
    )
    with ResultStore(tmp_path / "results.sqlite") as store, pytest.raises(PoolClosed):
        ResultsByContent(ports=ports, last_result_id=0, query=store).outcomes(image_ref("a.dcm"))


STRICT_POINT = operating_point(name="strict", threshold=0.99, unsure_high=1.0)
STRICT = set_up_pack(tiny_model(manifest=tiny_manifest(pack_id="strict", operating_points=(STRICT_POINT,))))
BOTH = (SETUP, STRICT)


def kept(run: Run) -> Counter[tuple[int, str]]:
    """How often each image has an answer of each pack in this run."""
    with ResultStore(run.database) as store:
        return Counter((one.pack_position, one.outcome.ref.path.name) for one in store.results(run.batch.run_id))


def ways_of_packs(run: Run, way: str) -> Counter[tuple[int, bool]]:
    answers = [answer for event in run.ready for answer in event.image.results]
    return Counter((answer.pack_position, getattr(answer, way)) for answer in answers)


def test_a_run_of_two_packs_is_resumed_after_a_stop(images: Path) -> None:
    """Both answers for an image are committed at once, and no image is screened twice."""
    first = Run(images, setups=BOTH, stop_after=2)
    assert first.batch.state == "cancelled"
    assert {position for position, _ in kept(first)} == {0, 1} and len(set(kept(first).values())) == 1
    second = Run(images, setups=BOTH)
    assert (second.batch.state, second.batch.run_id) == ("finished", first.batch.run_id)
    assert kept(second) == Counter((position, name) for position in (0, 1) for name in names(images))
    assert Counter(event.image.ref.path.name for event in second.ready) == Counter(names(images))
    with HistoryQuery(second.database) as query:
        (run,) = query.runs()
        assert [pack.pack_name for pack in run.spec.packs] == ["tiny-1.0.0", "strict-1.0.0"]
        assert run.state == "finished"


def test_a_run_of_two_packs_reuses_results_of_a_run_of_one(images: Path) -> None:
    alone = Run(images)
    both = Run(images, setups=BOTH)
    assert ways_of_packs(both, "is_reused") == {(0, True): 5, (1, False): 5}
    (why,) = next(event.notes for event in both.events if isinstance(event, RunChanged))
    assert why.code == "points_differ" and "strict-1.0.0: strict" in why.text
    again = Run(images, setups=BOTH)
    assert again.readers.hashed == again.readers.read_names == []
    assert ways_of_packs(again, "is_file_recognised_by_sample") == {(0, True): 5, (1, True): 5}
    strict = Run(images, setups=(STRICT,))  # the second pack of one run becomes the first of another
    assert strict.readers.hashed == strict.readers.read_names == []
    assert ways_of_packs(strict, "is_file_recognised_by_sample") == {(0, True): 5}
    with HistoryQuery(alone.database) as query:
        assert len(query.runs()) == 4


def test_results_of_two_runs_of_one_pack_are_combined(images: Path) -> None:
    Run(images)
    Run(images, setups=(STRICT,))
    both = Run(images, setups=BOTH)
    assert both.readers.hashed == both.readers.read_names == []
    assert ways_of_packs(both, "is_file_recognised_by_sample") == {(0, True): 5, (1, True): 5}
    codes = [[note.code for note in notes] for notes in both.pack_notes]
    assert codes == [["taken_over"], ["taken_over"]]


def test_display_only_header_fields_do_not_prevent_reuse(images: Path) -> None:
    """Earlier versions of the program did not read these fields; touched files are recognised by their content."""
    first = Run(images)
    change = "UPDATE images SET header = json_set(header, '$.{}', 'another')"
    for name, way in (("manufacturer", "content"), ("study_description", "content"), ("patient_id", "screened")):
        with closing(sqlite3.connect(first.database)) as store, store:
            store.execute(change.format(name))
        for path in images.iterdir():
            os.utime(path, (1e9, 1e9))
        assert set(Run(images, resume_options=ResumeOptions(verifies_content=True)).ways.values()) == {way}, name
