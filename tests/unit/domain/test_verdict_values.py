"""The values of a reader's verdict: the one table used by window, reports, filters and audits."""

from __future__ import annotations

from typing import get_args

import pytest

from fieldray.desktop.keys import KEY_BINDINGS
from fieldray.domain.history import verdict_passes
from fieldray.domain.run import VERDICT_KINDS, Verdict, VerdictChoice
from fieldray.formatting import verdict_names
from fieldray.translation import Translator


def test_every_verdict_value_has_its_own_words_and_key() -> None:
    assert tuple(VERDICT_KINDS) == get_args(VerdictChoice)
    translator = Translator("en")
    for texts in (verdict_names(translator).values(), [one.column_title(translator) for one in VERDICT_KINDS.values()]):
        assert len(set(texts)) == len(VERDICT_KINDS)
    keys = {key.command: key.shortcuts for key in KEY_BINDINGS}
    assert all(keys[choice] == (value.shortcut,) for choice, value in VERDICT_KINDS.items())


def test_only_a_contradicting_verdict_is_a_disagreement() -> None:
    found = {
        choice: (value.confirms_result, verdict_passes(choice, "disagreed")) for choice, value in VERDICT_KINDS.items()
    }
    assert found == {"agree": (True, False), "disagree": (False, True), "unsure": (None, False)}


def test_an_unknown_value_is_an_error_and_no_disagreement() -> None:
    with pytest.raises(ValueError, match="one of agree, disagree, unsure, not maybe"):
        Verdict(choice="maybe")  # type: ignore[arg-type]
