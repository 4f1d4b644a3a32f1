"""Whether a person typed the command line, or the names of files in a folder make up a part of it.

A shell replaces `*` by the names that are there, and whoever fills a folder or a drive chooses them. A file called
`--trust=...` would trust a key, files called `packs`, `trust` and a fingerprint would do so for `fieldray *`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from fieldray.command_names import is_command
from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason

# Of a scheduler, tcp:// and tls:// are addresses that a command is given.
_ADDRESS: Final = re.compile(
    r"(?:--[a-z-]+=)?((?:file|https?|ftps?|sftp|smb|nfs|afp|davs?)://.*)", re.IGNORECASE | re.DOTALL
)
_END_OF_OPTIONS: Final = "--"


def require_typed(arguments: Sequence[str]) -> None:
    """Refuse an option that is also the name of a file here, and a command that is nothing but names of files here.

    What has a `/` in it is a path and cannot come from a bare `*`. An address is no path. Raises UsageProblem.
    """
    if found := address_in(arguments):
        raise UsageProblem(found)
    for argument in arguments:
        if len(argument) > 1 and argument.startswith("-") and os.path.lexists(argument):
            raise UsageProblem(reason("option_is_file", name=argument))
        if argument == _END_OF_OPTIONS:
            break
    if len(arguments) > 1 and is_command(arguments[0]) and all(map(_is_name_here, arguments)):
        raise UsageProblem(reason("command_is_file", name=arguments[0]))


def address_in(arguments: Sequence[str]) -> Reason | None:
    """Why nothing can be done with an address (`file://host/share`) among paths, as a browser or desktop gives them."""
    found = next(filter(None, map(_ADDRESS.fullmatch, arguments)), None)
    return reason("path_is_address", address=found[1]) if found else None


def _is_name_here(argument: str) -> bool:
    return os.path.basename(argument) == argument and os.path.lexists(argument)  # noqa: PTH119 - as the shell sees it
