"""A case: one attempt to make the program misbehave, and the group of cases in one file."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.world import World

Attempt = Callable[["World"], None]


class NotPossible(Exception):
    """The case cannot be tried on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attempt.

    name      `group/what`, unique
    tried     what the case does to the program, in one line for a person
    attempt   performs the case in its own world; raises AssertionError on failure, NotPossible to skip
    limit_s   after this many seconds every process of the case is killed, and the case has failed
    is_quick  whether the case also runs in the ordinary test suite
    """

    name: str
    tried: str
    attempt: Attempt
    limit_s: float = 60.0
    is_quick: bool = False


class Group:
    """The cases of one file. The decorator `case` adds one case, the decorator `table` one case for each row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._cases: list[Case] = []

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def case(
        self, name: str, tried: str, *, limit_s: float = 60.0, is_quick: bool = False
    ) -> Callable[[Attempt], Attempt]:
        """Add the decorated function as a case."""

        def add(attempt: Attempt) -> Attempt:
            made = Case(name=f"{self.name}/{name}", tried=tried, attempt=attempt, limit_s=limit_s, is_quick=is_quick)
            self._cases.append(made)
            return attempt

        return add

    def table(
        self, rows: Mapping[str, tuple[Any, ...]], *, limit_s: float = 60.0, quick: Container[str] = ()
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a case for each row (`tried`, arguments...). The decorated function gets the world and the arguments."""

        def add(attempt: Callable[..., None]) -> Callable[..., None]:
            for name, (tried, *given) in rows.items():
                of_row = partial(lambda given, world: attempt(world, *given), given)
                self.case(name, tried, limit_s=limit_s, is_quick=name in quick)(of_row)
            return attempt

        return add
