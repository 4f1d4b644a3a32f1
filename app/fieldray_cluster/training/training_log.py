"""The log of a training with the fields of a published one, and what reads it again.

The fields and their wording are those of figure 10 of S. Minukhin (2020), a log of J. Akeret's `tf_unet`: every so
many iterations the minibatch's loss, accuracy and error, every epoch the average loss and the learning rate, and the
error and loss on the verification images. An error is 100 (1 - accuracy), in per cent of the cells. (The published
log's first row has 6.9 % beside an accuracy of 0.9389, which is 6.1 %.)
"""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

_NUMBER: Final = r"(-?[0-9.]+(?:e-?[0-9]+)?|nan)"
_TIME: Final = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})"
_ITERATION: Final = re.compile(
    rf"{_TIME} Iter (\d+), Minibatch Loss= {_NUMBER}, Training Accuracy= {_NUMBER}, Minibatch error= {_NUMBER}%"
)
_EPOCH: Final = re.compile(rf"{_TIME} Epoch (\d+), Average loss: {_NUMBER}, learning rate: {_NUMBER}")
_VERIFICATION: Final = re.compile(rf"{_TIME} Verification error= {_NUMBER}%, loss= {_NUMBER}")
_FORMAT: Final = "%Y-%m-%d %H:%M:%S,%f"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """A line of a log; what it does not say is None. Losses are parts of one, errors per cent; epochs count from 0."""

    time: str
    kind: str
    epoch: int | None = None
    iteration: int | None = None
    loss: float | None = None
    accuracy: float | None = None
    error: float | None = None
    learning_rate: float | None = None


def log_lines(
    notes: Iterable[Mapping[str, Any]], row: Mapping[str, Any], *, first_iteration: int, rate: float
) -> Iterator[str]:
    """The lines of one epoch.

    Parameters
    ----------
    notes
        Of its gradients, see `session.Epoch`; those with an accuracy have a line.
    row
        Of the training's history: epoch from 1, loss, dice, cells_wrong.
    first_iteration
        The number of the epoch's first gradient, over all epochs.
    rate
        The learning rate at the epoch's end.
    """
    at_s = 0.0
    for place, note in enumerate(notes):
        at_s = float(note["at"])
        if "accuracy" in note:
            error = 100 * (1 - note["accuracy"])
            yield (
                f"{_time(at_s)} Iter {first_iteration + place}, Minibatch Loss= {note['loss']:.4f}, "
                f"Training Accuracy= {note['accuracy']:.4f}, Minibatch error= {error:.1f}%"
            )
    yield f"{_time(at_s)} Epoch {row['epoch'] - 1}, Average loss: {row['loss']:.4f}, learning rate: {rate:.4f}"
    if "dice" in row:
        yield f"{_time(at_s)} Verification error= {100 * row['cells_wrong']:.1f}%, loss= {1 - row['dice']:.4f}"


def parsed(text: str) -> list[LogRow]:
    """The rows of a log; lines of another kind are left out, as the published log has them too."""
    return [row for line in text.splitlines() if (row := _row(line.strip())) is not None]


def as_csv(rows: Iterable[LogRow]) -> str:
    """The rows as CSV, with a head."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [one.name for one in fields(LogRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return buffer.getvalue()


def _row(line: str) -> LogRow | None:
    if found := _ITERATION.fullmatch(line):
        loss, accuracy, error = map(float, found.groups()[2:])
        return LogRow(
            time=found[1], kind="iteration", iteration=int(found[2]), loss=loss, accuracy=accuracy, error=error
        )
    if found := _EPOCH.fullmatch(line):
        return LogRow(
            time=found[1], kind="epoch", epoch=int(found[2]), loss=float(found[3]), learning_rate=float(found[4])
        )
    if found := _VERIFICATION.fullmatch(line):
        return LogRow(time=found[1], kind="verification", error=float(found[2]), loss=float(found[3]))
    return None


def _time(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime(_FORMAT)[:-3]
