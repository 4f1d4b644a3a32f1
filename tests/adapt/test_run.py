"""The folder of an adapt run: named failures, resuming after the last finished step, and damaged files.

Only one process may use the folder. A second one is told which process does, and a killed process releases it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fieldray.domain.model import InputSpec
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.data.image_set import read_images, read_rows
from fieldray_adapt.files import remove_on_failure, to_builtins
from fieldray_adapt.networks.specification import load_weights
from fieldray_adapt.pack.writing import is_pack_unchanged, written_pack_facts
from fieldray_adapt.run import (
    EPOCH_HISTORY_FILE_NAME,
    LOCK_FILE_NAME,
    SPLIT_FILE_NAME,
    STATUS_FILE_NAME,
    Run,
    Step,
    append_epoch,
    lock_run_folder,
)
from fieldray_adapt.training.loop import Checkpoint, EpochFigures
from fieldray_adapt.training.steps import load_step_network
from packs_factory import make_pack
from tiny_recipe import read_recipe

RECIPE = Path(__file__).parents[2] / "models" / "recipes" / "pneumonia-paediatric.toml"


def _run(tmp_path: Path) -> Run:
    folder = tmp_path / "models" / "recipes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE.read_text(encoding="utf-8"), encoding="utf-8")
    return Run(recipe=read_recipe(folder / "recipe.toml"), progress=lambda *_: None)


def _works(run: Run) -> Mapping[str, Any]:
    run.write_step_json("first", "result.json", [1])
    return {"answer": 1}


def _fails(run: Run) -> Mapping[str, Any]:
    raise UsageProblem(reason("data_class_empty", label="pneumonia", kind="negative", part="test"))


FIRST = Step(name="first", perform=_works, recipe_keys=("input",))
SECOND = Step(name="second", perform=_fails, recipe_keys=("data",))


def test_a_step_that_fails_is_named_and_the_one_before_it_stays_done(tmp_path: Path) -> None:
    run, said = _run(tmp_path), list[str]()
    with pytest.raises(UsageProblem):
        run.execute((FIRST, SECOND), say=said.append)
    assert run.step_statuses["first"].is_done and run.step_statuses["first"].facts["answer"] == 1
    assert run.step_statuses["second"].record.state == "failed"
    problem = run.step_statuses["second"].record.problem
    assert problem == "The test part of the data has no negative images for the label pneumonia."
    mended = Step(name="second", perform=_works, recipe_keys=("data",))
    said.clear()
    run.execute((FIRST, mended), say=said.append)
    assert said == ["first: done before", "second ..."] and run.step_statuses["second"].is_done


def test_a_result_that_cannot_be_written_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.step_folder("first").mkdir(parents=True)
    (run.step_folder("first") / "result.json").mkdir()  # no file can be written there
    with pytest.raises(StorageProblem, match=r"Cannot write to .*result\.json"):
        run.execute((FIRST,), say=lambda _: None)
    assert (
        run.step_statuses["first"].record.state == "failed"
        and "Cannot write" in run.step_statuses["first"].record.problem
    )
    (run.step_folder("first") / "result.json").rmdir()
    run.execute((FIRST,), say=lambda _: None)
    assert run.step_statuses["first"].is_done


def _anothers(place: Path) -> None:
    shutil.rmtree(place)
    make_pack(place.parent, key_number=2)


@pytest.mark.parametrize("happens", [shutil.rmtree, _anothers])
def test_a_deleted_pack_is_made_again(tmp_path: Path, happens: Callable[[Path], None]) -> None:
    run, said, made = _run(tmp_path), list[str](), list[Path]()

    def packs(_: Run) -> Mapping[str, Any]:
        if made and made[0].exists():
            shutil.rmtree(made[0])
        made.append(make_pack(tmp_path / "packs"))
        return to_builtins(written_pack_facts(made[-1]))

    step = Step(name="pack", perform=packs, recipe_keys=("pack",), are_outside_files_intact=is_pack_unchanged)
    for change in (None, None, happens):
        if change:
            change(made[-1])
        run.execute((step,), say=said.append)
    assert said == ["pack ...", "pack: done before", "pack ..."] and is_pack_unchanged(run.step_statuses["pack"].facts)


def test_a_damaged_pack_does_not_count_as_done(tmp_path: Path) -> None:
    facts = to_builtins(written_pack_facts(make_pack(tmp_path)))
    assert is_pack_unchanged(facts)
    Path(facts["pack"], "model.tflite").write_bytes(b"?")
    assert not is_pack_unchanged(facts)


def _reason(act: Callable[[], object]) -> Reason:
    with pytest.raises((UsageProblem, StorageProblem)) as caught:
        act()
    return caught.value.reason


@pytest.mark.parametrize(
    ("name", "code"), [("result.json", "run_file_changed"), (SPLIT_FILE_NAME, "run_split_changed")]
)
def test_a_file_that_was_changed_after_its_step_is_named(tmp_path: Path, name: str, code: str) -> None:
    def perform(run: Run) -> Mapping[str, Any]:
        run.write_step_json("first", name, [1])
        return {}

    run, step = _run(tmp_path), Step(name="first", perform=perform, recipe_keys=("input",), outputs=(name,))
    run.execute((step,), say=lambda _: None)
    run.execute((step,), say=lambda _: None)
    path = run.step_folder("first") / name
    path.write_text("[2]")
    why = _reason(lambda: run.execute((step,), say=lambda _: None))
    assert why.code == code and str(path) in why.text
    path.unlink()  # as the message advises
    run.execute((step,), say=lambda _: None)
    assert json.loads(path.read_text()) == [1]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"first": 1}', b"\xff\x00"])
def test_a_damaged_status_is_named_and_may_be_deleted(tmp_path: Path, content: bytes) -> None:
    run = _run(tmp_path)
    run.execute((FIRST,), say=lambda _: None)
    path = run.recipe.run / STATUS_FILE_NAME
    path.write_bytes(content)
    why = _reason(lambda: run.execute((FIRST,), say=lambda _: None))
    assert why.code == "run_file_damaged" and str(path) in why.text
    path.unlink()
    run.execute((FIRST,), say=lambda _: None)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"nothing of the kind"])
def test_damaged_weights_and_checkpoints_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    reads: list[Callable[[], object]] = [
        lambda: load_weights(path),
        lambda: Checkpoint(path).has_training_state(object, fingerprint="1"),
        lambda: read_images([], InputSpec(height=8, width=8), cache=path, progress=lambda *_: None),
    ]
    for read in reads:
        why = _reason(read)
        assert why.code == "run_file_damaged" and str(path) in why.text


def test_a_damaged_specification_and_damaged_digests_are_named(tmp_path: Path) -> None:
    run = _run(tmp_path)
    for name, read in (
        ("train/specification.json", lambda: load_step_network(run, "train")),
        ("data/digests.json", lambda: read_rows([], folder=run.step_folder("data"))),
    ):
        for content in ("", "[1]", '{"layers": 1}' if "train" in name else "7"):
            path = run.recipe.run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name("weights.npz").touch()
            path.write_text(content)
            why = _reason(read)
            assert why.code == "run_file_damaged" and path.name in why.text


def test_the_history_of_a_training_grows_with_its_epochs(tmp_path: Path) -> None:
    def known() -> list[float]:
        return [row["loss"] for row in json.loads((tmp_path / EPOCH_HISTORY_FILE_NAME).read_text())]

    def keep(epoch: int, loss: float) -> None:
        append_epoch(tmp_path, EpochFigures(epoch=epoch, epochs=2, loss=loss))

    keep(1, 3.0)
    keep(2, 2.0)
    assert known() == [3.0, 2.0]
    keep(2, 2.5)  # resumed after the first epoch
    assert known() == [3.0, 2.5]
    keep(1, 4.0)  # a different training
    assert known() == [4.0]
    (tmp_path / EPOCH_HISTORY_FILE_NAME).write_text("[")
    keep(1, 5.0)
    assert known() == [5.0]


HOLD = """
import sys, time
from pathlib import Path
from fieldray_adapt.run import lock_run_folder
with lock_run_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def _hold(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_run_is_told_who_holds_the_folder_until_that_one_dies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with _hold(folder) as holder:
        with pytest.raises(UsageProblem, match=rf"using .*run: process {holder.pid} of "), lock_run_folder(folder):
            pass
        holder.kill()
        holder.wait(timeout=20)
        # The lock file still names the dead process, but it is no longer locked.
        assert str(holder.pid) in (folder / LOCK_FILE_NAME).read_text()
        with lock_run_folder(folder):
            assert f"process {os.getpid()} of " in (folder / LOCK_FILE_NAME).read_text()


def test_the_folder_is_free_again_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_run_folder(tmp_path):
        raise ZeroDivisionError
    with lock_run_folder(tmp_path), pytest.raises(UsageProblem, match=str(os.getpid())), lock_run_folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageProblem, match="file"), lock_run_folder(tmp_path / "file" / "run"):
        pass


def test_a_failing_block_removes_only_what_it_made(tmp_path: Path) -> None:
    key, folder, full = tmp_path / "keys" / "deep" / "new.pem", tmp_path / "packs", tmp_path / "full"
    with pytest.raises(ValueError, match="refused"), remove_on_failure(key, folder, full):
        key.parent.mkdir(parents=True)
        key.write_text("a key")
        folder.mkdir()
        full.mkdir()
        (full / "another's").touch()
        raise ValueError("refused")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    with remove_on_failure(key, folder):
        key.parent.mkdir(parents=True)
        key.write_text("a key")
    assert key.read_text() == "a key"
