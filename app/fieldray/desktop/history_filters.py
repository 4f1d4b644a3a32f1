"""What can be chosen from in the filters of the work list and of the history."""

from __future__ import annotations

import datetime
from typing import Final

from fieldray.backends import BACKENDS
from fieldray.domain.history import VerdictFilter
from fieldray.translation import Translator

ANY_TIME: Final = -1


def verdict_choices(translator: Translator) -> tuple[tuple[str, VerdictFilter], ...]:
    """By the verdict of a person."""
    return (
        (translator.text("Any verdict"), "any"),
        (translator.text("With a verdict"), "given"),
        (translator.text("Without a verdict"), "none"),
        (translator.text("Disagreed"), "disagreed"),
    )


def device_choices(translator: Translator) -> tuple[tuple[str, str], ...]:
    """By what ran the model."""
    return (
        (translator.text("Any device"), ""),
        *((translator.text(entry.title), entry.name) for entry in reversed(tuple(BACKENDS))),
    )


def time_choices(translator: Translator) -> tuple[tuple[str, int], ...]:
    """By the day on which a run began: how many days before today at most."""
    return (
        (translator.text("Any date"), ANY_TIME),
        (translator.text("Today"), 0),
        (translator.text("Last 7 days"), 6),
        (translator.text("Last 30 days"), 29),
        (translator.text("Last 12 months"), 364),
    )


def first_day(days: int, *, today: datetime.date) -> datetime.date | None:
    """The first day of a choice of `time_choices`, None for any."""
    return None if days == ANY_TIME else today - datetime.timedelta(days=days)
