"""Reading in child processes: every kind of file, and workers that crash, hang or use up memory."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from fieldray.domain.image import ImageDetail, ImageRef
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.pack_setup import set_up_pack
from fieldray.errors import BackendProblem, Unreadable, WorkerProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.preprocess import block_thumbnail, to_network_input
from fieldray.imaging.reading import decode_image_bytes
from fieldray.imaging.synthetic import chest_phantom
from fieldray.inference.backend import NetworkOutput
from fieldray.paths import child_process_command
from fieldray.reasons import reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult, DeviceRunResult
from fieldray.workers.pool import PoolClosed, WorkerPool
from phantoms import write_bad_inputs, write_dicom
from raised import raises
from strange_services import command as strange_command
from strange_services import reader_command, strange
from tiny_models import tiny_manifest, tiny_model
from waiting import wait_for

SPEC = InputSpec(height=64, width=48, margin=0.05)
IMAGE = chest_phantom(160, 128, 7, abnormal=False)


def look(pool: WorkerPool, ref: ImageRef, spec: InputSpec, *, detail: ImageDetail = "needed") -> AnalysisResult:
    return pool.analyse(AnalysisRequest(ref=ref, whole_image_input_spec=spec, detail=detail), model=None)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """A pool whose children and helper processes have started before a test looks for leftover processes."""
    image = _image(tmp_path_factory.mktemp("first"), "image.dcm")
    with WorkerPool(2, timeout_s=30, memory_limit_mb=1024) as pool:
        with ThreadPoolExecutor(2) as threads:
            while len(pool.pids) < 2:
                list(threads.map(lambda _: look(pool, image, SPEC), range(2)))
        yield pool


@pytest.fixture
def strange_pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    with WorkerPool(1, timeout_s=getattr(request, "param", 30), memory_limit_mb=1024, command=reader_command) as pool:
        yield pool


def test_a_child_gives_the_same_result_as_this_process(pool: WorkerPool, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, changes={"ViewPosition": "AP"})
    ref = ImageRef(path=path)
    here = decode_image_bytes(path.read_bytes(), ref)
    read = look(pool, ref, SPEC)
    expected = to_network_input(here, SPEC)
    np.testing.assert_array_equal(read.input_values, expected.values)
    assert read.facts.input_to_image == expected.input_to_image
    np.testing.assert_array_equal(read.facts.thumbnail, block_thumbnail(here, 64))
    assert read.facts.content_sha256 == hashlib.sha256(path.read_bytes()).hexdigest() == pool.hash_file(ref)[0]
    assert (read.facts.rows, read.facts.columns, read.problem) == (160, 128, None)
    assert read.facts.decode_ms > 0


@pytest.mark.skipif(sys.platform == "win32", reason="priorities are classes there")
def test_a_worker_lowers_its_priority_after_its_first_image(tmp_path: Path) -> None:
    image, own = _image(tmp_path, "image.dcm"), psutil.Process().nice()
    with WorkerPool(1, timeout_s=30, memory_limit_mb=1024) as pool:
        (child,) = map(psutil.Process, pool.pids)
        pool.read_image(image)  # reading for the viewer, with somebody waiting
        assert child.nice() == own
        for _ in range(2):
            look(pool, image, SPEC)
            assert child.nice() == min(own + 5, 19)


def test_further_workers_start_after_the_first_reading(tmp_path: Path) -> None:
    images = [_image(tmp_path, "hang.dcm"), _image(tmp_path, "image.dcm")]
    with WorkerPool(2, timeout_s=60, memory_limit_mb=1024, command=reader_command) as pool:
        assert len(pool.pids) == 1
        with ThreadPoolExecutor(2) as threads:
            hanging, read = (threads.submit(look, pool, image, SPEC) for image in images)
            # the first hangs, and does not delay the other
            assert read.result(30).problem is None
            assert len(pool.pids) == 2
            pool.close()
            with pytest.raises(PoolClosed):
                hanging.result(10)


def test_a_child_returns_the_whole_image(pool: WorkerPool, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "image.dcm", IMAGE, photometric="MONOCHROME1", signed=True)
    here, there = decode_image_bytes(path.read_bytes(), ImageRef(path=path)), pool.read_image(ImageRef(path=path))
    np.testing.assert_array_equal(here.pixels, there.pixels)
    says = "window padding_value value_scale value_offset spacing_mm spacing_plane view notes file_rows"
    for name in says.split():
        assert getattr(here, name) == getattr(there, name), name


def test_bad_files_have_their_reason_and_known_facts(pool: WorkerPool, tmp_path: Path) -> None:
    expected = write_bad_inputs(tmp_path)
    pids, refs = pool.pids, list(discover([tmp_path]))
    by_header = {"modality", "body_part", "view"}
    assert sorted({ref.path.name for ref in refs}) == sorted(expected)  # one row each
    for ref in refs:
        status, code = expected[ref.path.name]
        if ref.problem:
            assert (ref.problem.code, ref.problem_is_refusal) == (code, status == "refused"), ref.path.name
        if ref.problem or code in by_header:
            continue
        read = look(pool, ref, SPEC)
        assert read.problem is not None, ref.path.name
        assert (read.problem.code, read.is_refusal) == (code, status == "refused"), ref.path.name
        assert read.input_values is None
        assert read.facts.content_sha256 == hashlib.sha256(ref.path.read_bytes()).hexdigest()
    assert pool.pids == pids


def test_a_refused_image_still_has_its_thumbnail(pool: WorkerPool, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "strip.dcm", np.tile(IMAGE, (4, 1)))
    read = look(pool, ImageRef(path=path), SPEC)
    assert read.problem.code == "aspect"
    assert read.facts.thumbnail is not None
    assert read.facts.rows == 640


@pytest.mark.parametrize(("name", "code"), [("nothing.dcm", "missing"), ("", "unreadable")])
def test_a_missing_file_or_a_folder_has_a_reason(pool: WorkerPool, name: str, code: str, tmp_path: Path) -> None:
    read = look(pool, ImageRef(path=tmp_path / name), SPEC)
    assert (read.problem.code, read.is_refusal) == (code, False)
    assert read.facts.content_sha256 == ""


def test_a_member_of_a_zip_is_read(pool: WorkerPool, tmp_path: Path) -> None:
    image = write_dicom(tmp_path / "image.dcm", IMAGE).read_bytes()
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("../a/image.dcm", image)
    ref = ImageRef(path=tmp_path / "z.zip", zip_member="../a/image.dcm")
    read = look(pool, ref, SPEC)
    assert read.input_values is not None
    assert read.facts.content_sha256 == hashlib.sha256(image).hexdigest() == pool.hash_file(ref)[0]
    gone = look(pool, ImageRef(path=tmp_path / "z.zip", zip_member="other"), SPEC)
    assert gone.problem.code == "missing"


# ---- workers that misbehave


def _image(tmp_path: Path, name: str) -> ImageRef:
    return ImageRef(path=write_dicom(tmp_path / name, IMAGE))


def test_a_worker_that_crashes_twice_fails_one_file(strange_pool: WorkerPool, tmp_path: Path) -> None:
    bad = _image(tmp_path, "crash.dcm")
    read = look(strange_pool, bad, SPEC)
    assert (read.problem.code, read.is_refusal) == ("decoder_crashed", False)
    assert read.facts.content_sha256 == hashlib.sha256(bad.path.read_bytes()).hexdigest()
    assert look(strange_pool, _image(tmp_path, "good.dcm"), SPEC).problem is None


def test_a_worker_that_crashes_once_fails_no_file(strange_pool: WorkerPool, tmp_path: Path) -> None:
    first = strange_pool.pids
    assert look(strange_pool, _image(tmp_path, "crash-once.dcm"), SPEC).problem is None
    assert strange_pool.pids != first


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_worker_killed_by_the_system_is_not_reported_as_a_bad_file(strange_pool: WorkerPool, tmp_path: Path) -> None:
    read = look(strange_pool, _image(tmp_path, "killed.dcm"), SPEC)
    assert (read.problem.code, read.is_refusal) == ("reader_killed", False)


def test_a_worker_with_invalid_answers_fails_one_file(strange_pool: WorkerPool, tmp_path: Path) -> None:
    """Its answer has a text for every value, which must not reach the result or the listing of a ZIP file."""
    bad = _image(tmp_path, "nonsense.dcm")
    read = look(strange_pool, bad, SPEC)
    assert (read.problem.code, read.header) == ("decoder_crashed", None)
    packed = tmp_path / "nonsense.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(bad.path, "a.dcm")
    (found,) = discover([packed], list_members=strange_pool.zip_members)
    assert found.problem.code == "decoder_crashed"
    assert look(strange_pool, _image(tmp_path, "good.dcm"), SPEC).problem is None


@pytest.mark.parametrize("strange_pool", [6], indirect=True)
def test_a_worker_that_hangs_is_killed(strange_pool: WorkerPool, tmp_path: Path) -> None:
    bad = _image(tmp_path, "hang.dcm")
    read = look(strange_pool, bad, SPEC)
    assert read.problem.code == "decoder_timeout"
    assert "6 s" in read.problem.text
    assert read.facts.content_sha256 == hashlib.sha256(bad.path.read_bytes()).hexdigest()


def test_a_worker_at_its_memory_limit_gives_a_reason(strange_pool: WorkerPool, tmp_path: Path) -> None:
    pids = strange_pool.pids
    read = look(strange_pool, _image(tmp_path, "balloon.dcm"), SPEC)
    assert read.problem.code == "memory"
    assert strange_pool.pids == pids


def test_an_image_with_another_content_hash_is_not_shown(pool: WorkerPool, tmp_path: Path) -> None:
    ref = _image(tmp_path, "image.dcm")
    judged = look(pool, ref, SPEC).facts.content_sha256
    assert pool.read_image(ref, content_sha256=judged).pixels.shape == IMAGE.shape
    write_dicom(ref.path, IMAGE, number=2)
    with raises(Unreadable, "changed"):
        pool.read_image(ref, content_sha256=judged)


def test_closing_ends_running_and_waiting_calls(tmp_path: Path) -> None:
    pool = WorkerPool(1, timeout_s=60, memory_limit_mb=1024, command=reader_command)
    pids = pool.pids
    hanging = _image(tmp_path, "hang.dcm")
    raised: list[type[BaseException]] = []

    def read() -> None:
        try:
            look(pool, hanging, SPEC)
        except PoolClosed as error:
            raised.append(type(error))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(hanging.path.with_suffix(".hangs").exists)
    pool.close()
    for thread in threads:
        thread.join(10)  # "hang" hangs for ten minutes
    assert raised == [PoolClosed] * 3
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(PoolClosed):
        look(pool, hanging, SPEC)


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        ([sys.executable, "-I", "-c", "raise SystemExit('no memory')"], "child process ended with 1: no memory"),
        ([sys.executable, "-I", "-c", "import os; os.abort()"], "child process ended with -6"),
        (["/nowhere/fieldray-worker"], "No such file or directory"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals and messages of POSIX")
def test_a_child_that_cannot_start_does_not_fail_the_image(tmp_path: Path, command: list[str], detail: str) -> None:
    image = _image(tmp_path, "image.dcm")
    with WorkerPool(2, timeout_s=60, memory_limit_mb=1024, command=lambda _: command) as pool:
        for _ in range(3):  # both of its children are still usable afterwards
            with pytest.raises(WorkerProblem) as caught:
                look(pool, image, SPEC)
            assert dict(caught.value.reason.parameters)["detail"] == detail
        with pytest.raises(WorkerProblem):
            pool.read_image(image)


def test_a_child_that_starts_at_the_second_try_reads(tmp_path: Path) -> None:
    commands = [[sys.executable, "-I", "-c", "raise SystemExit(3)"]]
    image = _image(tmp_path, "image.dcm")

    def command(service: str) -> list[str]:
        return commands.pop() if commands else child_process_command(service)

    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024, command=command) as pool:
        assert look(pool, image, SPEC).problem is None


# ---- models

VALUES = np.full((64, 64, 1), 200, np.uint8)
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def run(pool: WorkerPool, model: Model, *, is_cancelled: Callable[[], bool] = lambda: False) -> NetworkOutput:
    return pool.run(VALUES, model=model, is_cancelled=is_cancelled)


@contextmanager
def stopped(pool: WorkerPool) -> Iterator[None]:
    """Suspend the pool's only child."""
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    yield
    if psutil.pid_exists(pid):
        os.kill(pid, signal.SIGCONT)


