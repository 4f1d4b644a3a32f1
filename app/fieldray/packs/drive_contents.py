"""What a mounted file system holds for us."""

from __future__ import annotations

from pathlib import Path

from fieldray.domain.events import Drive
from fieldray.errors import PackProblem
from fieldray.packs.listing import pack_folders
from fieldray.packs.reading import guarded


def look_at(mount_point: Path, *, name: str) -> Drive | None:
    """The drive mounted there with its pack folders; None when it has gone, no folders when it cannot be read."""
    try:
        folders = tuple(str(folder) for folder in guarded(pack_folders)(mount_point))
    except PackProblem as problem:
        if problem.reason.code == "drive_gone":
            return None
        folders = ()
    return Drive(mount_point=str(mount_point), name=name, pack_folders=folders)
