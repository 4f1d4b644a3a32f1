"""Several at a time, in order: what is drawn in C leaves Python free for the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

_THREADS: Final = 2
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def side_by_side(make: Callable[[_Given], _Made], given: Iterable[_Given]) -> Iterator[_Made]:
    """What `make` makes of each, in their order; while one is taken, the next ones are made in threads.

    Raises what `make` raises.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="report") as threads:
        waiting: deque[Future[_Made]] = deque()
        for one in given:
            waiting.append(threads.submit(make, one))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
