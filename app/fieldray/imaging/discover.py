"""Discovery: from folders, files, DICOMDIR indexes and zip files to image references, without reading pixels.

Every regular file gives at least one reference, with a reason if the file cannot be used. Left out are only system
files (hidden files, recycle bins, thumbnails, snapshots), the program's own reports, and the indexes. A file is
recognised by its content, never by its name, and is never returned twice. A folder gives a reference with a reason if
the folder is unreadable, disappears with its drive, or is a link to a folder elsewhere.

Folders may change during the search. At the end all folders are listed again. This finds files that were added or
moved into a folder after the folder was searched. A zip file or index that was replaced meanwhile is
reported.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from fieldray.domain.image import ImageRef
from fieldray.errors import InputProblem, Unreadable, UsageProblem
from fieldray.imaging.identify import IsOwnReport, identify_unless_own_report, ref_with_problem
from fieldray.imaging.limits import DicomdirFound, ZipFound
from fieldray.imaging.source import (
    CaseInsensitiveNames,
    FileState,
    Folder,
    Opener,
    file_problem,
    file_state_of,
    find_file_any_case,
    folder_entry_key,
    is_system_name,
    open_file,
)
from fieldray.reasons import Reason, reason

# Errors of reading from a device that was removed. EIO is left out, because it can mean a single bad sector.
_DEVICE_GONE: Final = frozenset({errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.ESTALE})
_MIN_MISSING_FILES: Final = 3  # a DICOMDIR that lacks all files, and at least this number, was copied without its files
_MAX_NAMED_BINS: Final = 3
_MAX_LISTINGS: Final = 10  # maximum listings of a folder, because a device may never stop writing

ListMembers = Callable[[ImageRef], Iterator[ImageRef]]
HasResultsOfFile = Callable[[Path, BinaryIO], bool]


def discover(
    paths: Sequence[Path],
    *,
    opener: Opener = open_file,
    list_members: ListMembers | None = None,
    is_own_report: IsOwnReport = lambda _head: False,
    has_results_of_file: HasResultsOfFile = lambda _path, _stream: False,
    notify: Callable[[Reason], None] = lambda _why: None,
) -> Iterator[ImageRef]:
    """Yield a reference to every image under `paths`. The search goes on only while the caller consumes references.

    References come in sorted order, except for links to files elsewhere and for files added during the search.

    opener               opens a path for reading
    list_members         yields the images in a zip file; raises Unreadable or UnsuitableImage if the whole zip file
                         cannot be used. By default this process reads the zip file
    is_own_report        returns whether the first bytes are those of a report of this program, which is no image to
                         screen
    has_results_of_file  returns whether the caller already has the results of an open file; such a file gives no
                         reference
    notify               receives, at the end, messages that concern no single image (own_reports, no_image_in,
                         only_hidden, bins_left_out)

    Raises UsageProblem (nothing_to_screen) at once for a path that does not exist. No content of a file raises an
    exception: the reference of the file gets a `problem`.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise UsageProblem(reason("nothing_to_screen", path=path))
    tops = [(path, os.path.isdir(path)) for path in paths]  # noqa: PTH112 - never raises, unlike the method of a path
    return _Search(
        opener, list_members or zip_search_in_this_process(opener, is_own_report), is_own_report, has_results_of_file
    ).run(tops, notify)


def zip_search_in_this_process(
    opener: Opener = open_file, is_own_report: IsOwnReport = lambda _head: False
) -> ListMembers:
    """Return a function that yields the images in a zip file, given a reference to the file.

    The function reads the zip file in this process, not in a child process.

    opener         opens a path for reading
    is_own_report  returns whether the first bytes of a member are those of a report of this program
    """

    def members(ref: ImageRef) -> Iterator[ImageRef]:
        from fieldray.imaging.archive import image_refs_in_zip, search_members

        return image_refs_in_zip(
            ref, lambda request: search_members(request, opener=opener, is_own_report=is_own_report)
        )

    return members


