"""The bar of the toolchain: rate and time left of each kind of work, begun again with each."""

from __future__ import annotations

import io

from fakes import Terminal
from fieldray.commands.console import Console
from fieldray_adapt.adapt_command import Bar


def test_each_kind_of_work_has_its_own_rate_and_end() -> None:
    terminal, now = Terminal(), [0.0]
    bar = Bar(Console(io.StringIO(), terminal), clock=lambda: now[0])

    def shown(what: str, done: int, total: int, *, at: float) -> str:
        now[0] = at
        bar(what, done, total)
        return terminal.getvalue().rpartition("\r")[2].rstrip()

    assert shown("images", 1, 9, at=100).endswith("1/9  0.0/s")
    # four more in two seconds, so the four that are left take two more
    assert shown("images", 5, 9, at=102).endswith("5/9  2.0/s  0:02 left")
    assert shown("epochs", 1, 3, at=110).startswith("epochs [#######-------------] 1/3")
    # 20 s an epoch, one left
    assert shown("epochs", 2, 3, at=130).endswith("2/3  0.1/s  0:20 left")
    # the next iteration counts its epochs from one again, and so does the clock
    assert shown("epochs", 1, 3, at=200).endswith("1/3  0.0/s")
    assert shown("epochs", 2, 3, at=201).endswith("2/3  1.0/s  0:01 left")
