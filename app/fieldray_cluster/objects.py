"""List and download the images of an archive on a server, where the image files are called objects.

The process that starts the work lists the objects page by page, and reads the beginning of each object. An offline
process looks for images in this beginning. A worker downloads the objects of its piece to files, before the images are
screened. Offline processes read the files. All workers of a computer share a cache of downloaded objects, whose size is
limited.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from fieldray.domain.finding import FailedOutcome, Outcome
from fieldray.domain.image import ImageRef
from fieldray.errors import InputProblem, Unreadable
from fieldray.imaging.discover import ListMembers
from fieldray.imaging.identify import ref_with_problem
from fieldray.imaging.object_identify import IdentifyServerFile, ServerFileHead
from fieldray_cluster.object_server import (
    MAX_OBJECT_BYTES,
    ObjectAddressAndState,
    ObjectServer,
    address_to_path,
    path_to_address,
)

_HEAD_BYTES: Final = 2**16  # first part of an object that is read for its header
_LONGER: Final = 16
_MAX_HEAD_BYTES: Final = 2**26
_PAGE: Final = 1000
_STREAMS: Final = 8
_AHEAD: Final = 16  # objects that are downloaded, or being downloaded, before their images are screened


# ---- listing of the images


def list_images_on_server(
    server: ObjectServer, folder: Path, *, list_members: ListMembers, find_images: IdentifyServerFile
) -> Iterator[tuple[ImageRef, str]]:
    """Yield each image in the objects on a server, with the state (size and tag) of the image's object.

    A DICOMDIR is skipped, because the server also lists the files that the DICOMDIR names. Raises as
    `ObjectServer.iterate_objects`.

    Parameters
    ----------
    folder
        The folder for temporary copies of zip files, whose members are listed.
    list_members
        A function that lists the members of a zip file.
    find_images
        A function that looks for images in the beginning of an object.
    """

    def look(listed: ObjectAddressAndState) -> tuple[list[ImageRef], str, bool]:
        """Return the images of an object, the object's state, and whether the object is a zip file."""
        address, state = listed
        ref, length = ImageRef(path=address_to_path(address)), _HEAD_BYTES
        try:
            while length <= _MAX_HEAD_BYTES:
                data, state = server.read_beginning(address, state, length)
                size_bytes = int(state.partition(" ")[0])
                try:
                    beginning = ServerFileHead(ref=ref, data=np.frombuffer(data, np.uint8), size_bytes=size_bytes)
                    found = find_images(beginning)
                except InputProblem as problem:
                    return [ref_with_problem(ref, problem)], state, False
                if found.kind != "longer":
                    return found.refs(ref), state, found.kind == "zip"
                length *= _LONGER
        except Unreadable:
            pass
        return [ref], state, False  # screening the object will report its problem

    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="listing") as threads:
        objects = server.iterate_objects()
        while page := tuple(itertools.islice(objects, _PAGE)):
            for (address, _), (found, state, is_zip) in zip(page, threads.map(look, page), strict=True):
                refs = _members(server, list_members, address, state, folder / "zip") if is_zip else found
                yield from ((ref, state) for ref in refs)


def _members(server: ObjectServer, members: ListMembers, address: str, state: str, target: Path) -> Iterator[ImageRef]:
    ref = ImageRef(path=address_to_path(address))
    try:
        server.download(address, state, target)
        yield from (replace(each, path=ref.path) for each in members(replace(ref, path=target)))
    except InputProblem as problem:
        yield ref_with_problem(ref, problem)
    finally:
        target.unlink(missing_ok=True)


# ---- download of objects to files


