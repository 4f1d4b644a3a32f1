"""The summary line of class counts at the end of a run."""

from __future__ import annotations

from fieldray.commands.run_report import PackSummary
from fieldray.domain.finding import ResultCount
from fieldray.packs.verified import LEGACY_MANIFEST as LEGACY
from fieldray.reasons import reason
from tiny_models import tiny_model


def test_the_two_classes_of_a_bare_model_count_all_images() -> None:
    """As in the dissertation's demonstration: 11 and 5, of which 2 are to be read first."""
    run = PackSummary(tiny_model(manifest=LEGACY), "legacy")
    counted = [("abnormal", (), 11), ("normal", (), 3), ("normal", ("left_lung_unseen", "lungs_low"), 2)]
    run.add_counts(
        ResultCount(category=name, reason_and_note_codes=codes, result_count=number) for name, codes, number in counted
    )  # type: ignore[arg-type]
    classes, unsigned, beside = run.summary_lines()
    assert classes.startswith("abnormal 11  uncertain 0  normal 5  ") and "read first" not in classes
    assert "unsigned" in unsigned.lower() and beside.startswith("Read 2 images first")
    run.last_notes = [reason("read_first_images", count=2)]  # the summary of the run has the same counts
    assert list(run.summary_lines()) == [classes, unsigned, beside]
