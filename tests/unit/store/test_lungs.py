"""Lung fields and notes in the store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from fieldray.domain.finding import Refused, Screened
from fieldray.domain.history import ResultFilter, ResultOrder
from fieldray.reasons import reason
from fieldray.store.results import ResultStore
from fieldray.store.rows import result_hash
from fieldray.store.work_list import HistoryQuery, WorkListQuery
from lungs import SIDE, lungs, two_lungs
from outcomes import failed, refused, run_spec, screened


def kept(path: Path, outcome: Screened | Refused) -> Screened | Refused:
    """The outcome after it was stored."""
    with ResultStore(path) as store:
        row_id = store.save(store.open_run(run_spec()), outcome, spec=run_spec())
        found = store.row(row_id).outcome
    assert isinstance(found, Screened | Refused)
    return found


def test_lungs_and_notes_come_back_as_they_were(tmp_path: Path) -> None:
    given = replace(
        lungs(mirrored=0.9, region=two_lungs()), evidence_inside=0.25, latency_ms=1.5, quality=("lungs_low",)
    )
    notes = (reason("perhaps_mirrored"), reason("evidence_outside", percent=25))
    back = kept(tmp_path / "results.sqlite", replace(screened(), lungs=given, notes=notes))
    assert isinstance(back, Screened) and back.lungs is not None
    assert back.notes == notes
    assert np.array_equal(back.lungs.shares, given.shares)
    for name in (
        "found",
        "left_share",
        "right_share",
        "cut_off",
        "rotation_degrees",
        "is_mirrored",
        "region",
        "quality",
        "pixel_map",
    ):
        assert getattr(back.lungs, name) == getattr(given, name), name
    assert (back.lungs.evidence_inside, back.lungs.latency_ms, back.lungs.threshold) == (0.25, 1.5, given.threshold)


def test_an_image_to_be_read_first_is_so_when_it_comes_back_and_is_another_result(tmp_path: Path) -> None:
    white = np.where(np.arange(SIDE) < SIDE // 2, two_lungs(), np.float32(0))  # the patient's left lung
    seen, unseen = (replace(screened(), lungs=lungs(shares)) for shares in (two_lungs(), white))
    found = kept(tmp_path / "results.sqlite", unseen)
    assert found.category == "read_first"
    assert isinstance(found, Screened) and found.lungs is not None
    assert found.lungs.unseen == ("left",)
    assert result_hash(seen) != result_hash(unseen)  # a verdict on the one is none on the other
    with HistoryQuery(tmp_path / "results.sqlite") as query:
        assert query.summaries()[0].counts == {"read_first": 1}
    with WorkListQuery(tmp_path / "results.sqlite") as query:
        listed = query.listed(1, ResultFilter(category="read_first"), ResultOrder())
    assert (len(listed.row_ids), listed.counts["read_first"]) == (1, 1)


def test_a_refusal_keeps_why_and_what_has_no_lungs_has_none(tmp_path: Path) -> None:
    turned = lungs(rotated_90=0.9)
    assert turned.refusal is not None
    found = kept(tmp_path / "results.sqlite", replace(refused(), reason=turned.refusal, lungs=turned))
    assert isinstance(found, Refused) and found.lungs is not None
    assert (found.reason.code, found.lungs.rotation_degrees) == ("rotated", 90)
    plain = kept(tmp_path / "results.sqlite", screened())
    assert isinstance(plain, Screened)
    assert (plain.lungs, plain.notes) == (None, ())
    with ResultStore(tmp_path / "results.sqlite") as store:
        assert store.row(store.save(1, failed(), spec=run_spec())).outcome.status == "failed"


def test_a_mask_takes_little_room(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:256, 0:256]
    soft = 1 / (1 + np.exp(((rows - 128) ** 2 / 90**2 + (columns - 70) ** 2 / 40**2 - 1) * 20))
    kept(tmp_path / "results.sqlite", replace(screened(), lungs=lungs(soft.astype(np.float32))))
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as connection:
        ((size,),) = connection.execute("SELECT LENGTH(lung_shares) FROM results")
    assert size < 256 * 256 / 32
