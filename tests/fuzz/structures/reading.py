"""Reading of inputs one after another in this process, and counting of outcomes, for `child.py` and `guided.py`."""

from __future__ import annotations

import base64
import json
import logging
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from fuzz.structures.target import Target, Unforeseen

LONGEST_S: Final = 2.0
_WARM: Final = 20
_CODE: Final = "/app/fieldray/"


class TookTooLong(BaseException):
    """An input took more CPU time than allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault that an input revealed. Equal faults have an equal `kind`; `data` is the reduced input."""

    target: str
    number: int
    kind: str
    detail: str = ""
    data: bytes = b""


@dataclass(slots=True)
class Tally:
    """The outcomes of some inputs. `longest_s` is the longest time for one input, with the number of that input."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    longest_s: tuple[float, int] = (0.0, -1)
    peak_mb: float = 0.0

    def add(self, other: Self) -> None:
        """Add the counts of another tally."""
        self.inputs += other.inputs
        self.outcomes += other.outcomes
        self.seconds += other.seconds
        self.longest_s = max(self.longest_s, other.longest_s)
        self.peak_mb = max(self.peak_mb, other.peak_mb)


class _Errors(logging.Handler):
    """Records log messages with an exception: these are errors that the program caught as unexpected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.seen.append(f"{record.getMessage()[:80]}: {kind_of(record.exc_info[1])}")


class Reader:
    """Reads inputs of a target. A process may have one reader at a time, because it uses a timer signal and the log."""

    def __init__(self, target: Target, folder: Path, *, longest_s: float = LONGEST_S) -> None:
        self.target = target
        self._longest_s = longest_s
        self._folder = folder
        self._errors = _Errors()

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._errors)
        self._before = signal.signal(signal.SIGPROF, _expire)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGPROF, self._before)
        logging.getLogger().removeHandler(self._errors)

    def warm(self) -> None:
        """Read a few inputs first, so that imports and caches do not count as growth of memory."""
        for number in range(_WARM):
            self.problem(self.made(number, seed=0))

    def made(self, number: int, *, seed: int) -> bytes:
        """Return the input with this number."""
        return self.target.make(random.Random(f"{seed} {self.target.name} {number}"))

    def read(self, data: bytes) -> str:
        """Return the outcome of an input. Raises every unexpected error, and Unforeseen if the program logged one."""
        self._errors.seen.clear()
        signal.setitimer(signal.ITIMER_PROF, self._longest_s)
        try:
            came = self.target.outcome(data, self._folder)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if self._errors.seen:
            raise Unforeseen(self._errors.seen[0])
        return came

    def problem(self, data: bytes) -> str:
        """Return the kind of the finding that this input reveals, "" if none."""
        try:
            self.read(data)
        except (Exception, TookTooLong) as error:
            return kind_of(error)
        return ""


def kind_of(error: BaseException) -> str:
    """Return the kind of a fault: the type of the error, and the innermost function of the program in its traceback."""
    if isinstance(error, Unforeseen):
        return f"Unforeseen: {error}"[:200]
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if _CODE in frame.filename]
    place = f"{places[-1].filename.partition(_CODE)[2]} {places[-1].name}" if places else "outside of the program"
    return f"{type(error).__name__} in {place}"


class Watch:
    """Lets a reader read inputs, counts the outcomes, and yields a finding once for each kind."""

    def __init__(self, reader: Reader) -> None:
        self.tally = Tally()
        self._reader = reader
        self._known: set[str] = set()
        self._base_mb = peak_mb()
        self._since_s = time.perf_counter()

    def read(self, data: bytes, *, number: int) -> Iterator[Finding]:
        """Read an input. Yields findings of a new kind."""
        cpu_s = time.thread_time()
        try:
            self.tally.outcomes[self._reader.read(data)] += 1
            self.tally.longest_s = max(self.tally.longest_s, (time.thread_time() - cpu_s, number))
        except (Exception, TookTooLong) as error:
            self.tally.outcomes["FOUND"] += 1
            if (kind := kind_of(error)) not in self._known:
                detail = "".join(traceback.format_exception(error)[-4:])[-600:]
                is_quick = not isinstance(error, TookTooLong | MemoryError)
                yield self._found(number, kind, detail, self._smallest(data, kind) if is_quick else data)
        self.tally.inputs += 1
        self.tally.peak_mb = peak_mb() - self._base_mb
        if self.tally.peak_mb > self._reader.target.most_mb and "memory" not in self._known:
            yield self._found(number, "memory", f"{self.tally.peak_mb:.0f} MB above the start", data)

    def take_tally(self) -> Tally:
        """Return the counts since the last call."""
        now_s = time.perf_counter()
        tally, self.tally = self.tally, Tally(peak_mb=self.tally.peak_mb)
        tally.seconds, self._since_s = now_s - self._since_s, now_s
        return tally

    def _found(self, number: int, kind: str, detail: str, data: bytes) -> Finding:
        self._known.add(kind)
        return Finding(target=self._reader.target.name, number=number, kind=kind, detail=detail, data=data)

    def _smallest(self, data: bytes, kind: str) -> bytes:
        return smallest(data, lambda other: self._reader.problem(other) == kind)


def read_all(
    reader: Reader, numbers: range, *, seed: int, begin: Callable[[int], None] = lambda _number: None, part: int = 500
) -> Iterator[Tally | Finding]:
    """Read the inputs with these numbers. Yields a tally after every `part` inputs, and each kind of finding once.

    begin   receives the number of every input before it is made
    """
    watch = Watch(reader)
    for number in numbers:
        begin(number)
        yield from watch.read(reader.made(number, seed=seed), number=number)
        if watch.tally.inputs >= part:
            yield watch.take_tally()
    yield watch.take_tally()


def smallest(data: bytes, is_same: Callable[[bytes], bool], *, most_s: float = 4.0) -> bytes:
    """Reduce an input while `is_same` stays true: remove pieces, then zero bytes, for `most_s` of CPU time."""
    until_s = time.thread_time() + most_s
    size = len(data)
    while size and time.thread_time() < until_s:
        at, has_shrunk = 0, False
        while at < len(data) and time.thread_time() < until_s:
            candidate = data[:at] + data[at + size :]
            if is_same(candidate):
                data, has_shrunk = candidate, True
            else:
                at += size
        size = size // 2 if not has_shrunk or size > len(data) else size
    for at in range(len(data)):
        if time.thread_time() > until_s:
            break
        if data[at]:
            candidate = data[:at] + b"\0" + data[at + 1 :]
            data = candidate if is_same(candidate) else data
    return data


def send(news: Tally | Finding) -> None:
    """Write a line of JSON to the parent process."""
    facts = {name: getattr(news, name) for name in news.__dataclass_fields__}
    if isinstance(news, Finding):
        facts["data"] = base64.b64encode(news.data).decode("ascii")
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def limit_memory(more_mb: float) -> None:
    """Limit the further growth of this process's address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(more_mb * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def peak_mb() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _expire(_number: int, _frame: FrameType | None) -> Any:
    raise TookTooLong
