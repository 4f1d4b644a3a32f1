"""Who takes part, and one run of it: each lives in a process of its own, so that nothing it imports reaches others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.process_tree import watched
from fieldray.errors import FieldrayError
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.wire import Message

_TIMEOUT_S: Final = 900.0


class ContestantFailed(Exception):
    """It could not be opened, or its process ended; says why."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Contestant:
    """`service` answers what `script` describes.

    body      what it needs to open; `model` the network's file, for those that take one
    unavailable_reason   why it cannot take part here; empty if it can
    is_batch  it takes a folder and works on many files at once, as the program does
    """

    name: str
    service: str
    body: Mapping[str, Any] = field(default_factory=dict)
    model: bytes | None = None
    unavailable_reason: str = ""
    is_batch: bool = False

    @contextlib.contextmanager
    def opened(self, first: Sequence[Path]) -> Iterator[Opened]:
        """Its process, ready, with `first` done. Raises ContestantFailed."""
        child = Child(self.service)
        try:
            child.start()
            arrays = {"model": np.frombuffer(self.model, np.uint8)} if self.model is not None else {}
            body = {**self.body, "ask": "open", "first": [str(path) for path in first]}
            opened = Opened(contender=self, child=child)
            opened.detail = str(opened.ask(Message(body, arrays)).body["detail"])
            yield opened
        except OSError as error:
            raise ContestantFailed(str(error)) from error
        finally:
            child.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: `cpu_s` is None where it is not known, `detail` what the contender says of it."""

    seconds: float
    cpu_s: float | None
    files: int
    failed: int = 0
    detail: str = ""

    @property
    def images_per_s(self) -> float:
        """Of those it was given."""
        return self.files / self.seconds


@dataclass(eq=False, slots=True, kw_only=True)
class Opened:
    """A contender whose process runs."""

    contender: Contestant
    child: Child
    detail: str = ""

    def run(self, paths: Sequence[Path], *, folder: Path) -> Run:
        """Do these files, or all of the folder if it is a batch. Raises ContestantFailed."""
        names = [] if self.contender.is_batch else [str(path) for path in paths]
        answer = self.ask(Message({"ask": "read", "paths": names, "folder": str(folder)})).body
        return Run(
            seconds=answer["seconds"],
            cpu_s=answer["cpu_s"],
            files=answer["files"],
            failed=answer["failed"],
            detail=answer.get("detail", ""),
        )

    def peak_mb(self, paths: Sequence[Path], *, folder: Path) -> float:
        """Most memory of all its processes while it does these files, megabytes."""
        with watched(self.child.pid or 0) as watch:
            self.run(paths, folder=folder)
        return watch.pss_mb

    def ask(self, message: Message) -> Message:
        """Raises ContestantFailed."""
        try:
            return self.child.call(message, timeout_s=_TIMEOUT_S)
        except ChildDied as error:
            last = error.last_stderr.splitlines()[-1:] or [str(error)]
            raise ContestantFailed(last[0]) from error
        except (ChildTimeout, FieldrayError) as error:
            raise ContestantFailed(str(error)) from error
