"""Watching folders for new files: which files are new, which may still be growing, and which are done.

A folder is listed repeatedly, because a network share reports no changes. A file is screened as soon as it has been
unchanged for some seconds. If reading the file fails, the file may be incomplete. Then the file is screened once more,
after the file has been unchanged for longer. The second result is final. Files that were done before the program
started are known from the results database.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.domain.finding import FailedOutcome, Outcome
from fieldray.domain.image import ImageRef
from fieldray.errors import UsageProblem
from fieldray.imaging.discover import HasResultsOfFile
from fieldray.imaging.source import is_system_name
from fieldray.reasons import Reason, reason

_QUIET_S: Final = 3.0
_LONG_S: Final = 60.0
_PAUSES_S: Final = 2.0, 60.0  # shortest and longest pause between two listings
_EFFORT: Final = 10  # a pause lasts this many times as long as the listing before it
_FOLDER: Final = -1  # the state of a link to a folder, which is not followed

DiscoverImages = Callable[..., Iterator[ImageRef]]  # see `imaging.discover`


@dataclass(slots=True)
class _WatchedFile:
    """A file in a watched folder that has no final result yet.

    listed_state       state of the file as its folder lists it; on Windows this state may be out of date
    state              state of the file as the file itself reports it
    since_s            time at which this state was first seen
    patience_s         seconds that the file must be unchanged before it is screened
    open_images        number of the file's images without an outcome, plus 1 while the file is searched for images
    is_screened_again  whether an outcome was not final, so that the file is screened again
    """

    listed_state: int
    state: int
    since_s: float
    patience_s: float = _QUIET_S
    open_images: int = 0
    is_screened_again: bool = False


class FolderWatch:
    """The state of the files in watched folders. One thread uses `new_images`, another thread all other methods.

    The constructor raises UsageProblem (watch_no_folder) for a path that is no folder.
    """

    def __init__(self, folders: Sequence[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        for path in folders:
            if not path.is_dir():
                raise UsageProblem(reason("watch_no_folder", path=path))
        self._folders, self._clock = folders, clock
        self._lock = threading.Lock()
        self._done, self._devices = dict[str, int](), dict[str, int]()
        self._waiting, self._tried = dict[str, _WatchedFile](), dict[str, _WatchedFile]()
        self._missing = self._reported_missing = ""
        self._kept = 0
        self._believed = set[str]()  # keys of images whose failure was final

    @property
    def waiting_file_count(self) -> int:
        """The number of files in the watched folders that have no final result yet."""
        with self._lock:
            return len(self._waiting.keys() | self._tried.keys())

    def folder_access_message(self) -> Reason | None:
        """Return a message if a watched folder can no longer be read, or can be read again.

        Returns None if nothing changed since the last call.
        """
        missing, before, self._reported_missing = self._missing, self._reported_missing, self._missing
        if missing == before:
            return None
        return reason("watch_waits", path=missing) if missing else reason("watch_goes_on", path=before)

    def closing_message(self) -> Reason:
        """Return the message at the end of watching: the numbers of results and of files without a final result."""
        return reason("watch_stopped", results=self._kept, waiting=self.waiting_file_count)

    def new_images(
        self, search: DiscoverImages, has_results_of_file: HasResultsOfFile, *, wait: Callable[[float], bool]
    ) -> Iterator[ImageRef | None]:
        """Yield new images of the watched folders as they arrive, and None after each search.

        Files that arrived during watching are yielded before files that were in the folders at the beginning.

        search               function that finds the images in a file or folder, as `imaging.discover.discover` does
        has_results_of_file  function that is given an open file, and returns whether the run already has its results.
                             If so, no image of the file is yielded
        wait                 function that waits for the given number of seconds, and returns True if watching must end
        """
        first_s = 0.0
        while True:
            began_s = self._clock()
            due = self._files_to_screen()
            looked_s = self._clock()
            first_s = first_s or looked_s
            pause_s = min(max(_PAUSES_S[0], _EFFORT * (looked_s - began_s)), _PAUSES_S[1])
            for path in sorted(due, key=lambda path: (due[path] <= first_s, path)):
                if self._clock() > looked_s + _EFFORT * pause_s:  # after this time, list the folders again
                    pause_s = 0.0
                    break
                # New and returned files are recognised by content alone, because `has_results_of_file` has older data.
                yield from self._try(path, search, has_results_of_file if due[path] <= first_s else lambda *_: False)
            yield None
            if wait(pause_s):
                return

    def is_final(self, outcome: Outcome, *, is_new: bool) -> bool:
        """Return whether the outcome of an image in a watched folder is final.

        If the outcome is not final, the file is screened again, because the file may still be growing.

        is_new  whether the image was screened in this run; False for a reused outcome
        """
        path = str(outcome.ref.path)
        file = self._tried[path]
        is_doubtful = isinstance(outcome, FailedOutcome) or outcome.ref.problem is not None
        is_kept = not is_doubtful or (file.patience_s == _LONG_S and _state_at(path) == file.state)
        self._settle(path, is_doubted=not is_kept)
        self._kept += is_kept and is_new and outcome.ref.key not in self._believed
        if is_kept and is_doubtful:
            self._believed.add(outcome.ref.key)
        return is_kept

    # ---- inside

    def _files_to_screen(self) -> dict[str, float]:
        """List the folders. Returns the files to screen now, each with the time since which the file is unchanged."""
        listed, links = dict[str, int](), list[str]()
        missing = [lost for folder in self._folders if (lost := self._list(str(folder), listed, links))]
        _leave_out_twins(listed, links, self._folders)
        now_s = self._clock()
        changed = [path for path, state in listed.items() if self._done.get(path) != state]
        states = {path: state for path in changed if (state := _state_at(path)) is not None}
        with self._lock:
            self._missing = missing[0] if missing else ""
            if not missing:  # files that are not listed were deleted
                self._done = {path: state for path, state in self._done.items() if path in listed}
                self._waiting = {path: file for path, file in self._waiting.items() if path in states}
            for path, state in states.items():
                known = self._waiting.get(path) or self._tried.get(path)
                if known is None or (known.listed_state, known.state) != (listed[path], state):
                    self._waiting[path] = _WatchedFile(listed[path], state, now_s)
            files = {path: file for path, file in self._waiting.items() if path in states and path not in self._tried}
            return {path: file.since_s for path, file in files.items() if now_s - file.since_s >= file.patience_s}

    def _list(self, top: str, listed: dict[str, int], links: list[str]) -> str:
        """Add the files under a folder to `listed`, with their states, and the links to `links`.

        Returns the path of the first folder that cannot be read; "" if all folders can be read.

        top  path of the folder
        """
        before, missing, left, seen = len(listed), "", [top], set[tuple[int, int]]()
        while left:
            folder = left.pop()
            try:
                status = os.stat(folder)  # noqa: PTH116 - a path object takes ten times as long
                number = status.st_dev, status.st_ino
                if number in seen and os.path.realpath(folder) != folder:  # a junction that leads back
                    continue
                seen.add(number)
                with os.scandir(folder) as entries:
                    left += _add(entries, listed, links)
            except FileNotFoundError:
                missing = missing or (top if folder == top else "")
            except OSError:
                missing = missing or folder
        if not missing:
            device = os.stat(top).st_dev  # noqa: PTH116 - as above
            if len(listed) == before and self._devices.get(top, device) != device:
                return top  # an empty mount point: the drive was disconnected
            self._devices[top] = device
        return missing

    def _try(self, path: str, search: DiscoverImages, is_known: HasResultsOfFile) -> Iterator[ImageRef]:
        file = self._waiting[path]
        if _state_at(path) != file.state:  # the next listing finds the change
            return
        with self._lock:
            self._tried[path] = self._waiting.pop(path)
            file.open_images = 1
        for ref in _images_in(Path(path), search, is_known, is_folder=file.state == _FOLDER):
            with self._lock:
                file.open_images += 1
            yield ref
        self._settle(path)

    def _settle(self, path: str, *, is_doubted: bool = False) -> None:
        """Record that an image of a file has an outcome, or that the search for images in the file has ended.

        is_doubted  whether the outcome was not final
        """
        with self._lock:
            file = self._tried[path]
            file.open_images -= 1
            file.is_screened_again |= is_doubted
            if file.open_images:
                return
            del self._tried[path]
            if file.is_screened_again:
                self._waiting.setdefault(path, _WatchedFile(file.listed_state, file.state, self._clock(), _LONG_S))
            else:
                self._done[path] = file.listed_state


def _images_in(
    path: Path, search: DiscoverImages, is_known: HasResultsOfFile, *, is_folder: bool
) -> Iterator[ImageRef]:
    """Yield the images of one file.

    An image that an index file such as DICOMDIR lists is yielded for its own file only.

    is_folder  whether the path is a link to a folder, which gives a refused image
    """
    if is_folder:
        yield ImageRef(path=path, problem=reason("linked_folder"))
        return
    try:
        found = search([path], has_results_of_file=lambda other, stream: other != path or is_known(other, stream))
    except UsageProblem:  # the file was deleted
        return
    yield from (ref for ref in found if ref.path == path)


def _add(entries: Iterator[os.DirEntry[str]], listed: dict[str, int], links: list[str]) -> Iterator[str]:
    """Add the files and links of a folder to `listed` and `links`. Yields the paths of its subfolders."""
    for entry in entries:
        if is_system_name(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield entry.path
            continue
        with contextlib.suppress(OSError):  # the file was deleted, or a link leads nowhere
            if (state := _state_of(entry.stat())) is not None:
                listed[entry.path] = state
                links += [entry.path] if entry.is_symlink() else []


def _leave_out_twins(listed: dict[str, int], links: Sequence[str], folders: Sequence[Path]) -> None:
    """Remove links to files that are also listed under another path. So no file is listed twice.

    listed   states of files and links by path; changed in place
    links    paths of the links
    folders  the watched folders
    """
    tops = {os.path.realpath(folder): str(folder) for folder in folders} if links else {}
    seen = set[str]()
    for link in sorted(links):
        real = os.path.realpath(link)
        own = [top + real[len(at) :] for at, top in tops.items() if real.startswith(f"{at.rstrip(os.sep)}{os.sep}")]
        if real in seen or any(path in listed for path in own) or (own and listed[link] == _FOLDER):
            del listed[link]
        seen.add(real)


def _state_at(path: str) -> int | None:
    try:
        return _state_of(os.stat(path))  # noqa: PTH116 - as above
    except OSError:
        return None


def _state_of(status: os.stat_result) -> int | None:
    """Return a number that changes with every change of a file; -1 for a folder, None for anything else."""
    if stat.S_ISREG(status.st_mode):
        return abs(hash((status.st_size, status.st_mtime_ns, status.st_ctime_ns)))
    return _FOLDER if stat.S_ISDIR(status.st_mode) else None