@posix_only
def test_a_child_that_dies_while_loading_networks_fails_one_image_at_most(tmp_path: Path) -> None:
    ends, model = [strange_command(strange("end"))] * 5, tiny_model()

    def command(service: str) -> list[str]:
        return ends.pop() if ends else child_process_command(service)

    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024, command=command) as pool:
        look = partial(
            pool.analyse, AnalysisRequest(ref=_image(tmp_path, "image.dcm"), classifier_location="here"), model=model
        )
        for ask in (look, partial(run, pool, model)):
            with raises(BackendProblem, "worker_died"):
                ask()  # two children were lost
        seen = look()
        assert seen.problem is None and seen.network_output is not None


@posix_only
@pytest.mark.parametrize(("name", "starts"), [("image.dcm", 4), ("crash-once.dcm", 5)])
def test_an_image_that_crashes_the_classifier_is_tried_three_times(name: str, starts: int, tmp_path: Path) -> None:
    begun: list[str] = []

    def command(service: str) -> list[str]:
        begun.append(service)
        return strange_command(strange("end_in_classifier"))

    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024, command=command) as pool:
        seen = pool.analyse(AnalysisRequest(ref=_image(tmp_path, name), classifier_location="here"), model=tiny_model())
        assert seen.problem == reason("worker_died") and seen.stage == "inference"
        assert (seen.network_output, seen.input_values, len(begun)) == (None, None, starts)
        assert seen.facts.rows == IMAGE.shape[0] and seen.facts.thumbnail is not None
        with raises(BackendProblem, "worker_died"):
            run(pool, tiny_model())
    assert len(begun) == starts + 2


