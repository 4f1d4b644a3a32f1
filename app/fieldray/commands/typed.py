"""Whether a person typed the command line, or the names of files in a folder make up a part of it.

A shell replaces `*` by the names that are there, and whoever fills a folder or a drive chooses them. A file called
`--trust=...` would trust a key, files called `packs`, `trust` and a fingerprint would do so for `fieldray *`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from fieldray.errors import UsageProblem
from fieldray.offline import COMMANDS
from fieldray.reasons import reason

_END_OF_OPTIONS: Final = "--"


def require_typed(arguments: Sequence[str]) -> None:
    """Refuse an option that is also the name of a file here, and a command that is nothing but names of files here.

    What has a `/` in it is a path and cannot come from a bare `*`. Raises UsageProblem.
    """
    for argument in arguments:
        if len(argument) > 1 and argument.startswith("-") and os.path.lexists(argument):
            raise UsageProblem(reason("option_is_file", name=argument))
        if argument == _END_OF_OPTIONS:
            break
    if len(arguments) > 1 and arguments[0] in COMMANDS and all(map(_is_name_here, arguments)):
        raise UsageProblem(reason("command_is_file", name=arguments[0]))


def _is_name_here(argument: str) -> bool:
    return os.path.basename(argument) == argument and os.path.lexists(argument)  # noqa: PTH119 - as the shell sees it