def absolute_paths(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the paths as absolute paths without duplicates, in order.

    Links are not resolved, because a person knows a file by the name that the person gave. Raises UsageProblem
    (nothing_to_screen) for a path that does not exist.
    """
    absolute = tuple(dict.fromkeys(Path(os.path.abspath(path)) for path in paths))  # noqa: PTH100
    for path in absolute:
        if not os.path.lexists(path):
            raise UsageProblem(reason("nothing_to_screen", path=path))
    return absolute


def count_files(paths: Sequence[Path], *, is_cancelled: Callable[[], bool]) -> int:
    """Estimate the number of images by file names alone.

    A zip file counts as one image, and so does a file with several frames.

    is_cancelled  returns whether to stop counting
    """
    number = 0
    for path in paths:
        number += not os.path.isdir(path)  # noqa: PTH112 - never raises, unlike the method of a path
        for _, folders, names in os.walk(path):
            if is_cancelled():
                return number
            folders[:] = [name for name in folders if not is_system_name(name)]
            number += sum(not is_system_name(name) for name in names)
    return number


class _FolderLost(Exception):
    """A folder above the current entry no longer exists.

    depth  number of the folder in the current path; the folder that the user gave has the number 0
    """

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.depth = depth


class _Search:
    """One search, which remembers every file already returned and the entries of every folder."""

    def __init__(
        self, opener: Opener, members: ListMembers, is_own_report: IsOwnReport, is_known: HasResultsOfFile
    ) -> None:
        self._opener = opener
        self._members = members
        self._is_own_report = is_own_report
        self._is_known = is_known
        self._seen: set[str] = set()
        self._open_folders: list[Folder] = []  # folders from the given path down to the current entry
        self._links: list[Path] = []
        self._listed: dict[Path, tuple[Path, frozenset[str]]] = {}  # folder: (given path above it, names)
        self._containers: dict[Path, FileState | None] = {}
        self._own_reports = 0
        self._bins: list[str] = []
        self._hidden: dict[Path, int] = {}  # by given path
        self._tops: tuple[str, ...] = ()
        self._top = Path()
        self._fruitful: set[Path] = set()

    def run(self, tops: Sequence[tuple[Path, bool]], notify: Callable[[Reason], None]) -> Iterator[ImageRef]:
        self._tops = tuple(os.path.realpath(path) for path, _ in tops)
        for path, is_folder in tops:
            yield from self._under_top(path, self._under(path, is_folder=is_folder))
        yield from self._added_meanwhile()
        for path, _ in tops:
            if path not in self._fruitful:
                notify(reason("no_image_in", path=path))
                if count := self._hidden.get(path):
                    notify(reason("only_hidden", path=path, count=count))
        if self._own_reports:
            notify(reason("own_reports", count=self._own_reports))
        if self._bins:
            names = ", ".join(sorted(set(self._bins))[:_MAX_NAMED_BINS])
            notify(reason("bins_left_out", count=len(self._bins), several=names))

    def _under_top(self, top: Path, refs: Iterator[ImageRef]) -> Iterator[ImageRef]:
        self._top = top
        for ref in refs:
            self._fruitful.add(top)
            yield ref

    def _added_meanwhile(self) -> Iterator[ImageRef]:
        """Yield images that were added after their folder was listed.

        Yield a problem for each replaced zip file or index.
        """
        for _ in range(_MAX_LISTINGS):
            listed = list(self._listed.items())
            added = [(top, entry) for folder, (top, _) in listed for entry in self._new_entries(folder)]
            for top, (path, is_folder) in added:
                yield from self._under_top(top, self._under(path, is_folder=is_folder))
            if not added:
                break
        for path, state in self._containers.items():
            if _is_another(path, state):
                yield ref_with_problem(ImageRef(path=path), Unreadable(reason("changed")))

    def _new_entries(self, path: Path) -> list[tuple[Path, bool]]:
        """Return the new entries of a folder since the last listing. An entry is (path, whether it is a folder)."""
        try:
            folder = Folder.from_path(path)
        except OSError:  # reading its images reports the problem
            return []
        top, known = self._listed[path]
        self._listed[path] = (top, known | folder.names)
        return [
            entry
            for entry in folder.remaining_entries()
            if folder_entry_key(entry[0].name, is_folder=entry[1]) not in known
        ]

    def _under(self, top: Path, *, is_folder: bool) -> Iterator[ImageRef]:
        """Yield the images under a folder, depth first and sorted. Links to folders are not followed.

        Links to files come last. A file that is also in the folder is then reported under its own name, not under the
        link's.
        """
        yield from self._walk(top, is_folder=is_folder)
        links, self._links = self._links, []
        for link in links:
            yield from self._file(link, is_link=True)

    def _walk(self, top: Path, *, is_folder: bool) -> Iterator[ImageRef]:
        self._open_folders = []
        visited: tuple[Path, bool] | None = (top, is_folder)
        while visited:
            path, is_folder = visited
            try:
                yield from self._folder(path) if is_folder else self._file(path)
            except _FolderLost as lost:
                path = self._open_folders[lost.depth].path
                yield ref_with_problem(ImageRef(path=path), Unreadable(reason("folder_lost")))
                del self._open_folders[lost.depth :]
            visited = self._next()

    def _next(self) -> tuple[Path, bool] | None:
        while self._open_folders:
            if entry := self._open_folders[-1].next_entry():
                return entry
            self._open_folders.pop()
        return None

    def _folder(self, path: Path) -> Iterator[ImageRef]:
        try:
            folder = Folder.from_path(path)
            if folder.is_cyclic(self._open_folders):
                return
            self._open_folders.append(folder)
            if path not in self._listed:
                self._bins += folder.recycle_bins
                self._hidden[self._top] = self._hidden.get(self._top, 0) + folder.hidden
            self._listed[path] = (self._top, folder.names)
        except NotADirectoryError:  # a file has replaced the folder
            yield from self._file(path)
        except OSError as error:
            self._check_open_folders(error)
            why = reason("folder_not_read", detail=error.strerror or type(error).__name__)
            yield ref_with_problem(ImageRef(path=path), Unreadable(why))

    def _check_open_folders(self, error: OSError) -> None:
        """Raise _FolderLost if a folder above the current entry cannot be read any more.

        If the innermost folder can be listed, all folders above can be listed, too. For most errors only the innermost
        folder is tested, because a drive may contain thousands of files that cannot be opened.
        """
        if self._open_folders and self._open_folders[-1].is_gone_or_replaced():
            for depth, folder in enumerate(self._open_folders):
                if folder.is_gone_or_replaced():
                    raise _FolderLost(depth) from error
        if self._open_folders and error.errno in _DEVICE_GONE:
            raise _FolderLost(len(self._open_folders) - 1) from error

    def _file(self, path: Path, *, is_link: bool = False) -> Iterator[ImageRef]:
        try:
            mode = path.stat().st_mode if is_link else path.lstat().st_mode
            if stat.S_ISLNK(mode):
                self._links.append(path)
                return
            real = os.path.realpath(path) if is_link else self._real(path)
            if real in self._seen:
                self._fruitful.add(self._top)
            elif stat.S_ISDIR(mode):
                yield from self._linked(path, real) if is_link else self._folder(path)
            elif stat.S_ISREG(mode):
                self._seen.add(real)
                yield from self._content(path)
        except OSError as error:
            self._check_open_folders(error)
            yield ref_with_problem(ImageRef(path=path), file_problem(error))

    def _real(self, path: Path) -> str:
        """Return the path of an entry, with the links in its folder's path resolved.

        The operating system is asked only once for each folder.
        """
        parent, name = os.path.split(path)
        if self._open_folders and parent == str(self._open_folders[-1].path):
            return os.path.join(self._open_folders[-1].real_path, name)  # noqa: PTH118 - a path object takes ten times as long
        return os.path.realpath(path)

    def _linked(self, link: Path, real: str) -> Iterator[ImageRef]:
        """Yield a reference with a problem for a link to a folder outside the paths that are searched.

        real  path of the folder to which the link leads
        """
        self._seen.add(real)
        if not any(real == top or real.startswith(os.path.join(top, "")) for top in self._tops):  # noqa: PTH118
            yield ref_with_problem(ImageRef(path=link), Unreadable(reason("linked_folder")))

    def _content(self, path: Path) -> Iterator[ImageRef]:
        ref = ImageRef(path=path)
        try:
            with self._opener(path) as stream:
                if self._is_known(path, stream):
                    self._fruitful.add(self._top)
                    return
                found = identify_unless_own_report(stream, ref, self._is_own_report)
                if isinstance(found, DicomdirFound | ZipFound):
                    self._containers[path] = file_state_of(stream)
            if found is None:
                self._own_reports += 1
                return
            if isinstance(found, DicomdirFound):
                yield from self._index(path, found)
            else:
                yield from self._members(ref) if isinstance(found, ZipFound) else found
        except InputProblem as error:
            yield ref_with_problem(ref, error)

    def _index(self, index: Path, found: DicomdirFound) -> Iterator[ImageRef]:
        """Yield the images in the files that a DICOMDIR lists. Files outside the DICOMDIR's folder are not opened."""
        top, own, names = os.path.realpath(index.parent), os.path.realpath(index), CaseInsensitiveNames()
        if not self._open_folders:  # the given path is the index itself
            self._open_folders = [Folder(index.parent)]
        missing, is_alone, is_empty = list[Path](), True, True
        for components in found.listed_paths:
            if any(map(is_system_name, components)):
                continue
            path = find_file_any_case(index.parent, components, names)
            real = path and os.path.realpath(path)
            if real == own:
                continue
            is_empty = False
            if path is None or not str(real).startswith(top + os.sep):
                name = "\\".join(components).replace("\0", "\N{REPLACEMENT CHARACTER}")  # no name has a zero byte
                yield from self._outside(index, name)
            elif os.path.exists(path):  # noqa: PTH110 - as for `tops`
                yield from map(_missing, missing)
                missing, is_alone = [], False
                yield from self._file(path)
            elif str(path) not in self._seen:
                self._check_open_folders(FileNotFoundError())
                self._seen.add(str(path))
                missing.append(path)
        if is_alone and len(missing) >= _MIN_MISSING_FILES:  # one message for all missing files
            yield ref_with_problem(ImageRef(path=index), Unreadable(reason("index_alone", count=len(missing))))
            return
        yield from map(_missing, missing)
        if is_empty:
            yield ref_with_problem(ImageRef(path=index), Unreadable(reason("index_empty")))

    def _outside(self, index: Path, name: str) -> Iterator[ImageRef]:
        ref = ImageRef(path=index, zip_member=name)
        if ref.key not in self._seen:
            self._seen.add(ref.key)
            yield ref_with_problem(ref, Unreadable(reason("outside_folder")))


def _is_another(path: Path, state: FileState | None) -> bool:
    try:
        now = file_state_of(path)
    except OSError:  # the file is gone; reading its images reports that
        return False
    before, after = (one and one._replace(status_changed_ns=0) for one in (state, now))  # changes with a new hard link
    return before != after


def _missing(path: Path) -> ImageRef:
    return ref_with_problem(ImageRef(path=path), Unreadable(reason("missing_listed")))
