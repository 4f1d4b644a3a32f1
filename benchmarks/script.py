"""What every contender answers to, and the plain loop of those that do one file after another.

open  body: what it needs (see each contender), first: files to get ready with; array model, where it takes one
      -> body: detail (what it is, with versions)
read  body: paths (or folder, for the program itself)
      -> body: seconds, cpu_s (None where not known), files, failed, detail
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from fieldray.processes.wire import Message

log = logging.getLogger(__name__)


class Script(Protocol):
    """A program that does one file after another."""

    @property
    def detail(self) -> str:
        """What it is made of."""
        ...

    def do(self, path: str) -> None:
        """All that is to be done for one file. May raise anything."""
        ...


class Loop:
    """The child's side of a script. `make` gets the opening message."""

    def __init__(self, make: Callable[[Message], Script]) -> None:
        self._make = make
        self._script: Script | None = None

    def handle(self, message: Message) -> Message:
        """Answer `open` and `read`; a file that the script cannot do is counted in `failed`."""
        if message.body["ask"] == "open":
            self._script = self._make(message)
            self._do(message.body["first"])
            return Message({"detail": self._script.detail})
        # a script starts no other process, so its own time is all there is, and finer than the system's count
        before_s, began_s = time.process_time(), time.perf_counter()
        failed = self._do(message.body["paths"])
        seconds, spent_s = time.perf_counter() - began_s, time.process_time() - before_s
        files = len(message.body["paths"])
        return Message({"seconds": seconds, "cpu_s": spent_s, "files": files, "failed": failed})

    def _do(self, paths: Sequence[str]) -> int:
        """How many failed."""
        assert self._script is not None
        failed = 0
        for path in paths:
            try:
                self._script.do(path)
            except Exception as error:
                log.warning("%s: %s", path, error)
                failed += 1
        return failed
