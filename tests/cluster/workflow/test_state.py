from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.errors import UsageProblem
from fieldray_cluster.workflow.tasks import JOURNAL, Event, Journal, Outcome, read_events


def test_what_was_written_down_is_read_again(tmp_path: Path) -> None:
    done = Event(task="a-0001", key="k", status="done", number=2, outcome=Outcome(exit_code=0, node="n", seconds=1.5))
    with Journal(tmp_path) as journal:
        journal.add(Event(task="a-0001", key="k", status="running", number=1))
        assert not journal.is_done("a-0001", "k") and journal.next_number("a-0001") == 2
        journal.add(done)
    with Journal(tmp_path) as journal:
        assert journal.latest == {"a-0001": done} and journal.next_number("a-0001") == 3
        assert journal.is_done("a-0001", "k") and not journal.is_done("a-0001", "other")
    assert [event.status for event in read_events(tmp_path)] == ["running", "done"]


def test_a_line_that_was_cut_short_is_no_event(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add(Event(task="a", key="k", status="done", number=1))
    path = tmp_path / JOURNAL
    path.write_bytes(path.read_bytes() + b'{"task": "b", "key"')
    with Journal(tmp_path) as journal:
        journal.add(Event(task="c", key="k", status="done", number=1))
    assert [event.task for event in read_events(tmp_path)] == ["a", "c"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text('{"task": 1}\n')
    with pytest.raises(UsageProblem, match="damaged in line 1"):
        list(read_events(tmp_path))
