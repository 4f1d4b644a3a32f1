"""The message after runs were deleted."""

from __future__ import annotations

import pytest

from fieldray.domain.history import DeletionPlan, DeletionResult
from fieldray.pipeline.history import deletion_sentences


@pytest.mark.parametrize(
    ("freed_bytes", "said"),
    [
        (2_340_000, ["1 run was deleted.", "The results database is now 2.3 MB smaller."]),
        (49_000, ["1 run was deleted."]),
        (-8_192, ["1 run was deleted."]),
    ],
)
def test_the_message_states_the_freed_space_if_any(freed_bytes: int, said: list[str]) -> None:
    plan = DeletionPlan(run_ids=(1,), result_count=3, verdict_count=0, kept_verdict_count=0)
    done = DeletionResult(plan=plan, freed_bytes=freed_bytes, is_deleted_data_overwritten=True)
    assert [one.text for one in deletion_sentences(done)] == said
