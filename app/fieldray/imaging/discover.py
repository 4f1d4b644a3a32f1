"""From folders, files, DICOMDIR indexes and zip files to image references, one after another, no pixel read.

Nothing is lost: every regular file gives at least one reference, what cannot be used with the reason in it. Left out
are only the files that systems leave behind (hidden ones, thumbnail caches) and the indexes themselves. A file is
recognised by its content, never by its name, and a file that was already given is not given again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from fieldray.domain.study import ImageRef, Study
from fieldray.errors import InputProblem, Unreadable, Unusable, UsageProblem
from fieldray.imaging.identify import IndexFound, ZipFound, identify
from fieldray.imaging.source import Opener, file_problem, open_file
from fieldray.reasons import reason

_SYSTEM_NAMES: Final = frozenset(
    {"thumbs.db", "desktop.ini", "__macosx", "$recycle.bin", "system volume information", "lost+found"}
)


def discover(paths: Sequence[Path], *, opener: Opener = open_file) -> Iterator[ImageRef]:
    """References to every image under `paths`, in sorted order, found while they are asked for.

    Raises UsageProblem `nothing_to_screen` at once for a path that does not exist; never for what is in a file.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise UsageProblem(reason("nothing_to_screen", path=path))
    return _Search(opener).run(paths)


def group(refs: Iterable[ImageRef]) -> tuple[Study, ...]:
    """The references as studies, both in the order they came."""
    images: dict[str, list[ImageRef]] = {}
    for ref in refs:
        images.setdefault(ref.study_key, []).append(ref)
    return tuple(Study(key=key, images=tuple(found)) for key, found in images.items())


def is_system_name(name: str) -> bool:
    """Whether a file or folder of this name belongs to the system and not to the studies."""
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES


class _Search:
    """One search: remembers by real path what was given already."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._seen: set[str] = set()

    def run(self, paths: Sequence[Path]) -> Iterator[ImageRef]:
        for path in paths:
            yield from self._folder(path)

    def _folder(self, top: Path) -> Iterator[ImageRef]:
        """Depth first and sorted; the stack holds what is still to be visited. Links to folders are not followed."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            if not _is_folder(path) or (path != top and path.is_symlink()):
                yield from self._file(path)
                continue
            try:
                names = sorted(os.listdir(path), reverse=True)  # noqa: PTH208 - names alone, not paths
            except OSError as error:
                yield _failed(ImageRef(path=path), file_problem(error))
                continue
            waiting += [path / name for name in names if not is_system_name(name)]

    def _file(self, path: Path) -> Iterator[ImageRef]:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                return
            real = os.path.realpath(path)
            if real in self._seen:
                return
            self._seen.add(real)
            yield from self._content(path)
        except OSError as error:
            yield _failed(ImageRef(path=path), file_problem(error))

    def _content(self, path: Path) -> Iterator[ImageRef]:
        ref = ImageRef(path=path)
        with self._opener(path) as stream:
            try:
                found = identify(stream, ref)
                if isinstance(found, ZipFound):
                    from fieldray.imaging.zip_members import members

                    yield from members(stream, ref)
                    return
            except InputProblem as error:
                yield _failed(ref, error)
                return
        if isinstance(found, IndexFound):
            yield from self._index(path, found.references)
        else:
            yield from found

    def _index(self, index: Path, references: Iterable[tuple[str, ...]]) -> Iterator[ImageRef]:
        """What a DICOMDIR refers to; only files inside its own folder are opened."""
        top = os.path.realpath(index.parent)
        for components in references:
            path = _inside(index.parent, components)
            if path is None or not os.path.realpath(path).startswith(top + os.sep):
                ref = ImageRef(path=index, member="\\".join(components))
                yield _failed(ref, Unreadable(reason("outside_folder")))
            elif _exists(path):
                yield from self._file(path)
            else:
                yield from self._missing(path)

    def _missing(self, path: Path) -> Iterator[ImageRef]:
        if str(path) not in self._seen:
            self._seen.add(str(path))
            yield _failed(ImageRef(path=path), Unreadable(reason("missing_listed")))


def _inside(folder: Path, components: Sequence[str]) -> Path | None:
    """The file that a DICOMDIR names, in whatever case a copy gave it; None for what is no plain name (PS3.10 8.2)."""
    path = folder
    for name in components:
        if name in ("", ".", "..") or set(name) & set('/\\:\0<>|"'):
            return None
        path = _in_any_case(path, name)
    return path if components else None


def _in_any_case(folder: Path, name: str) -> Path:
    exact = folder / name
    if _exists(exact) or not _is_folder(folder):
        return exact
    with contextlib.suppress(OSError):
        return next((entry for entry in folder.iterdir() if entry.name.casefold() == name.casefold()), exact)
    return exact


def _exists(path: Path) -> bool:
    """Unlike the method of `Path`, no error for a name too long or a folder that may not be entered."""
    return os.path.exists(path)  # noqa: PTH110


def _is_folder(path: Path) -> bool:
    """See `_exists`."""
    return os.path.isdir(path)  # noqa: PTH112


def _failed(ref: ImageRef, error: InputProblem) -> ImageRef:
    return ImageRef(
        path=ref.path,
        member=ref.member,
        kind=ref.kind,
        header=ref.header,
        problem=error.reason,
        problem_is_refusal=isinstance(error, Unusable),
    )
