"""The registry of workers: which nodes get work, whether image or node caused a crash, and keys of results."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from archives import cluster_of_nodes
from fieldray.errors import EnvironmentProblem
from fieldray.reasons import Reason, reason
from fieldray_cluster.connection import ConnectionSettings
from fieldray_cluster.worker_registry import (
    AWAITS_IMAGE_SERVER_METRIC,
    ArchivePiece,
    ConnectionLost,
    FaultCounts,
    NodeReport,
    WorkerRegistry,
    incompatibility_reason,
    node_report_text,
    path_fingerprint,
    required_versions,
    result_key,
    run_with_reconnects,
)

ONE = ArchivePiece(7, 8)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({}, None),
        ({"versions": "Fieldray 0.0.1"}, "cluster_other_version"),
        ({"problem": reason("cluster_no_path", path="/share")}, "cluster_no_path"),
    ],
)
def test_a_worker_is_compatible_by_its_versions_and_its_report(said: dict[str, object], code: str | None) -> None:
    report = dataclasses.replace(NodeReport(versions=required_versions(), clock_s=time.time()), **said)  # type: ignore[arg-type]
    why = incompatibility_reason(json.dumps(dataclasses.asdict(report)), pytest.fail)
    assert (why and why.code) == code


@pytest.mark.parametrize(
    "answer", [None, OSError(), b"{}", "{}", node_report_text(None).replace("null", '{"code": "none"}')]
)
def test_an_invalid_answer_of_a_worker_is_incompatible(answer: object) -> None:
    assert incompatibility_reason(answer, pytest.fail) == reason("cluster_other_answer")


def test_a_wrong_clock_of_a_worker_is_reported_and_accepted() -> None:
    said: list[Reason] = []
    report = NodeReport(versions=required_versions(), clock_s=time.time() + 1000)
    assert incompatibility_reason(json.dumps(dataclasses.asdict(report)), said.append) is None
    assert [why.code for why in said] == ["cluster_clock"]


def test_a_lost_scheduler_is_tried_again_but_not_one_that_never_answered(tmp_path: Path) -> None:
    nowhere = ConnectionSettings(address="127.0.0.1:9", scheduler_timeout_s=0.2)
    with pytest.raises(EnvironmentProblem, match="No scheduler answers"):
        run_with_reconnects(nowhere, pytest.fail, count_done=lambda: 0, on_problem=pytest.fail)
    tried: list[int] = []

    def lose(_client: object) -> None:
        tried.append(len(tried))
        raise ConnectionLost

    with cluster_of_nodes(tmp_path, "ward/1") as (_, _, connection), pytest.raises(ConnectionLost):
        run_with_reconnects(connection, lose, count_done=lambda: min(len(tried), 2))
    assert len(tried) == 2 + 4  # two with progress; the second is also the first of five without further progress


class OneWorker:
    """A fake client of a cluster with one worker, whose metrics the test sets."""

    status = "running"

    def __init__(self) -> None:
        self.metrics: dict[str, object] = {}

    def scheduler_info(self, **_: object) -> dict[str, object]:
        return {"workers": {"tcp://10.0.0.1:1": {"name": "ward/1", "metrics": self.metrics}}}

    def ask(self, _worker: str, function: Callable[..., object], *arguments: object) -> Future[object]:
        answer = Future[object]()
        answer.set_result(function(*arguments))
        return answer


def test_each_outage_of_a_server_is_reported_once_at_its_begin() -> None:
    client, told = OneWorker(), list[str]()
    registry = WorkerRegistry(client, on_message=lambda node, why: told.append(f"{node} {why.code}"))
    # the server is gone, back for a moment in one thread's view, gone, back for good, and gone once more
    for looks, is_awaited, times in ((3, True, 1), (2, False, 1), (3, True, 1), (10, False, 1), (3, True, 2)):
        client.metrics = {AWAITS_IMAGE_SERVER_METRIC: is_awaited}
        for _ in range(looks):
            registry.refresh(at_once=True)
        assert told == ["ward archive_server_awaited"] * times


def failed(faults: FaultCounts, piece: ArchivePiece, *nodes: str) -> ArchivePiece:
    for node in nodes:
        piece = faults.add_failure(piece, node)
    return piece


def test_an_image_is_to_blame_where_processes_of_two_nodes_ended_over_it() -> None:
    faults, both = FaultCounts(), ("ward", "attic")
    assert not faults.is_image_at_fault(failed(faults, ONE, "ward", "attic"), both, is_last=False)  # twice only
    assert not faults.is_image_at_fault(failed(faults, ONE, "ward", "ward", "ward"), both, is_last=True)
    assert faults.is_image_at_fault(failed(faults, ONE, "ward", "ward", "attic"), both, is_last=False)


def test_an_image_is_to_blame_where_its_node_has_screened_another_one_since() -> None:
    faults, both = FaultCounts(), ("ward", "attic")
    faults.add_screened_images("ward", 100)  # earlier: the node may have become faulty since
    piece = failed(faults, ONE, "ward", "ward", "ward")
    assert not faults.is_image_at_fault(piece, both, is_last=False)
    faults.add_screened_images("attic", 1)
    assert not faults.is_image_at_fault(piece, both, is_last=False)
    faults.add_screened_images("ward", 1)
    assert faults.is_image_at_fault(piece, both, is_last=False)


def test_with_one_node_an_image_is_to_blame_after_other_images_succeeded_or_as_the_last() -> None:
    faults = FaultCounts()
    piece = failed(faults, ONE, "ward", "ward", "ward")
    assert not faults.is_image_at_fault(piece, ("ward",), is_last=False)
    assert faults.is_image_at_fault(piece, ("ward",), is_last=True)
    faults.add_screened_images("ward", 1)
    assert faults.is_image_at_fault(failed(faults, ONE, "ward", "ward", "ward"), ("ward",), is_last=False)


def test_a_node_is_to_blame_by_deaths_in_a_row_and_all_its_workers_end_at_once() -> None:
    faults = FaultCounts()
    faults.set_worker_count("ward", worker_count=2)
    failed(faults, ONE, *["ward"] * 11)
    assert not faults.is_node_at_fault("ward")
    failed(faults, ONE, "ward")
    assert (
        faults.is_node_at_fault("ward")
        and faults.failures_in_a_row("ward") == 12
        and not faults.is_node_at_fault("attic")
    )
    faults.add_screened_images("ward", 1)
    assert not faults.is_node_at_fault("ward")


def test_halves_of_a_piece_keep_the_failures_of_the_piece() -> None:
    faults = FaultCounts()
    faults.add_screened_images("ward", 5)
    assert [half.image_counts_before_death for half in failed(faults, ArchivePiece(0, 4), "ward").halves()] == [
        (("ward", 5),)
    ] * 2


def test_another_program_version_changes_the_key_of_a_result() -> None:
    assert result_key("a", 1) == result_key("a", 1) != result_key("a", 2)
    assert result_key("a", version="0.0.1") != result_key("a", version="0.0.2")


def test_the_key_of_a_result_follows_the_content_of_files_and_folders(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("1")
    before, folder = path_fingerprint(labels), path_fingerprint(tmp_path)
    os.utime(labels, (1, 1))
    assert path_fingerprint(labels) == before and path_fingerprint(tmp_path) != folder
    labels.write_text("2")
    assert path_fingerprint(labels) != before
    with pytest.raises(FileNotFoundError):
        path_fingerprint(tmp_path / "none")