class ObjectCache:
    """A cache of downloaded objects in a folder that all workers of this computer share.

    A worker makes hard links to the objects that it uses. When the cache is full, objects not used for a long time are
    deleted first.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = MAX_OBJECT_BYTES) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._added, self._lock = 0, threading.Lock()
        folder.mkdir(exist_ok=True)

    def fetch(self, server: ObjectServer, address: str, state: str, target: Path) -> None:
        """Write an object of a server to the file `target`, from the cache or by download.

        The cached object is used only if its state (size and tag) is `state`. If `state` is "", the object is always
        downloaded. Raises as `ObjectServer.download`.
        """
        kept = self._folder / hashlib.sha256(f"{address}\n{state}".encode(errors="surrogateescape")).hexdigest()
        try:
            os.link(kept, target)
            os.utime(target)
        except OSError:
            size = server.download(address, state, target)
            if state:
                with contextlib.suppress(OSError):  # a disk without links, or another worker downloaded it too
                    os.link(target, kept)
                    self._count(size)

    def _count(self, size: int) -> None:
        with self._lock:
            self._added += size
            if self._added < self._limit_bytes // 16:
                return
            self._added = 0
        with contextlib.suppress(OSError):  # another worker may delete files as well
            found = [(path.stat(), path) for path in self._folder.iterdir()]
            kept = sorted((each.st_mtime_ns, each.st_size, path) for each, path in found if each.st_nlink == 1)
            total = sum(size_bytes for _, size_bytes, _ in kept)
            for _, size_bytes, path in kept:
                if total > self._limit_bytes // 2:
                    path.unlink(missing_ok=True)
                    total -= size_bytes


class PieceDownloads:
    """Downloads the objects of a piece of an archive, in the order of the images, while earlier images are screened."""

    def __init__(
        self, server: ObjectServer, cache: ObjectCache, refs: Sequence[ImageRef], states: Sequence[str], folder: Path
    ) -> None:
        self._server, self._cache = server, cache
        self._uses = Counter(ref.path for ref in refs if not ref.problem)
        self._lock, self._room, self._is_over = threading.Lock(), threading.Semaphore(_AHEAD), False
        self._coming: dict[Path, Future[Path]] = {path: Future() for path in self._uses}
        self._threads = ThreadPoolExecutor(_STREAMS + 1, thread_name_prefix="objects")
        of_path = {ref.path: state for ref, state in zip(refs, states, strict=True)}
        self._threads.submit(self._feed, of_path, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._room.release()
        self._threads.shutdown(cancel_futures=True)
        self._server.is_unreachable = False
        for future in self._coming.values():  # threads that wait for an object stop waiting
            future.cancel()

    def _feed(self, states: dict[Path, str], folder: Path) -> None:
        """Start the downloads in the order of the images, as long as there is room for files.

        So the next image never waits for room that files of later images use.
        """
        for number, (path, future) in enumerate(self._coming.items()):
            self._room.acquire()
            if self._is_over:
                return
            self._threads.submit(self._bring, path, states[path], folder / f"{number}", future)

    def _bring(self, path: Path, state: str, target: Path, future: Future[Path]) -> None:
        try:
            self._cache.fetch(self._server, path_to_address(path), state, target)
        except Exception as error:
            target.unlink(missing_ok=True)  # deletes an incomplete file
            future.set_exception(error)
        else:
            future.set_result(target)

    @contextlib.contextmanager
    def local_file(self, ref: ImageRef) -> Iterator[Path]:
        """Wait until the object of an image is downloaded, and yield the path of the file.

        The file is deleted after its last use. Raises Unreadable, EnvironmentProblem, StorageProblem.
        """
        try:
            yield self._coming[ref.path].result()
        finally:
            self._used(ref.path)

    def screen(self, screen: Callable[[ImageRef], Outcome], ref: ImageRef) -> Outcome:
        """Screen the image `ref` from the downloaded file of its object, by calling `screen`. Returns the outcome.

        If the object cannot be read, the outcome is `FailedOutcome`. Raises the exceptions of `local_file` and of the
        function `screen`.
        """
        if ref.problem:
            return screen(ref)
        try:
            with self.local_file(ref) as path:
                outcome = screen(replace(ref, path=path))
        except InputProblem as problem:
            return FailedOutcome(ref=ref, stage="decode", reason=problem.reason)
        return replace(outcome, ref=replace(outcome.ref, path=ref.path))

    def _used(self, path: Path) -> None:
        with self._lock:
            self._uses[path] -= 1
            if self._uses[path]:
                return
        future = self._coming[path]
        if future.done() and not future.cancelled() and not future.exception():
            future.result().unlink(missing_ok=True)
        self._room.release()
