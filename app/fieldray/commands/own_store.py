"""The file of results of this user, as commands open it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from fieldray.errors import StorageProblem
from fieldray.reasons import reason

if TYPE_CHECKING:
    from fieldray.commands.console import Console


def own_store(console: Console) -> Path:
    """Where the results are; those of an older version are brought up to date first.

    Where that cannot be done, whoever reads them says why.
    """
    from fieldray.paths import user_data
    from fieldray.pipeline.session import DATABASE_NAME
    from fieldray.store.schema import is_older

    path = user_data() / DATABASE_NAME
    if is_older(path):
        from fieldray.store.upgrading import bring_up_to_date

        with contextlib.suppress(StorageProblem):
            bring_up_to_date(path, tell=lambda share: show_share(console, "store_upgrading", share))
        console.clear_bar()
    return path


def show_share(console: Console, code: str, share: float) -> None:
    """Say in one line how much of something is done."""
    console.bar(reason(code, percent=round(100 * share)).text)
