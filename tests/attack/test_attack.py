"""The quick cases of the attack run, in the ordinary suite."""

from __future__ import annotations

import sys

import pytest

from attack.case import Case, NotPossible
from attack.runner import program_command
from attack.table import CASES
from attack.world import World

QUICK = [case for case in CASES if case.is_quick]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the limits of Linux")
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_it_holds(case: Case) -> None:
    with World(program_command(), limit_s=case.limit_s) as world:
        try:
            case.attempt(world)
        except NotPossible as why:
            pytest.skip(str(why))
