"""Files of a run folder: written beside and renamed, so that a kill leaves the old or the new one, never half."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from fieldray.errors import StorageProblem
from fieldray.reasons import reason

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`. Raises StorageProblem (disk full, not writable)."""
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except OSError as problem:
        beside.unlink(missing_ok=True)
        if problem.errno in _FULL:
            raise StorageProblem(reason("disk_full", path=path)) from problem
        raise StorageProblem(reason("not_writable", path=path, detail=problem.strerror or problem)) from problem