@posix_only
def test_a_crash_in_the_network_of_one_pack_does_not_fail_the_others(tmp_path: Path) -> None:
    def command(_service: str) -> list[str]:
        return strange_command(strange("end_in_second"))

    models = tiny_model(), tiny_model(labels=2, manifest=tiny_manifest(labels=2))
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024, command=command) as pool:
        pool.register_model_group(models)
        looks = [
            (AnalysisRequest(ref=_image(tmp_path, "image.dcm"), classifier_location="here"), model) for model in models
        ]
        first, second = pool.analyse_for_models(looks)
    assert first.problem is None and first.network_output is not None
    assert (second.problem, second.stage, second.network_output) == (reason("worker_died"), "inference", None)


Said = Callable[[int, NDArray[np.uint8]], DeviceRunResult]


def looked_elsewhere(
    tmp_path: Path, said: Said, *, is_cancelled: Callable[[], bool] = lambda: False
) -> list[AnalysisResult]:
    """The worker's results for two packs whose networks run elsewhere, with the answers of `said`."""
    models = tiny_model(), tiny_model(labels=2, manifest=tiny_manifest(labels=2))
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024) as pool:
        pool.register_model_group(models[::-1])
        image = _image(tmp_path, "image.dcm")
        looks = [
            (AnalysisRequest(ref=image, operating_points=set_up_pack(one).points, classifier_location="elsewhere"), one)
            for one in models
        ]
        return list(pool.analyse_for_models(looks, run_elsewhere=said, is_cancelled=is_cancelled))


