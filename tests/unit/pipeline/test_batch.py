from __future__ import annotations

import csv
import itertools
import json
import os
import queue
import shutil
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from fakes import FakeEngine, FakeReaders, never
from fieldray.domain.finding import Outcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.pack_setup import set_up_pack
from fieldray.domain.run import Event, ImageDone, PackOfRun, Progress, RunChanged, Speed, StoreRepaired
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.imaging.quality import check_header
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.batch_ports import BatchPack, BatchPorts
from fieldray.pipeline.export import ExportRequest, export_run
from fieldray.pipeline.screen import screen_image
from fieldray.pipeline.statistics import InferenceStatistics
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import ReportOptions
from fieldray.store.database import damage_mark_path
from fieldray.store.results import ResultQuery
from fieldray.workers.pool import PoolClosed
from outcomes import run_spec
from tiny_models import tiny_model

SPEC = run_spec()


def finish_another_run(folder: Path) -> None:
    """Let another run screen 100 images, as time for the first run to make a mistake."""
    Run(
        folder, [f"dark{number}.png" for number in range(100)], as_new_run=True, database=folder / "other.sqlite"
    ).finish()


def refs(names: Sequence[str]) -> list[ImageRef]:
    return [ImageRef(path=Path("/images") / name) for name in names]


def endless_refs() -> Iterator[ImageRef]:
    return (ImageRef(path=Path(f"/images/dark{number}.png")) for number in itertools.count())


