from __future__ import annotations

import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeEngine, FakeReaders
from fieldray.domain.finding import RefusedOutcome, notes_of
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model, OutOfDistributionCheck
from fieldray.domain.run import Event, ImageDone, RefusalOverrides, RunChanged, StoredResult, StoreUnwritable, Verdict
from fieldray.errors import EnvironmentProblem, PackProblem, StorageProblem, Unreadable, UsageProblem
from fieldray.imaging.discover import count_files
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.export import ExportRequest, export_run
from fieldray.pipeline.session import Session
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.pictures import Pictures
from fieldray.store.results import ResultQuery, ResultStore
from program import write_images
from raised import raises
from tiny_models import tiny_manifest, tiny_model
from waiting import wait_for


class Opened:
    """A session on fakes, with the services that it opened and the events that it published."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        self.engines: list[FakeEngine] = []
        self.readers: list[FakeReaders] = []
        self.sizes: list[int] = []
        self.session = Session(
            Settings({"decoders": 3}),
            self.events.append,
            database=folder / "results.sqlite",
            make_engine=lambda publish, settings, workers: self._kept(self.engines, FakeEngine()),
            make_workers=lambda settings, size: self._reader(size),
        )

    def _kept(self, kept: list, thing: object) -> object:
        kept.append(thing)
        return thing

    def _reader(self, size: int) -> object:
        self.sizes.append(size)
        return self._kept(self.readers, FakeReaders())

    def screen(self, folder: Path, model: Model | None = None, **options: Any) -> Batch:
        """One completed run over a folder."""
        self.session.use_packs(model or tiny_model())
        batch = self.session.start([folder], **options)
        assert batch.join(20)
        return batch

    @property
    def names(self) -> list[str]:
        return [
            event.image.most_urgent_result.outcome.ref.path.name
            for event in self.events
            if isinstance(event, ImageDone)
        ]

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.events if isinstance(event, RunChanged)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    yield made
    made.session.close()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path / "images", 3)
    return tmp_path / "images"


def test_a_folder_is_screened_with_the_pack_in_use(opened: Opened, images: Path) -> None:
    model = tiny_model()
    opened.session.use_packs(model)
    assert opened.engines[0].opened == [model]
    opened.screen(images, model)
    assert sorted(opened.names) == ["image-000.png", "image-001.png", "image-002.png"]
    assert opened.states == ["running", "finished"]
    assert opened.sizes == [3]
    with ResultQuery(opened.session.database) as decoder:
        (run,) = decoder.runs()
    assert run.spec.paths == (str(images),)
    assert run.spec.packs[0].pack_name == "tiny-1.0.0"
    assert [point.name for point in run.spec.packs[0].operating_points] == ["screening"]
    assert run.spec.program_version


def test_an_unwritable_home_is_reported_before_screening(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder", encoding="utf-8")
    made = Opened(tmp_path / "home")
    (event,) = made.events
    assert isinstance(event, StoreUnwritable)
    assert (event.reason.code, dict(event.reason.parameters)["path"]) == ("not_writable", str(tmp_path / "home"))
    made.session.close()


def test_a_run_that_cannot_start_is_refused_at_once(opened: Opened, images: Path) -> None:
    with raises(PackProblem, "no_pack"):
        opened.session.start([images])
    opened.session.use_packs(tiny_model())
    for problem, start in [
        ("nothing_to_screen", {"paths": [images, images / "gone"]}),
        ("operating_point", {"paths": [images], "operating_point": "best"}),
    ]:
        with raises(UsageProblem, problem):
            opened.session.start(**start)
    assert not any(readers.read_names for readers in opened.readers)


def test_packs_of_one_run_share_one_engine(opened: Opened, images: Path) -> None:
    first, second = tiny_model(), tiny_model(manifest=tiny_manifest(version="2.0.0"))
    opened.session.use_packs(first, second)
    opened.session.screen_one(ImageRef(path=images / "image-000.png", kind="png"))
    assert opened.session.start([images]).join(20)
    (engine,) = opened.engines
    assert engine.opened == [first, second] * 3
    with ResultQuery(opened.session.database) as query:
        (run,) = query.runs()
    assert [pack.pack_name for pack in run.spec.packs] == ["tiny-1.0.0", "tiny-2.0.0"]


def test_another_pack_chosen_during_a_run_is_used_from_the_next_on(opened: Opened, images: Path) -> None:
    (images / "slow.png").write_bytes((images / "image-000.png").read_bytes())
    first, second = tiny_model(), tiny_model(manifest=tiny_manifest(version="2.0.0"))
    opened.session.use_packs(first)
    batch = opened.session.start([images])
    assert not batch.join(0.5)
    with pytest.raises(ValueError, match="under way"):
        opened.session.start([images])
    opened.session.use_packs(second)
    assert opened.engines[0].opened[-1] is first
    batch.cancel()
    assert batch.join(10)
    (images / "slow.png").unlink()
    assert opened.session.start([images]).join(20)
    assert opened.engines[0].opened[-1] is second
    with ResultQuery(opened.session.database) as decoder:
        assert [run.spec.packs[0].pack_name for run in decoder.runs()] == ["tiny-2.0.0", "tiny-1.0.0"]


def test_relative_and_duplicate_paths_become_one_absolute_path(
    opened: Opened, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images.parent)
    opened.session.use_packs(tiny_model())
    assert opened.session.start([Path("images"), images, images / ".." / "images"]).join(20)
    assert len(opened.names) == 3
    with ResultQuery(opened.session.database) as decoder:
        assert decoder.runs()[0].spec.paths == (str(images),)


def test_closing_ends_the_run_and_closes_its_services(opened: Opened, images: Path) -> None:
    (images / "slow.png").write_bytes((images / "image-000.png").read_bytes())
    opened.session.use_packs(tiny_model())
    batch = opened.session.start([images])
    opened.session.read_image(ImageRef(path=images / "image-000.png"))
    opened.session.close()
    assert batch.state == "cancelled"
    assert opened.engines[0].is_closed
    assert [readers.closed.is_set() for readers in opened.readers] == [True, True]


def test_the_viewer_has_one_reader_of_its_own(opened: Opened, images: Path) -> None:
    for _ in range(2):
        assert opened.session.read_image(ImageRef(path=images / "image-000.png")).pixels.shape == (4, 4)
    assert opened.sizes == [1]


def test_a_verdict_and_an_export_go_through_the_store(opened: Opened, images: Path, tmp_path: Path) -> None:
    batch = opened.screen(images)
    ready = next(event for event in opened.events if isinstance(event, ImageDone))
    opened.session.set_verdict(
        ready.image.most_urgent_result.result_id,
        Verdict(choice="disagree", note="rotated"),
        judged=ready.image.most_urgent_result.outcome,
    )
    paths = export_run(ExportRequest(database=opened.session.database, run_id=batch.run_id, folder=tmp_path / "out"))
    assert [path.suffix for path in paths] == [".csv", ".json"]
    assert opened.session.export(batch.run_id, tmp_path / "out") == paths
    # an older copy was restored, in which another run has this number
    with closing(sqlite3.connect(opened.session.database)) as other, other:
        other.execute("UPDATE runs SET spec = replace(spec, 'images', 'others')")
    with pytest.raises(StorageProblem, match="moved, deleted or replaced"):
        opened.session.export(batch.run_id, tmp_path / "out")
    elsewhere = tmp_path / "elsewhere.sqlite"
    with pytest.raises(StorageProblem, match="moved, deleted or replaced"):
        export_run(ExportRequest(database=elsewhere, run_id=1, folder=tmp_path / "out", spec=batch.spec))
    with pytest.raises(UsageProblem, match="Run 1 was not found in the history"):
        export_run(ExportRequest(database=elsewhere, run_id=1, folder=tmp_path / "out"))
    assert '"disagree","rotated"' in paths[0].read_text(encoding="utf-8-sig")
    with pytest.raises(KeyError):
        export_run(
            ExportRequest(
                database=opened.session.database, run_id=batch.run_id, folder=tmp_path / "out", formats=("docx",)
            )
        )


def test_files_are_counted_by_name_until_cancelled(tmp_path: Path) -> None:
    for name in ("a/1.dcm", "a/b/2.png", "a/.hidden", "3.dcm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    places = [tmp_path / "a", tmp_path / "3.dcm"]
    assert count_files(places, is_cancelled=lambda: False) == 3
    assert count_files([tmp_path] * 1000, is_cancelled=lambda: True) == 0
    assert count_files([tmp_path / ("x" * 300), tmp_path / "nothing"], is_cancelled=lambda: False) == 2


def test_own_reports_among_the_images_are_skipped_with_a_note(opened: Opened, images: Path) -> None:
    export_run(ExportRequest(database=opened.session.database, run_id=opened.screen(images).run_id, folder=images))
    opened.screen(images, as_new_run=True)
    assert len(opened.names) == 6
    notes = [event.notes for event in opened.events if isinstance(event, RunChanged) and event.notes]
    assert notes == [(reason("own_reports", count=2),)]


def test_a_zip_is_searched_by_the_workers_of_the_run(opened: Opened, tmp_path: Path) -> None:
    (image,) = write_images(tmp_path / "one", 1)
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.write(image, "image.png")
    opened.screen(tmp_path / "images.zip")
    (readers,) = opened.readers
    assert readers.listed == [tmp_path / "images.zip"]
    (event,) = (event for event in opened.events if isinstance(event, ImageDone))
    assert (event.image.most_urgent_result.outcome.ref.zip_member, event.image.most_urgent_result.outcome.status) == (
        "image.png",
        "screened",
    )


def test_requests_after_closing_start_nothing(opened: Opened, images: Path) -> None:
    opened.session.use_packs(tiny_model())
    opened.session.close()
    asked: list[Callable[[], object]] = [
        lambda: opened.session.read_image(ImageRef(path=images / "image-000.png")),
        lambda: opened.session.use_packs(tiny_model()),
        lambda: opened.session.start([images]),
    ]
    for ask in asked:
        with raises(EnvironmentProblem, "engine_closed"):
            ask()
    assert (len(opened.engines), len(opened.readers)) == (1, 1)
    opened.session.close()


def test_a_service_that_fails_to_close_keeps_no_other_open(opened: Opened, images: Path) -> None:
    opened.session.use_packs(tiny_model())
    opened.session.read_image(ImageRef(path=images / "image-000.png"))
    _, viewer = opened.readers
    viewer.close_problem = OSError("it does not end")
    with pytest.raises(OSError, match="does not end"):
        opened.session.close()
    assert opened.engines[0].is_closed


def test_the_preview_of_a_missing_file_is_read_from_the_store(opened: Opened, images: Path) -> None:
    opened.screen(images)
    outcome = next(event.image.most_urgent_result.outcome for event in opened.events if isinstance(event, ImageDone))
    content = outcome.facts.content_sha256
    with pytest.raises(Unreadable, match="No preview of this image was kept"):
        opened.session.read_preview("0" * 64, frame=0)
    with closing(Pictures(opened.session.database)) as pictures:
        pictures.add([(bytes.fromhex(content), 0, None, 0, b"no JPEG")])
    with pytest.raises(Unreadable, match="is damaged"):
        opened.session.read_preview(content, frame=0)


def test_one_image_is_screened_and_nothing_is_stored(opened: Opened, tmp_path: Path) -> None:
    (path,) = write_images(tmp_path, 1)
    ref = ImageRef(path=path, kind="png")
    assert opened.session.screen_one(ref) is None  # no pack is in use
    opened.session.use_packs(tiny_model())
    outcome = opened.session.screen_one(ref)
    assert outcome.ref == ref
    assert outcome.status == "screened"
    assert not opened.session.database.exists()
    with pytest.raises(UsageProblem):
        opened.session.screen_one(ref, operating_point="none of that name")


def test_closing_during_a_single_screening_is_no_error(opened: Opened, tmp_path: Path) -> None:
    opened.session.use_packs(tiny_model())
    ref = ImageRef(path=tmp_path / "slow.png", kind="png")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(opened.session.screen_one, ref)
        wait_for(lambda: any(one.reading.is_set() for one in opened.readers))
        opened.session.close()
        error = waiting.exception(10)
    assert isinstance(error, EnvironmentProblem)
    assert error.reason.code == "engine_closed"


# Far from the engine's features of any image in these tests.
GATE = OutOfDistributionCheck(mean=np.full(4, 9.0, np.float32), projection=np.eye(4, dtype=np.float32), limit=2.0)
ANYWAY = RefusalOverrides(overrules=True)


def refused_run(opened: Opened, images: Path) -> list[StoredResult]:
    """A run of a pack that refuses every image as out of distribution."""
    batch = opened.screen(images, tiny_model(manifest=tiny_manifest(ood_gate=GATE)))
    with ResultQuery(opened.session.database) as query:
        found = list(query.results(batch.run_id))
    assert {result.outcome.category for result in found} == {"refused"}
    return found


def stored(opened: Opened, row_id: int) -> StoredResult:
    with ResultQuery(opened.session.database) as query:
        return query.result(row_id)


def test_screening_a_refused_image_anyway_replaces_it_and_keeps_its_verdict(opened: Opened, images: Path) -> None:
    first, second, third = refused_run(opened, images)
    disagree = Verdict(choice="disagree", note="it is a chest")
    opened.session.set_verdict(first.row_id, disagree, judged=first.outcome)
    opened.events.clear()
    found = opened.session.screen_again(first.row_id, judged=first.outcome, overrides=ANYWAY)
    assert [note.code for note in found.notes] == ["screened_anyway", "unlike_training"]
    now = stored(opened, first.row_id)
    assert (now.outcome.ref, notes_of(now.outcome), now.verdict) == (first.outcome.ref, found.notes, None)
    (event,) = opened.events
    assert (
        event.image.run_id,
        event.image.most_urgent_result.result_id,
        event.image.most_urgent_result.outcome.category,
    ) == (
        first.run_id,
        first.row_id,
        found.category,
    )
    with ResultQuery(opened.session.database) as query:
        assert [given.verdict for given in query.superseded_verdicts(first.run_id)] == [disagree]
        assert query.category_counts(first.run_id) == {"refused": 2, found.category: 1}
        assert query.run(first.run_id).state == "finished"
    assert {stored(opened, other.row_id).outcome.category for other in (second, third)} == {"refused"}
    back = opened.session.screen_again(
        first.row_id, judged=found, overrides=RefusalOverrides()
    )  # a person withdraws it
    assert isinstance(back, RefusedOutcome) and stored(opened, first.row_id).outcome.category == "refused"
    assert stored(opened, first.row_id).verdict == disagree


def test_an_image_refused_again_is_reported_and_stays_unchanged(opened: Opened, images: Path) -> None:
    (first, *_) = refused_run(opened, images)
    found = opened.session.screen_again(first.row_id, judged=first.outcome, overrides=RefusalOverrides(turns=True))
    assert isinstance(found, RefusedOutcome)
    assert isinstance(stored(opened, first.row_id).outcome, RefusedOutcome)
    other = replace(first.outcome, facts=replace(first.outcome.facts, content_sha256="0" * 64))
    with raises(Unreadable, "changed"):
        opened.session.screen_again(first.row_id, judged=other, overrides=ANYWAY)
    assert isinstance(stored(opened, first.row_id).outcome, RefusedOutcome)


def test_screening_again_needs_the_pack_of_the_run_and_no_active_run(opened: Opened, images: Path) -> None:
    (first, *_) = refused_run(opened, images)

    def problem() -> str:
        with pytest.raises(UsageProblem) as usage:
            opened.session.screen_again(first.row_id, judged=first.outcome, overrides=ANYWAY)
        assert isinstance(stored(opened, first.row_id).outcome, RefusedOutcome)
        return usage.value.reason.code

    own, other = opened.session.model, tiny_model(manifest=tiny_manifest(version="2.0.0"))
    opened.session.use_packs(other)
    assert problem() == "again_other_pack"
    (images / "slow.png").write_bytes((images / "image-000.png").read_bytes())
    opened.session.use_packs(own)
    batch = opened.session.start([images], as_new_run=True)
    assert problem() == "again_busy"
    batch.cancel()
    assert batch.join(10)
    with ResultStore(opened.session.database) as rival:  # another program continues the run
        spec = rival.run(batch.run_id).spec
        assert rival.open_run(spec) == batch.run_id
        (mine, *_) = rival.results(first.run_id)
        with pytest.raises(UsageProblem) as usage, ResultStore(opened.session.database) as store:
            store.replace_result(mine.row_id, mine.outcome, run=rival.run(batch.run_id))
        assert usage.value.reason.code == "again_busy"
    assert opened.session.screen_again(first.row_id, judged=first.outcome, overrides=ANYWAY).category != "refused"