def test_a_worker_passes_each_input_on_for_the_right_pack(tmp_path: Path) -> None:
    """The worker has loaded the two packs in the reverse order."""
    asked = list[tuple[int, tuple[int, ...]]]()

    def said(number: int, values: NDArray[np.uint8]) -> DeviceRunResult:
        asked.append((number, values.shape))
        codes = ("opacity", "label1")[: number + 1]
        return DeviceRunResult(scores=dict.fromkeys(codes, 0.9), features=np.zeros(4, np.float32))

    seen = looked_elsewhere(tmp_path, said)
    assert asked == [(0, (1, 64, 64, 1)), (1, (1, 64, 64, 1))]
    assert [(one.problem, one.network_output, one.input_values, one.stage) for one in seen] == [
        (None, None, None, "inference")
    ] * 2


def test_a_worker_runs_an_input_itself_if_no_device_does(tmp_path: Path) -> None:
    def said(number: int, _values: NDArray[np.uint8]) -> DeviceRunResult:
        if number:
            raise BackendProblem(reason("again_other_pack", pack="tiny"))
        return DeviceRunResult()

    first, second = looked_elsewhere(tmp_path, said)
    assert first.network_output is not None and first.problem is None
    assert (second.network_output, second.problem) == (None, None)  # the caller knows the reason


