"""The quick cases of the attack run and of the power-cut run, in the ordinary suite."""

from __future__ import annotations

import sys

import pytest

from harness.case import Case, NotPossible
from harness.table import ATTACKS, POWERCUTS
from harness.world import World

# In the program that the cases start, too, warnings are errors.
PROGRAM = (sys.executable, "-W", "error", "-P", "-m", "fieldray")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the limits of Linux")
@pytest.mark.parametrize("case", [case for case in (*ATTACKS, *POWERCUTS) if case.is_quick], ids=lambda case: case.name)
def test_quick_attack_and_power_cut_cases_succeed(case: Case) -> None:
    with World(PROGRAM, limit_s=case.limit_s) as world:
        try:
            case.attempt(world)
        except NotPossible as why:
            pytest.skip(str(why))
