"""The benchmark of clusters: copied images with different bytes, counting of differing results, and trainings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster_runs import count_differences, write_copies
from benchmarks.processes import CHECKOUT
from benchmarks.shaped_links import make_computing_links
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import write_studies
from program import write_images


def test_copies_are_readable_images_with_different_bytes(tmp_path: Path) -> None:
    write_studies(tmp_path / "sources", count=1)
    sources = [*(tmp_path / "sources").rglob("*.dcm"), *write_images(tmp_path / "sources", 1)]
    folder = write_copies(tmp_path / "copies", sources, 6)
    copies = sorted(folder.iterdir())
    assert len({copy.read_bytes() for copy in copies}) == 6
    refs = list(discover([folder]))
    assert [ref.problem for ref in refs] == [None] * 6
    assert {ref.kind for ref in refs} == {"dicom", "png"}


def test_missing_and_changed_results_count_as_differences() -> None:
    one = {"a": ("normal", "", "1"), "b": ("normal", "", "2"), "c": ("normal", "", "3")}
    other = {"a": ("normal", "", "1"), "b": ("abnormal", "", "2"), "d": ("normal", "", "3")}
    assert count_differences(one, other) == 3


@pytest.mark.adapt
@pytest.mark.timeout(300)
def test_one_machine_trains_a_network_by_the_program_s_parameter_server_in_turns(tmp_path: Path) -> None:
    (link,) = make_computing_links(("squeezenet",), rate_mbit=100, width=0.125, batches=2, folder=tmp_path)
    assert link.elements * 32 == pytest.approx(link.transfer_s * 100e6)
    task = {"plan": {"workers": 1, "mode": "sync-join", "takes_turns": True}, "elements": 0, "batches": 2, "token": "a"}
    words = [sys.executable, "-m", "benchmarks.shaped_machine", "127.0.0.1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as machine:

        def ask(do: str, **order: Any) -> Any:
            machine.stdin.write(json.dumps({"do": do, **order}) + "\n")
            machine.stdin.flush()
            return json.loads(machine.stdout.readline())

        assert ask("learn", **link.learner) == link.elements
        gradient_s, step_s, used_s = ask("gradients", repeats=1)
        assert 0 < gradient_s < step_s and used_s > 0
        assert 0 < ask("update", repeats=1) < 60
        servers = [ask("serve", share=0, **task)]
        assert not ask("work", worker=0, gradient_s=0.0, servers=servers, at=0.0, **task)["lost"]
        ask("stop")
        machine.stdin.close()
