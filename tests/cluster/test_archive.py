"""The driver of an archive, with real workers that run fake screening: crashes, wrong answers, and their effect."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import psutil
import pytest

from archives import archive_request, cluster_of_nodes
from benchmarks.cluster_kills import find_node_processes
from fieldray.domain.finding import FailedOutcome, ImageFacts, Outcome, RefusedOutcome
from fieldray.domain.image import ImageRef
from fieldray.errors import EnvironmentProblem, StorageProblem, UsageProblem
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from fieldray.store.rows import ref_of
from fieldray_cluster.archive import ArchiveDriver, ArchiveProgress, PieceOptions
from fieldray_cluster.archive_folder import ArchiveFolder, make_image_list
from fieldray_cluster.archive_worker import (
    ArchiveRequest,
    PieceSpec,
    SentFiles,
    check_node,
    outcomes_to_parquet,
    parse_results,
    read_content,
)
from fieldray_cluster.connection import ConnectionSettings, describe_cluster, open_client
from fieldray_cluster.worker_registry import ArchivePiece, IncompatibleNodes

TWO_WORKERS = ConnectionSettings(workers=2)
SOMEWHERE = "tcp://127.0.0.1:1"


def stand_ins() -> dict[str, Callable[..., Any]]:
    """Return what workers run in these tests. Only nested functions are pickled by value, which workers need."""

    def screen(spec: PieceSpec) -> list[Outcome]:
        """Report every image as blank. Names `poison...` kill the worker, `once` kills it the first time."""
        outcomes = list[Outcome]()
        for text in spec.refs:
            ref = ref_of(text)
            flag = ref.path.with_name(f"{ref.path.name}.died")
            if ref.path.name.startswith("poison") or (ref.path.name == "once" and not flag.exists()):
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if ref.path.name == "fault":
                raise ArithmeticError
            outcomes.append(RefusedOutcome(ref=ref, reason=reason("blank")))
        return outcomes

    def screen_on_full_disk(spec: PieceSpec) -> list[Outcome]:
        raise StorageProblem(reason("disk_full", path="scratch"))

    def screen_badly(spec: PieceSpec) -> list[Outcome]:
        raise ArithmeticError

    def screen_but_on_bad_node(spec: PieceSpec) -> list[Outcome]:
        """Like `screen`, but the node `bad` fails on every piece. Other nodes wait for six failures."""
        faults = ref_of(spec.refs[0]).path.with_name("faults")
        if str(distributed.get_worker().name).startswith("bad/"):
            with faults.open("a") as stream:
                stream.write("x")
            raise ArithmeticError
        while not faults.exists() or faults.stat().st_size < 6:
            time.sleep(0.01)
        return screen(spec)

    def screen_but_on_bad_nodes(spec: PieceSpec) -> list[Outcome]:
        """Like `screen`, but each node `bad-...` sends another kind of wrong answer. The other nodes wait for them."""

        from fieldray_cluster import archive_worker

        name = str(distributed.get_worker().name).partition("/")[0]
        begun = ref_of(spec.refs[0]).path.parent / "begun"
        begun.mkdir(exist_ok=True)
        (begun / name).touch()
        if name == "bad-rows":
            return screen(dataclasses.replace(spec, refs=spec.refs[::-1]))
        if name == "bad-size":
            archive_worker.outcomes_to_parquet = lambda *_: bytes(2**25)
        if name == "bad-type":
            archive_worker.screen_piece_as_bytes = lambda *_: None  # used with the next piece
        if name == "bad-silent":
            time.sleep(600)
        while len(list(begun.iterdir())) < 5:
            time.sleep(0.01)
        return screen(spec)

    def screen_files(spec: PieceSpec) -> list[Outcome]:
        """Fail images whose file was not sent. Raises ArithmeticError if no files were sent at all."""
        if spec.file_contents is None:
            raise ArithmeticError
        refs = [ref_of(text) for text in spec.refs]
        came = [(spec.file_contents or {}).get(str(ref.path)) == ref.path.name.encode() for ref in refs]
        return [
            RefusedOutcome(ref=ref, reason=reason("blank"))
            if has
            else FailedOutcome(ref=ref, stage="decode", reason=reason("empty"))
            for ref, has in zip(refs, came, strict=True)
        ]

    def inspect(request: ArchiveRequest, *, needs_paths: bool = True) -> Reason | None:
        """Accept the node whatever packs it has."""

    def inspect_other_pack(request: ArchiveRequest, *, needs_paths: bool = True) -> Reason | None:
        return reason("cluster_other_pack", pack=request.pack_name)

    return {name: function for name, function in locals().items() if callable(function)}


STAND_INS = stand_ins()


@pytest.fixture
def request_made(tmp_path: Path) -> ArchiveRequest:
    return archive_request(tmp_path, settings=())


@dataclasses.dataclass(frozen=True)
class Begun:
    """An output folder with a stored request. Its images are in `place`."""

    place: Path
    folder: ArchiveFolder
    request: ArchiveRequest

    def write_list(self, count: int, *special: str) -> None:
        """Write the list of `count` images. The last ones have the names `special`."""
        names = [f"image-{number}" for number in range(count - len(special))] + list(special)
        self.folder.write_image_list(
            ((ImageRef(path=self.place / name), "") for name in names), progress=lambda _count: None
        )

    def keep(self, refs: Sequence[ImageRef], start: int, *, request: ArchiveRequest | None = None) -> None:
        """Write results of an earlier start, from image number `start` on. They say `not_an_image`."""
        outcomes = [RefusedOutcome(ref=ref, reason=reason("not_an_image")) for ref in refs]
        self.folder.write_results(
            ArchivePiece(start, start + len(refs)), outcomes_to_parquet(outcomes, request or self.request)
        )

    def refs(self, start: int, stop: int) -> list[ImageRef]:
        with self.folder.open_image_list() as images:
            return [ref_of(text) for text in images.ref_texts(ArchivePiece(start, stop))]

    def run(
        self,
        *,
        on_save: Callable[[], None] = lambda: None,
        notes: list[tuple[str, Reason]] | None = None,
        connection: ConnectionSettings = TWO_WORKERS,
        **options: object,
    ) -> list[Outcome]:
        """Screen the remaining images, by default with two workers. Returns the saved outcomes."""
        saved: list[Outcome] = []
        progress: list[ArchiveProgress] = []

        def save(outcomes: Sequence[Outcome], is_resumed: bool) -> None:
            saved.extend(outcomes)
            on_save()

        def note(node: str, why: Reason) -> None:
            if notes is not None:
                notes.append((node, why))

        with self.folder.open_image_list() as images:
            told = {"save": save, "progress": progress.append, "on_message": note}
            choices = {
                "images_per_piece": 4,
                "screen": STAND_INS["screen"],
                "check_node": STAND_INS["inspect"],
                **options,
            }
            pieces = PieceOptions(**choices)  # type: ignore[arg-type]
            archive = ArchiveDriver(self.folder, self.request, images, **told, options=pieces)  # type: ignore[arg-type]
            archive.run(connection)
            counts = Counter(outcome.ref.path.name for outcome in saved)
            assert len(counts) == len(images) and set(counts.values()) == {1}
            assert progress[-1].screened_image_count == len(images)
        return saved


@pytest.fixture
def begun(tmp_path: Path, request_made: ArchiveRequest) -> Iterator[Begun]:
    with ArchiveFolder(tmp_path / "out") as folder:
        folder.store_request(request_made)
        yield Begun(tmp_path, folder, request_made)


@pytest.mark.parametrize(
    ("name", "why"),
    [("poison", reason("archive_worker_ended", times=3)), ("fault", reason("internal", detail="ArithmeticError"))],
)
def test_an_image_that_ends_every_worker_is_named_and_the_others_have_results(
    begun: Begun, name: str, why: Reason
) -> None:
    begun.write_list(14, name)
    (failed,) = [outcome for outcome in begun.run() if isinstance(outcome, FailedOutcome)]
    assert (failed.ref.path.name, failed.reason) == (name, why)


def test_images_that_end_the_one_worker_take_no_other_image_with_them(begun: Begun) -> None:
    begun.write_list(7, "poison-1", "good-1", "good-2", "poison-2", "good-3")
    saved = begun.run(connection=ConnectionSettings(workers=1), images_per_piece=1)
    failed = {outcome.ref.path.name for outcome in saved if isinstance(outcome, FailedOutcome)}
    assert failed == {"poison-1", "poison-2"}


def test_a_worker_that_dies_once_costs_nothing(begun: Begun) -> None:
    begun.write_list(10, "once")
    saved = begun.run()
    assert {outcome.category for outcome in saved} == {"refused"}


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_a_process_that_is_killed_from_outside_costs_nothing(begun: Begun, role: str) -> None:
    begun.write_list(30)
    killed: list[int] = []

    def kill_one() -> None:
        if not killed:
            (first, *_) = find_node_processes(psutil.Process(), role)
            killed.append(first.pid)
            first.kill()

    saved = begun.run(on_save=kill_one)
    assert killed and {outcome.category for outcome in saved} == {"refused"}


def test_saved_results_are_kept_and_a_damaged_file_of_results_is_screened_again(begun: Begun) -> None:
    begun.write_list(10)
    begun.keep(begun.refs(2, 5), 2)
    begun.folder.write_results(ArchivePiece(6, 8), b"half of a file")
    saved = begun.run()
    assert Counter(outcome.reason.code for outcome in saved) == {"not_an_image": 3, "blank": 7}  # type: ignore[union-attr]
    assert begun.folder.finished_pieces(10) == (
        ArchivePiece(0, 2),
        ArchivePiece(2, 5),
        ArchivePiece(5, 9),
        ArchivePiece(9, 10),
    )


def test_failed_images_are_screened_again_and_the_others_of_their_file_are_not(begun: Begun) -> None:
    begun.write_list(9)
    refs = begun.refs(0, 9)
    codes = ("blank", "missing", "drive_error", "blank", "truncated", "blank", "blank", "blank", "missing")
    outcomes = [
        RefusedOutcome(ref=ref, reason=reason("not_an_image"))
        if code == "blank"
        else FailedOutcome(ref=ref, stage="decode", reason=reason(code))
        for ref, code in zip(refs, codes, strict=True)
    ]
    pieces = (
        ArchivePiece(0, 2),
        ArchivePiece(2, 9),
    )  # failed images on both sides of the border of two files stay in their own file
    for piece in pieces:
        begun.folder.write_results(piece, outcomes_to_parquet(outcomes[piece.start : piece.stop], begun.request))
    saved = begun.run()
    assert Counter(outcome.reason.code for outcome in saved) == {"not_an_image": 5, "blank": 4}  # type: ignore[union-attr]
    assert begun.folder.finished_pieces(9) == pieces
    kept = [
        parse_results(begun.refs(one.start, one.stop), begun.folder.read_results(one), begun.request) for one in pieces
    ]
    assert [outcome.reason.code for outcome in (*kept[0], *kept[1])] == [  # type: ignore[union-attr]
        "not_an_image" if code == "blank" else "blank" for code in codes
    ]


def test_results_of_another_archive_are_not_taken_for_those_of_this_one(begun: Begun) -> None:
    begun.write_list(6)
    begun.keep([ImageRef(path=begun.place / f"other-{number}") for number in range(2)], 0)
    begun.keep(begun.refs(2, 4), 2, request=dataclasses.replace(begun.request, paths=("/mnt/other",)))
    saved = begun.run()
    assert {outcome.reason.code for outcome in saved} == {"blank"}  # type: ignore[union-attr]
    assert {outcome.ref.path.name for outcome in saved} == {f"image-{number}" for number in range(6)}


@pytest.mark.parametrize("case", ["order", "image", "member", "frame", "number", "work", "content", "size"])
def test_results_that_do_not_fit_the_request_are_discarded(
    tmp_path: Path, request_made: ArchiveRequest, case: str
) -> None:
    refs = [ImageRef(path=tmp_path / name) for name in ("a", "b")]
    facts = ImageFacts(content_sha256="ab" * 32)
    large = dataclasses.replace(facts, thumbnail=np.zeros((64, 64), np.uint8), preview=os.urandom(2**21))
    outcomes: list[Outcome] = [RefusedOutcome(ref=ref, reason=reason("blank"), facts=facts) for ref in refs]
    hashes = {tmp_path / "a": "ab" * 32}
    assert [
        one.ref for one in parse_results(refs, outcomes_to_parquet(outcomes, request_made), request_made, hashes=hashes)
    ] == refs
    other = {
        "order": outcomes[::-1],
        "image": [outcomes[0], dataclasses.replace(outcomes[1], ref=ImageRef(path=tmp_path / "c"))],
        "member": [outcomes[0], dataclasses.replace(outcomes[1], ref=ImageRef(path=tmp_path / "b", zip_member="b"))],
        "frame": [outcomes[0], dataclasses.replace(outcomes[1], ref=ImageRef(path=tmp_path / "b", frame=1))],
        "number": outcomes[:1],
        "size": [dataclasses.replace(one, facts=large) for one in outcomes],
    }.get(case, outcomes)
    made = dataclasses.replace(request_made, ages_confirmed=True, paths=("/",)) if case == "work" else request_made
    if case == "content":
        hashes = {tmp_path / "a": "cd" * 32}
    with pytest.raises(ValueError, match="results"):
        parse_results(refs, outcomes_to_parquet(other, made), request_made, hashes=hashes)


def test_a_deleted_list_is_not_made_again_if_there_are_results(begun: Begun) -> None:
    begun.keep([ImageRef(path=begun.place / "a")], 0)
    with pytest.raises(UsageProblem, match="begin again, name another folder"):
        make_image_list(begun.folder, [str(begun.place)], Settings(), progress=lambda _count: None)


def test_a_node_that_does_not_fit_is_named_before_it_gets_any_work(begun: Begun) -> None:
    begun.write_list(4)
    with pytest.raises(IncompatibleNodes, match=r"local gets no work: .*another pack under the name none"):
        begun.run(check_node=STAND_INS["inspect_other_pack"])
    assert begun.folder.finished_pieces(4) == ()


def test_a_node_without_the_pack_says_so_itself(request_made: ArchiveRequest, home: Path) -> None:
    why = check_node(request_made)
    assert why and why.code == "cluster_no_pack" and "none-1.0.0" in why.text


def test_nodes_with_a_full_disk_are_named_and_their_images_have_no_result(begun: Begun) -> None:
    begun.write_list(4)
    notes: list[tuple[str, Reason]] = []
    with pytest.raises(EnvironmentProblem, match="local gets no work: The disk"):
        begun.run(screen=STAND_INS["screen_on_full_disk"], notes=notes)
    assert {(node, why.code) for node, why in notes} == {("local", "disk_full")}
    assert begun.folder.finished_pieces(4) == ()


def test_an_error_on_every_node_ends_the_run_without_failed_images(begun: Begun) -> None:
    begun.write_list(3000)
    with pytest.raises(EnvironmentProblem, match="local gets no work: An unexpected error"):
        begun.run(screen=STAND_INS["screen_badly"], images_per_piece=3000)
    assert begun.folder.finished_pieces(3000) == ()


def test_files_are_sent_and_a_worker_never_reads_a_missing_file_itself(begun: Begun) -> None:
    begun.write_list(6)
    for name in ("image-2", "image-5"):
        (begun.place / name).write_bytes(name.encode())
    saved = begun.run(screen=STAND_INS["screen_files"], sends_files=True, images_per_piece=2)
    assert Counter(outcome.category for outcome in saved) == {"failed": 4, "refused": 2}


def test_a_worker_has_the_sent_files_and_a_reason_for_each_missing_one(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    names = ("sent", "empty", "unread", "unnamed")
    refs = [ImageRef(path=tmp_path / name) for name in names]
    (tmp_path / "empty").touch()
    (tmp_path / "unnamed").write_bytes(b"another file of this name")
    files = {str(tmp_path / name): read_content(tmp_path / name) for name in names[1:3]}
    sent, local = SentFiles({str(tmp_path / "sent"): b"1", **files}, own), list[Path]()

    def screen(ref: ImageRef) -> Outcome:
        local.append(ref.path)
        return RefusedOutcome(ref=ref, reason=reason("blank"))

    outcomes = [sent.screen(screen, ref) for ref in refs]
    assert [path.read_bytes() for path in local] == [b"1", b""] and {path.parent for path in local} == {own}
    assert [outcome.ref for outcome in outcomes] == refs
    assert [outcome.reason.code for outcome in outcomes if isinstance(outcome, FailedOutcome)] == ["missing", "missing"]
    linked = ImageRef(path=tmp_path / "linked", problem=reason("linked_folder"))  # as in the list
    assert sent.screen(screen, linked).category == "refused"


def test_the_driver_reconnects_to_a_restarted_scheduler(begun: Begun) -> None:
    begun.write_list(30)
    killed: list[int] = []
    with cluster_of_nodes(begun.place, "ward/1") as (_, scheduler, connection):

        def kill_scheduler() -> None:
            if not killed and scheduler.pid:
                killed.append(scheduler.pid)
                psutil.Process(scheduler.pid).kill()

        patient = dataclasses.replace(connection, scheduler_timeout_s=60.0, worker_timeout_s=60.0)
        saved = begun.run(on_save=kill_scheduler, connection=patient)
    assert killed and {outcome.category for outcome in saved} == {"refused"}


def test_a_scheduler_that_is_gone_for_good_ends_the_run_and_keeps_the_results(begun: Begun) -> None:
    begun.write_list(30)
    with (
        cluster_of_nodes(begun.place, "ward/1") as (nodes, _, connection),
        pytest.raises(EnvironmentProblem, match="No scheduler answers"),
    ):
        begun.run(on_save=lambda: nodes.__exit__(None, None, None), connection=connection)
    kept = sum(piece.image_count for piece in begun.folder.finished_pieces(30))
    assert 0 < kept < 30
    assert len(begun.run()) == 30


def test_a_node_that_fails_on_every_image_is_set_aside_and_no_image_is_blamed(begun: Begun) -> None:
    begun.write_list(40)
    notes: list[tuple[str, Reason]] = []
    with cluster_of_nodes(begun.place, "ward/1", "bad/1") as (_, _, connection):
        with open_client(connection) as client:  # a bad node that is alone would end the run at its start
            client.wait_for_workers(2)
        saved = begun.run(
            screen=STAND_INS["screen_but_on_bad_node"], connection=connection, images_per_piece=1,
            notes=notes,
        )  # fmt: skip
    assert {outcome.category for outcome in saved} == {"refused"}
    assert [(node, why.code) for node, why in notes] == [("bad", "internal")]


@pytest.mark.skipif(os.name != "posix", reason="other systems suspend no process")
def test_a_run_does_not_wait_for_a_suspended_node(begun: Begun) -> None:
    begun.write_list(24)
    notes: list[tuple[str, Reason]] = []
    with cluster_of_nodes(begun.place, "ward/1", "asleep/1") as (_, _, connection):
        with open_client(connection) as client:
            client.wait_for_workers(2)
        (asleep,) = [
            node for node in find_node_processes(psutil.Process(), "worker") if "asleep" in " ".join(node.cmdline())
        ]
        asleep.suspend()
        try:
            saved = begun.run(connection=connection, images_per_piece=2, notes=notes)
        finally:
            asleep.resume()
    assert {outcome.category for outcome in saved} == {"refused"}
    assert [(node, why.code) for node, why in notes] == [("asleep", "cluster_no_reply")]


def test_nodes_with_wrong_answers_are_named_and_set_aside_while_another_works(begun: Begun) -> None:
    begun.write_list(24)
    notes: list[tuple[str, Reason]] = []
    bad = ("bad-rows/1", "bad-size/1", "bad-type/1", "bad-silent/1")
    with cluster_of_nodes(begun.place, "ward/1", *bad) as (_, _, connection):
        with open_client(connection) as client:
            client.wait_for_workers(5)
        saved = begun.run(
            screen=STAND_INS["screen_but_on_bad_nodes"], connection=connection, images_per_piece=2,
            notes=notes, time_limit_s=lambda _images: 5.0,
        )  # fmt: skip
    assert {outcome.category for outcome in saved} == {"refused"}
    assert {(node, why.code) for node, why in notes} == {
        ("bad-rows", "cluster_other_answer"),
        ("bad-size", "cluster_other_answer"),
        ("bad-type", "cluster_other_answer"),
        ("bad-silent", "cluster_silent"),
    }


# ---- a manipulated scheduler, whose wrong messages must not do harm


def lies() -> dict[str, Callable[..., Any]]:
    """Return functions that manipulate a scheduler, by name. Only nested functions are pickled by value."""

    def answering(name: str, answer: Any) -> Callable[..., None]:
        def change(dask_scheduler: Any) -> None:
            async def lie(*_: object, **__: object) -> Any:
                return answer

            dask_scheduler.handlers[name] = lie

        return change

    def exchanged(dask_scheduler: Any) -> None:
        """Return the answer for the first piece for all others."""
        honest, first = dask_scheduler.handlers["gather"], {}

        async def lie(keys: Any = (), **options: Any) -> Any:
            found = await honest(keys=keys, **options)
            found["data"] = {key: first.setdefault("data", found["data"][key]) for key in keys}
            return found

        dask_scheduler.handlers["gather"] = lie

    def sending(message: dict[str, Any]) -> Callable[..., None]:
        """Send a wrong message with each true one."""

        def change(dask_scheduler: Any) -> None:
            honest = dask_scheduler.report

            def lie(message: Any, **options: Any) -> None:
                for comm in dask_scheduler.client_comms.values():
                    comm.send({**message, "key": message.get("key", "x")})
                honest(message, **options)

            dask_scheduler.report = lie

        return change

    return {
        "workers are a list": answering("identity", {"workers": [1, 2]}),
        "a worker is a number": answering("identity", {"workers": {SOMEWHERE: 7}}),
        "a worker has no name": answering("identity", {"workers": {SOMEWHERE: {}}}),
        "sizes are none": answering("nbytes", None),
        "a size is text": answering("nbytes", {"x": "many"}),
        "answers are none": answering("gather", None),
        "an answer of something else": answering("gather", {"status": "OK", "data": {"x": b"PAR1"}}),
        "answers are exchanged": exchanged,
        "reports are text": answering("broadcast", "all"),
        "a report of somebody else": answering("broadcast", {SOMEWHERE: {"status": "OK", "result": b"x"}}),
        "unknown news": sending({"op": "of-tomorrow"}),
        "news too early": sending({"op": "key-in-memory", "workers": [7], "type": b"x"}),
        "news of a loss": sending({"op": "lost-data"}),
        "news of a failure": sending({"op": "task-erred", "exception": b"x", "traceback": b"y"}),
    }


LIES = lies()


@pytest.mark.cluster
@pytest.mark.parametrize("lie", LIES)
def test_a_manipulated_scheduler_gives_full_results_or_an_error(lie: str, begun: Begun) -> None:
    """Either all images get results, or the run ends with an error about the cluster."""
    begun.write_list(12)
    with cluster_of_nodes(begun.place, "ward/1") as (_, _, connection):
        with open_client(connection) as client:
            client.wait_for_workers(1)
            client.run_on_scheduler(LIES[lie])
        try:
            begun.run(connection=connection)
        except EnvironmentProblem as problem:
            assert problem.reason.code in ("cluster_node_problem", "cluster_no_answer", "cluster_lost")
            assert len(begun.run()) == 12  # no wrong data were saved


def test_a_scheduler_with_an_invalid_list_of_workers_is_named(tmp_path: Path) -> None:
    with cluster_of_nodes(tmp_path, "ward/1") as (_, _, connection), open_client(connection) as client:
        client.wait_for_workers(1)
        client.run_on_scheduler(LIES["a worker has no name"])
        with pytest.raises(EnvironmentProblem, match="sent an invalid answer") as problem:
            describe_cluster(client)
        assert problem.value.reason.code == "cluster_node_problem"
