"""A case: one thing that is tried against the program, and the group it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attack.world import World

Attempt = Callable[["World"], None]


class NotPossible(Exception):
    """The case cannot be tried on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attempt.

    name      `group/what`, unique
    tried     what is done, in one line for a person
    attempt   does it in a world of its own; raises AssertionError when something did not hold, NotPossible to skip
    limit_s   after so many seconds every process of the case is killed, and the case has failed
    is_quick  also runs in the ordinary suite
    """

    name: str
    tried: str
    attempt: Attempt
    limit_s: float = 60.0
    is_quick: bool = False


class Group:
    """The cases of one file. `case` adds the function below it."""

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
            self.add(name, tried, attempt, limit_s=limit_s, is_quick=is_quick)
            return attempt

        return add

    def add(self, name: str, tried: str, attempt: Attempt, *, limit_s: float = 60.0, is_quick: bool = False) -> None:
        """Add a case made in a loop."""
        self._cases.append(
            Case(name=f"{self.name}/{name}", tried=tried, attempt=attempt, limit_s=limit_s, is_quick=is_quick)
        )
