"""Maps of a stored run: for all its images, with an overlay where the file is unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fakes import FakeReaders
from fieldray.domain.finding import ImageFacts, Outcome, ScreenedOutcome
from fieldray.domain.model import Model
from fieldray.domain.run import PackOfRun
from fieldray.errors import UsageProblem, WorkerProblem
from fieldray.pipeline.export import write_heat_maps
from fieldray.reasons import reason
from fieldray.workers.calls import AnalysisRequest, AnalysisResult
from fieldray.workers.pool import PoolClosed
from lungs import COLUMNS, ROWS, lungs
from outcomes import failed, image_ref, read_facts, refused, screened
from stores import keep
from tiny_models import tiny_manifest


class RereadingReaders(FakeReaders):
    """Reads an image again: unchanged, or with another content for the file named `changed`."""

    def __init__(self, *, changed: str = "", problem: Exception | None = None) -> None:
        super().__init__()
        self._changed, self._problem = changed, problem

    def analyse(self, question: AnalysisRequest, *, model: Model | None) -> AnalysisResult:
        ref, spec = question.ref, question.whole_image_input_spec
        if self._problem:
            raise self._problem
        assert spec
        values = np.full((1, spec.height, spec.width, 1), 90, np.uint8)
        content = "other" if ref.path.name == self._changed else "c" * 64
        return AnalysisResult(input_values=values, facts=ImageFacts(content_sha256=content))


def image(name: str) -> ScreenedOutcome:
    facts = replace(read_facts(), rows=ROWS, columns=COLUMNS)
    return replace(screened(image_ref(name)), facts=facts, lungs=lungs())


def maps(tmp_path: Path, readers: RereadingReaders, *outcomes: Outcome) -> tuple[int, int]:
    database = tmp_path / "results.sqlite"
    run_id = keep(database, outcomes)
    heard: list[int] = []
    found = write_heat_maps(
        database, PackOfRun(run_id), tmp_path / "maps", manifest=tiny_manifest(), workers=readers, progress=heard.append
    )
    assert heard[-1] == len(outcomes)
    return found


def names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "maps").rglob("*.*"))


def test_every_image_with_something_to_show_gets_its_maps(tmp_path: Path) -> None:
    outcomes = [image(f"{number}.dcm") for number in range(5)]
    assert maps(tmp_path, RereadingReaders(), *outcomes, refused(), failed()) == (5, 0)
    suffixes = ("lungs.png", "map.json", "map.npy", "overlay.png")
    assert names(tmp_path) == sorted(f"{number}.dcm.{suffix}" for number in range(5) for suffix in suffixes)
    facts = json.loads((tmp_path / "maps" / "0.dcm.map.json").read_text())
    assert facts["lungs_pack"] == "lungs-1.0.0 0123456789ab"


def test_an_image_refused_for_its_lungs_still_gets_their_map(tmp_path: Path) -> None:
    turned = lungs(rotated_90=0.9)
    outcome = replace(refused(), facts=image("a").facts, reason=turned.refusal, lungs=turned)
    assert maps(tmp_path, RereadingReaders(), outcome) == (1, 0)
    assert names(tmp_path) == ["side.dcm.lungs.png"]


def test_a_file_that_changed_or_cannot_be_read_has_no_overlay_and_is_counted(tmp_path: Path) -> None:
    assert maps(tmp_path, RereadingReaders(changed="b.dcm"), image("a.dcm"), image("b.dcm")) == (2, 1)
    assert "b.dcm.overlay.png" not in names(tmp_path) and "b.dcm.map.npy" in names(tmp_path)
    broken = RereadingReaders(problem=WorkerProblem(reason("readers_not_started", detail="no memory")))
    assert maps(tmp_path / "more", broken, image("a.dcm")) == (1, 1)


def test_a_foreign_file_in_the_way_ends_the_writing_of_maps(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "a.dcm.lungs.png").write_text("precious")
    with pytest.raises(UsageProblem):
        maps(tmp_path, RereadingReaders(), image("a.dcm"))
    assert (tmp_path / "maps" / "a.dcm.lungs.png").read_text() == "precious"


def test_closed_readers_end_the_writing_of_maps(tmp_path: Path) -> None:
    with pytest.raises(PoolClosed):
        maps(tmp_path, RereadingReaders(problem=PoolClosed()), image("a.dcm"))