class Run:
    """A batch over images of these names, and the events that it published."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        as_new_run: bool = False,
        engine: FakeEngine | None = None,
        discover: Callable[[], Iterator[ImageRef]] | None = None,
        listener: Callable[[Event], None] = lambda event: None,
        database: Path | None = None,
        readers: FakeReaders | None = None,
        count: Callable[[], int] | None = None,
        warnings: Callable[[PackOfRun], Sequence[Reason]] = lambda _pack: (),
    ) -> None:
        self.events: list[Event] = []
        self.readers = readers or FakeReaders()
        self.listener = listener
        cancelled = threading.Event()
        setup = set_up_pack(tiny_model())
        engine = engine or FakeEngine()

        def screen(ref: ImageRef) -> Outcome:
            return screen_image(ref, setup=setup, workers=self.readers, engine=engine, is_cancelled=cancelled.is_set)

        def accepts(header: ImageHeader) -> Reason | None:
            return check_header(header, setup.model.manifest.accepted)

        def release() -> None:
            cancelled.set()
            self.readers.close()

        ports = BatchPorts(
            spec=SPEC,
            packs=[BatchPack(spec=SPEC.packs[0], check_header=accepts, find_warnings=warnings)],
            discover=lambda is_known: discover() if discover else iter(refs(names)),
            estimate_count=lambda gives_up: count() if count else len(names),
            hash_file=self.readers.hash_file,
            set_stamper=self.readers.set_stamper,
            screen=lambda ref, _wanted: [screen(ref)],
            end_processes=release,
        )
        self.database = database or folder / "results.sqlite"
        self.batch = Batch(
            ports,
            database=self.database,
            publish=self.publish,
            threads=2,
            as_new_run=as_new_run,
            statistics=InferenceStatistics(load=lambda: (10.0, 100.0)),
        )

    def publish(self, event: Event) -> None:
        self.events.append(event)
        self.listener(event)

    def finish(self) -> Run:
        self.batch.start()
        assert self.batch.join(20)
        return self

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def names(self) -> list[str]:
        """The names of the published images, in order."""
        return [event.image.most_urgent_result.outcome.ref.path.name for event in self.of(ImageDone)]

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.of(RunChanged)]


def test_every_image_ends_in_the_list_and_in_the_store(tmp_path: Path) -> None:
    names = ["bright.png", "dark.png", "blank.png", "cut.png", "bug.png"]
    run = Run(tmp_path, names).finish()
    assert sorted(run.names) == sorted(names)
    assert run.states == ["running", "finished"]
    assert run.batch.is_over
    with ResultQuery(run.database) as decoder:
        assert decoder.category_counts(run.batch.run_id) == {"abnormal": 1, "normal": 1, "refused": 1, "failed": 2}
        assert decoder.run(run.batch.run_id).state == "finished"
        for event in run.of(ImageDone):
            assert (
                decoder.result(event.image.most_urgent_result.result_id).outcome.ref
                == event.image.most_urgent_result.outcome.ref
            )
    last = run.of(Progress)[-1]
    assert (last.done, last.total, last.total_is_final) == (5, 5, True)
    assert run.of(Speed)[-1].memory_mb == 100.0


def test_an_outcome_is_committed_before_it_is_published(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(event: Event) -> None:
        if isinstance(event, ImageDone):
            with ResultQuery(tmp_path / "results.sqlite") as decoder:
                seen.append(decoder.result(event.image.most_urgent_result.result_id).outcome.ref.path.name)

    run = Run(tmp_path, [f"dark{number}.png" for number in range(20)], listener=look).finish()
    assert seen == run.names


class RunWithGroupedSaves:
    """A run of 20 images whose first event waits until several outcomes are ready, which are then saved together.

    stored  the names in the store at each published image
    """

    def __init__(self, folder: Path, *, cancels_at: int = 0) -> None:
        self._cancels_at = cancels_at
        self.stored: list[set[str]] = []
        self.run = Run(folder, [f"dark{number}.png" for number in range(20)], listener=self._listen)

    def _listen(self, event: Event) -> None:
        if not isinstance(event, ImageDone):
            return
        if len(self.run.names) == 1:
            while len(self.run.readers.read_names) < 8:  # two of these are being screened, one in each thread
                threading.Event().wait(0.001)
        self.stored.append(self.names_in_store())
        if len(self.run.names) == self._cancels_at:
            self.run.batch.cancel()

    def names_in_store(self) -> set[str]:
        with ResultQuery(self.run.database) as query:
            return {answer.outcome.ref.path.name for answer in query.results(self.run.batch.run_id)}


def test_outcomes_saved_together_are_committed_before_the_first_is_published(tmp_path: Path) -> None:
    grouped = RunWithGroupedSaves(tmp_path)
    told = grouped.run.finish().names
    assert all(set(told[: number + 1]) <= names for number, names in enumerate(grouped.stored))
    assert grouped.stored[0] == {told[0]}  # the first one waited for no other
    assert grouped.stored[1] >= set(told[1:5]) and len(grouped.stored[1]) <= 7


def test_a_cancel_loses_no_outcome_that_is_saved_with_others(tmp_path: Path) -> None:
    grouped = RunWithGroupedSaves(tmp_path, cancels_at=2)
    run = grouped.run.finish()
    assert (run.states[-1], set(run.names)) == ("cancelled", grouped.names_in_store())
    assert len(run.names) < 20
    names = [f"dark{number}.png" for number in range(20)]
    again = Run(tmp_path, names).finish()
    assert sorted(again.names) == sorted(names)
    assert set(run.names).isdisjoint(again.readers.read_names)


def test_earlier_results_are_reused_and_failures_are_repeated(tmp_path: Path) -> None:
    names = ["bright.png", "blank.png", "cut.png", "gone.png"]
    first = Run(tmp_path, names).finish()
    second = Run(tmp_path, [*names, "new dark.png"]).finish()
    assert second.batch.run_id != first.batch.run_id
    assert sorted(second.names) == sorted([*names, "new dark.png"])
    resumed = {
        event.image.most_urgent_result.outcome.ref.path.name: event.image.most_urgent_result.is_reused
        for event in second.of(ImageDone)
    }
    assert resumed == {
        "bright.png": True, "blank.png": True, "cut.png": False, "gone.png": False, "new dark.png": False
    }  # fmt: skip
    assert sorted(second.readers.read_names) == ["cut.png", "gone.png", "new dark.png"]


def test_two_copies_of_an_image_are_two_images(tmp_path: Path) -> None:
    places = [ImageRef(path=Path("/images/a/bright.png")), ImageRef(path=Path("/images/b/bright.png"))]
    run = Run(tmp_path, [], discover=lambda: iter(places)).finish()
    assert {event.image.most_urgent_result.outcome.ref.path for event in run.of(ImageDone)} == {
        place.path for place in places
    }
    assert len({event.image.most_urgent_result.result_id for event in run.of(ImageDone)}) == 2


def test_a_cancel_does_not_wait_for_a_file_that_hangs(tmp_path: Path) -> None:
    run = Run(tmp_path, ["slow.png", "slow too.png", "dark.png"])
    run.batch.start()
    assert run.readers.reading.wait(10)
    run.batch.cancel()
    assert run.batch.join(10)  # the fake decoder reads "slow" for ever
    assert run.states[-1] == "cancelled"


def test_a_cancel_does_not_wait_for_a_network_that_hangs(tmp_path: Path) -> None:
    asked = threading.Event()
    run = Run(tmp_path, ["dark.png"], engine=FakeEngine(answer=lambda over: (asked.set(), never(over))))
    run.batch.start()
    assert asked.wait(10)
    run.batch.cancel()
    assert run.batch.join(10)  # the fake network never answers
    assert (run.states[-1], run.names) == ("cancelled", [])


def test_a_pause_finishes_started_images_and_begins_no_other(tmp_path: Path) -> None:
    names = [f"dark{number}.png" for number in range(200)]
    started: queue.SimpleQueue[None] = queue.SimpleQueue()
    may_answer, both_saved, paused = threading.Event(), threading.Event(), threading.Event()
    engine = FakeEngine(answer=lambda _is_cancelled: (started.put(None), may_answer.wait(20)))
    run = Run(tmp_path, names, engine=engine)

    def listen(event: Event) -> None:
        if len(run.names) == 2:
            both_saved.set()
        if isinstance(event, RunChanged) and event.state == "paused":
            paused.set()

    run.listener = listen
    run.batch.start()
    for _thread in range(2):  # both threads are screening an image
        started.get(timeout=10)
    run.batch.pause()
    may_answer.set()
    assert both_saved.wait(10) and paused.wait(10)
    finish_another_run(tmp_path)
    assert len(run.names) == 2
    assert run.batch.state == "paused"
    run.batch.resume()
    assert run.batch.join(20)
    assert run.states == ["running", "paused", "running", "finished"]
    assert Counter(run.names) == Counter(names)


@pytest.mark.parametrize("while_paused", [True, False])
def test_a_paused_run_can_be_cancelled(tmp_path: Path, while_paused: bool) -> None:
    paused = threading.Event()
    run = Run(tmp_path, ["dark.png"] * 3)
    run.listener = lambda event: paused.set() if getattr(event, "state", None) == "paused" else None
    if while_paused:
        run.batch.pause()
        run.batch.start()
        assert paused.wait(10)
        run.batch.cancel()
    else:
        run.batch.cancel()
        run.batch.pause()
        run.batch.start()
    assert run.batch.join(5)
    assert run.states[-1] == "cancelled"
    assert run.names == []


def test_only_a_few_images_are_taken_from_an_endless_search(tmp_path: Path) -> None:
    found = 0

    def discover() -> Iterator[ImageRef]:
        nonlocal found
        for ref in endless_refs():
            found += 1
            yield ref

    asked = threading.Event()
    run = Run(tmp_path, [], discover=discover, engine=FakeEngine(answer=lambda over: (asked.set(), never(over))))
    run.batch.start()
    assert asked.wait(10)
    finish_another_run(tmp_path)
    assert found < 30
    run.batch.cancel()
    assert run.batch.join(5)


def test_without_a_device_the_run_fails_and_can_be_resumed(tmp_path: Path) -> None:
    engine = FakeEngine()
    names = [f"dark{number}.png" for number in range(30)]
    run = Run(tmp_path, names, engine=engine)

    def listen(event: Event) -> None:
        if len(run.names) == 5:
            engine.problem = reason("worker_died")

    run.listener = listen
    run.finish()
    assert run.states[-1] == "failed"
    assert run.batch.reason == reason("worker_died")
    assert {event.image.most_urgent_result.outcome.status for event in run.of(ImageDone)} == {"screened"}
    with ResultQuery(run.database) as decoder:
        assert decoder.run(run.batch.run_id).reason == reason("worker_died")
    again = Run(tmp_path, names).finish()
    assert again.batch.run_id == run.batch.run_id
    assert Counter(again.names) == Counter(names)


def test_a_problem_during_the_search_fails_the_run(tmp_path: Path) -> None:
    def discover() -> Iterator[ImageRef]:
        yield from refs(["dark.png"])
        raise UsageProblem(reason("nothing_to_screen", path="/gone"))

    run = Run(tmp_path, [], discover=discover).finish()
    assert run.of(RunChanged)[-1] == RunChanged(
        run_id=run.batch.run_id, state="failed", reason=reason("nothing_to_screen", path="/gone")
    )


def test_a_failed_estimate_of_the_image_count_does_not_end_the_run(tmp_path: Path) -> None:
    def count() -> int:
        raise PermissionError(13, "Permission denied")

    run = Run(tmp_path, ["dark.png"], count=count).finish()
    assert (run.states, run.names) == (["running", "finished"], ["dark.png"])


def test_warnings_about_the_pack_are_published_after_all_results_are_stored(tmp_path: Path) -> None:
    def warnings(pack: PackOfRun) -> list[Reason]:
        with ResultQuery(tmp_path / "results.sqlite") as query:
            return [reason("unlike_images", count=sum(query.category_counts(pack.run_id).values()))]

    run = Run(tmp_path, ["dark.png", "bright.png"], warnings=warnings).finish()
    assert [event.pack_notes for event in run.of(RunChanged)] == [(), ((reason("unlike_images", count=2),),)]


@pytest.mark.parametrize("error", [None, StorageProblem(reason("disk_full", path="/")), ValueError("a fault")])
def test_an_error_after_a_finished_run_is_ignored(error: Exception | None, tmp_path: Path) -> None:
    def warnings(_pack: PackOfRun) -> list[Reason]:
        run.batch.cancel()
        if error:
            raise error
        return []

    run = Run(tmp_path, ["dark.png"], warnings=warnings)
    run.finish()
    with ResultQuery(run.database) as query:
        assert (run.states[-1], query.run(run.batch.run_id).state) == ("finished", "finished")


def test_readers_closed_by_a_cancel_are_no_error(tmp_path: Path) -> None:
    found = threading.Event()

    def discover() -> Iterator[ImageRef]:
        yield from refs(["dark.png"])
        found.set()
        run.readers.closed.wait(10)
        raise PoolClosed

    run = Run(tmp_path, [], discover=discover)
    run.batch.start()
    assert found.wait(10)
    run.batch.cancel()
    assert run.batch.join(10)
    assert (run.states[-1], run.batch.reason) == ("cancelled", None)


def test_a_store_that_cannot_be_opened_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    run = Run(tmp_path, ["dark.png"], database=tmp_path / "file" / "results.sqlite").finish()
    assert run.states == ["failed"]
    assert run.batch.reason.code == "not_writable"
    assert run.readers.closed.is_set()


def test_a_failing_listener_ends_the_run_in_order(tmp_path: Path) -> None:
    def breaks(event: Event) -> None:
        if isinstance(event, ImageDone):
            raise ZeroDivisionError

    run = Run(tmp_path, [f"dark{number}.png" for number in range(30)], listener=breaks).finish()
    assert run.states[-1] == "failed"


def test_progress_states_speed_and_time_left(tmp_path: Path) -> None:
    has_pace, guess = threading.Event(), 1_000_000

    def discover() -> Iterator[ImageRef]:
        """Yield images until a speed was published."""
        return itertools.takewhile(lambda _: not has_pace.is_set(), endless_refs())

    def listen(event: Event) -> None:
        if isinstance(event, Progress) and event.images_per_s and not event.total_is_final:
            has_pace.set()

    run = Run(tmp_path, [], discover=discover, count=lambda: guess, listener=listen).finish()
    middle = next(event for event in run.of(Progress) if event.images_per_s)
    assert middle.total == guess
    assert middle.remaining_s == pytest.approx((guess - middle.done) / middle.images_per_s)
    last = run.of(Progress)[-1]
    assert (last.done, last.total, last.remaining_s) == (len(run.names), len(run.names), 0)


def test_images_missing_in_a_resumed_run_are_reported_and_not_exported(tmp_path: Path) -> None:
    """Of 59 images two are renamed or deleted; the list and every count have the images that are left."""
    names = [f"dark{number}.png" for number in range(60)]
    first = Run(tmp_path, names)
    first.listener = lambda event: first.batch.cancel() if len(first.names) == 30 else None
    first.finish()
    seen = sorted(first.names)
    assert first.states[-1] == "cancelled"
    assert 30 <= len(seen) < 40  # outcomes saved together with it are published, too
    left = [name for name in names if name not in seen[:2]] + ["renamed dark.png"]
    second = Run(tmp_path, left).finish()
    assert second.batch.run_id == first.batch.run_id
    resumed = reason("taken_over", count=len(seen) - 2, sampled=0, whole=len(seen) - 2)
    ended = second.of(RunChanged)[-1]
    assert (ended.notes, ended.pack_notes) == ((reason("not_present", count=2),), ((resumed,),))
    named = ReportOptions(names_people=True)
    paths = export_run(
        ExportRequest(database=second.database, run_id=second.batch.run_id, folder=tmp_path / "out", options=named)
    )
    with paths[0].open(encoding="utf-8-sig", newline="") as stream:
        listed = [Path(row["path"]).name for row in csv.DictReader(stream)]
    assert Counter(listed) == Counter(left)
    document = json.loads(paths[1].read_text(encoding="utf-8"))
    assert Counter(Path(row["path"]).name for row in document["results"]) == Counter(left)
    assert document["about"]["counts"]["normal"] == len(left) == 59
    assert sorted(Path(path).name for path in document["about"]["not_present"]) == seen[:2]


def test_a_second_program_with_the_same_request_gets_its_own_run(tmp_path: Path) -> None:
    names = [f"dark{number}.png" for number in range(5)]
    first = Run(tmp_path, [*names, "slow.png"])
    done = threading.Event()
    first.listener = lambda event: done.set() if len(first.names) == 5 else None
    first.batch.start()
    assert done.wait(20)
    second = Run(tmp_path, names).finish()
    assert second.of(RunChanged)[0].notes == (reason("run_elsewhere", process=os.getpid()),)
    assert {
        event.image.most_urgent_result.outcome.ref.path.name
        for event in second.of(ImageDone)
        if event.image.most_urgent_result.is_reused
    } == set(names)
    first.batch.cancel()
    assert first.batch.join(20)
    with ResultQuery(first.database) as decoder:
        assert [(run.run_id, run.state) for run in decoder.runs()] == [
            (second.batch.run_id, "finished"), (first.batch.run_id, "cancelled")
        ]  # fmt: skip
        assert (
            decoder.category_counts(second.batch.run_id) == decoder.category_counts(first.batch.run_id) == {"normal": 5}
        )


_HELD_FAST = pytest.mark.skipif(sys.platform == "win32", reason="Windows holds open files fast")


@pytest.mark.parametrize(
    "accident",
    [
        *(pytest.param(one, marks=_HELD_FAST) for one in ("removed", "replaced")),
        "DELETE FROM answers",
        "DELETE FROM images",
        "DELETE FROM runs",
    ],
)
def test_a_store_that_loses_results_during_a_run_fails_the_run(tmp_path: Path, accident: str) -> None:
    """Also after the last image: a run is not finished unless all its results are stored."""
    database, backup = tmp_path / "home" / "results.sqlite", tmp_path / "backup"
    Run(tmp_path, ["dark.png"], database=database).finish()
    shutil.copy(database, backup)
    names = [f"dark{number}.png" for number in range(5)]

    def act(event: Event) -> None:
        if not isinstance(event, ImageDone) or len(run.names) < len(names):
            return
        if accident == "removed":
            database.unlink()
        elif accident == "replaced":
            backup.replace(database)
        else:  # as after another file was copied over the store
            with closing(sqlite3.connect(database)) as connection, connection:
                connection.execute(accident)

    run = Run(tmp_path, names, database=database, listener=act)
    run.finish()
    is_gone = accident in ("removed", "replaced")
    assert run.states[-1] == "failed"
    assert run.batch.reason and run.batch.reason.code == ("store_gone" if is_gone else "results_lost")
    if is_gone:
        assert run.batch.run_id == 0  # the run's number in the new store is not exported
        assert Run(tmp_path, names, database=database).finish().states == ["running", "finished"]


def test_a_damaged_store_is_repaired_before_a_run_with_a_note(tmp_path: Path) -> None:
    first = Run(tmp_path, ["bright.png", "dark.png"]).finish()
    damage_mark_path(first.database).touch()
    second = Run(tmp_path, ["bright.png", "dark.png"]).finish()
    assert [dict(event.reason.parameters)["results"] for event in second.of(StoreRepaired)] == ["2"]
    assert second.states == ["running", "finished"]
    assert all(event.image.most_urgent_result.is_reused for event in second.of(ImageDone))
