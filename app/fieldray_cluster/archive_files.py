"""The files of images on their way to a worker that does not see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fieldray.domain.finding import Failed, Outcome
from fieldray.domain.study import ImageRef
from fieldray.imaging.source import file_problem, open_file
from fieldray.persistence import storage_problem
from fieldray.reasons import Reason, reason

_MOST_SENT_BYTES: Final = 2**27


def contents_of(path: Path) -> bytes | Reason:
    """What a file contains, or why it cannot be read: a worker never looks for a file that was to be sent."""
    try:
        with open_file(path) as stream:
            return stream.read()
    except OSError as error:
        return file_problem(error).reason


def contents_at_once(paths: Sequence[Path]) -> tuple[int, dict[str, bytes | Reason]]:
    """The files of the first images, as many as may be sent at once: how many images, and the contents by path."""
    files: dict[str, bytes | Reason] = {}
    total = 0
    for count, path in enumerate(paths):
        if str(path) not in files:
            data = contents_of(path)
            size = len(data) if isinstance(data, bytes) else 0
            if count and total + size > _MOST_SENT_BYTES:
                return count, files
            files[str(path)], total = data, total + size
    return len(paths), files


class SentFiles:
    """Files that came with an order, written to a folder of this worker.

    Raises StorageProblem.
    """

    def __init__(self, files: Mapping[str, bytes | Reason], folder: Path) -> None:
        self._files = files
        self._places: dict[Path, Path] = {}
        for number, (name, data) in enumerate(files.items()):
            if isinstance(data, bytes):
                self._places[Path(name)] = place = folder / f"{number}"
                try:
                    place.write_bytes(data)
                except OSError as error:
                    raise storage_problem(error, place) from error

    def local(self, refs: Sequence[ImageRef]) -> list[ImageRef]:
        """The images whose file came along, at the place where it is here."""
        return [replace(ref, path=self._places[ref.path]) for ref in refs if ref.path in self._places]

    def outcomes(self, refs: Sequence[ImageRef], found: Sequence[Outcome]) -> list[Outcome]:
        """An outcome for each image under its own name; `found` are those of the `local` ones, in their order."""
        rest = iter(found)
        return [
            replace(next(rest), ref=ref)
            if ref.path in self._places
            else Failed(ref=ref, stage="decode", reason=self._why_not(ref))
            for ref in refs
        ]

    def _why_not(self, ref: ImageRef) -> Reason:
        why = self._files.get(str(ref.path))
        return why if isinstance(why, Reason) else reason("missing")
