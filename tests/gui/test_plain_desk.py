"""Texts from outside in the audit and the history: none of them is markup, opens a file, or passes for our own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk
from fake_rooms import FINGERPRINT, FakeRooms, screened
from PySide6.QtWidgets import QApplication, QMessageBox
from test_plain_text import assert_plain, hostile_outcomes, hostile_point, hostile_reason, picture, text

from fieldray.desktop.audit_page import LocalPointDialog
from fieldray.domain.events import RunChanged
from fieldray.domain.finding import Screened
from fieldray.domain.run import RunSpec, Verdict
from fieldray.errors import UsageProblem
from fieldray.store.results import ResultStore
from file_opens import FileOpens

__all__ = ["picture", "text"]  # fixtures

LONG = "W" * 5000


@pytest.fixture
def store(tmp_path: Path, text: str) -> Path:
    """Two runs of packs, over folders and on devices that are called something hostile."""
    path = tmp_path / "store" / "results.sqlite"
    spec = RunSpec(
        paths=(f"/images/{text}", f"/{LONG}"),
        pack_name=text,
        trust="signed",
        fingerprint=FINGERPRINT,
        model_sha256="0123456789abcdef" * 4,
        settings_hash="s" * 64,
        operating_points=(hostile_point(text),),
    )
    with ResultStore(path) as opened:
        for number, one in enumerate((spec, replace(spec, pack_name=LONG + text, model_sha256="a" * 64)), 1):
            run_id = opened.open_run(one)
            for outcome in hostile_outcomes(text):
                opened.save(run_id, outcome, spec=one)
            opened.save(run_id, screened(7 + number, 0.9), spec=one)
            opened.finish(run_id)
        seen = hostile_outcomes(text)[0]
        assert isinstance(seen, Screened)
        opened.set_verdict(1, Verdict(choice="disagree", note=text), judged=seen)
    return path


@pytest.fixture
def rooms(store: Path, text: str) -> FakeRooms:
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9), screened(2, 0.1)]
    made.database = store
    made.audit.text = text
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="hears of opened files by inotify")
def test_nothing_is_markup_in_an_audit(desk: Desk, text: str, picture: Path) -> None:
    opens = FileOpens(picture)
    try:
        desk.screen()
        desk.rooms.publish(RunChanged(run_id=desk.rooms.session.batches[0].run_id, state="finished"))
        auditing, page = desk.bench.auditing, desk.window.audit_page
        desk.until(lambda: auditing.can_audit)
        desk.window.actions_by_name["audit"].trigger()
        page.use_table(Path(f"/labels/{text.replace('/', ' ')}.csv"))
        page.button.click()
        desk.until(lambda: auditing.report is not None)
        assert assert_plain(text) >= 6  # button, title, three groups, disagreements
        page.widget().grab()
        auditing.save(auditing.report, Path("/out") / text, language="en")
        desk.until(lambda: any(notice.key == "export" for notice in desk.bench.board.notices))
        page.take_button.click()
        (dialog,) = (found for found in QApplication.topLevelWidgets() if isinstance(found, LocalPointDialog))
        assert_plain(text)
        dialog.close()
        desk.rooms.audit.problem = UsageProblem(hostile_reason(text))
        page.button.click()
        desk.until(lambda: auditing.problem is not None)
        assert_plain(text)
        assert not opens.any()
    finally:
        opens.close()


@pytest.mark.skipif(sys.platform != "linux", reason="hears of opened files by inotify")
def test_nothing_is_markup_in_the_history(desk: Desk, text: str, picture: Path) -> None:
    opens = FileOpens(picture)
    try:
        desk.until(lambda: desk.bench.past_runs.can_open)
        desk.window.actions_by_name["history"].trigger()
        page, runs = desk.window.history_page, desk.bench.past_runs
        desk.until(lambda: page.table.rowCount() == 2)
        assert assert_plain(text) >= 4
        page.search.setText(text)
        assert_plain(text)
        page.search.setText("")
        runs.compare(1, 2)
        desk.until(lambda: page.comparison is not None)
        assert assert_plain(text) >= 8
        page.widget().grab()
        for table in (page.table, page.comparison.table):
            table.grab()
        runs.plan([1])
        desk.until(lambda: any(isinstance(found, QMessageBox) for found in QApplication.topLevelWidgets()))
        assert_plain(text)
        for box in (found for found in QApplication.topLevelWidgets() if isinstance(found, QMessageBox)):
            box.close()
        runs.open(1)
        desk.until(lambda: desk.bench.screening.run_id == 1)
        for row_id in (1, 2, 3):
            desk.open_row(row_id)
            assert_plain(text)
        desk.window.grab()
        assert not opens.any()
    finally:
        opens.close()