def test_an_image_cancelled_before_its_reading_is_not_run(tmp_path: Path) -> None:
    asked = list[int]()

    def said(number: int, _values: NDArray[np.uint8]) -> DeviceRunResult:
        asked.append(number)
        return DeviceRunResult()

    with pytest.raises(PoolClosed):
        looked_elsewhere(tmp_path, said, is_cancelled=lambda: True)
    assert not asked


@posix_only
def test_waiting_inputs_are_run_by_their_own_pack_after_a_reload(tmp_path: Path) -> None:
    first, second = tiny_model(), tiny_model(labels=2, manifest=tiny_manifest(labels=2))
    looks = [
        (AnalysisRequest(ref=_image(tmp_path, "image.dcm"), classifier_location="here"), model)
        for model in (first, second)
    ]
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024) as pool, ThreadPoolExecutor(4) as threads:
        pool.register_model_group([first, second])
        run(pool, first)
        for together in ([second, first], [first], []):
            with stopped(pool):
                runs = [threads.submit(run, pool, one) for one in (first, second, first)]
                looked = threads.submit(pool.analyse_for_models, looks)
                time.sleep(0.2)  # all but one are waiting
                pool.register_model_group(together)
            assert [len(one.result(60).scores) for one in runs] == [1, 2, 1]
            assert [len(seen.network_output.scores) for seen in looked.result(60)] == [1, 2]


@posix_only
def test_only_cancelled_calls_are_ended(tmp_path: Path) -> None:
    """A run that ends cancels its own readings, and not a call of another caller."""
    model, image, is_over = tiny_model(), _image(tmp_path, "image.dcm"), threading.Event()
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024) as pool, ThreadPoolExecutor(3) as threads:
        run(pool, model)
        with stopped(pool):
            asked = threads.submit(run, pool, model, is_cancelled=is_over.is_set)
            time.sleep(0.2)  # this call has the child
            look = threads.submit(pool.analyse, AnalysisRequest(ref=image), model=model)
            wanted = threads.submit(run, pool, model)
            time.sleep(0.2)
            pool.abort_calls()
            with pytest.raises(PoolClosed):
                look.result(10)
            assert not asked.done() and not wanted.done()
            is_over.set()
            pool.abort_cancelled_calls()
            with pytest.raises(PoolClosed):
                asked.result(10)
        assert wanted.result(30).scores.size
