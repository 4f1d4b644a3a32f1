"""Copy the images of a recipe from a server to a folder, from which a network is trained.

A training needs the SHA-256 of every image before it reads the first image, because the split and the search for
duplicates depend on these digests. Later steps check the files again. So nothing would be gained by reading images
while they are downloaded: the images (objects on the server) are copied before. An object is copied again only if the
object has changed.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.domain.image import ImageRef
from fieldray.errors import InputProblem, Unreadable, UsageProblem
from fieldray.persistence import storage_problem
from fieldray.reasons import Reason, reason
from fieldray_adapt.files import raise_if_damaged, write_atomically
from fieldray_cluster.object_server import ObjectServer, address_to_path
from fieldray_cluster.objects import ObjectCache, PieceDownloads

_OBJECTS_PER_SAVE: Final = 256  # after this number of objects, the states of all copies are written


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of copying objects: the number of objects in the folder, and how many of them were downloaded now."""

    object_count: int
    downloaded_object_count: int


def copy_objects(
    server: ObjectServer, folder: Path, *, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> CopyResult:
    """Copy all objects of a server to a folder, and delete files of objects that the server no longer has.

    An interrupted copy is resumed. The states (size and tag) of the copied objects are stored next to the folder: in
    `FOLDER.part.json` until all objects are copied, then in `FOLDER.json`.

    Parameters
    ----------
    progress
        A function that is called with the number of copied objects, and the number of objects to copy.

    Raises
    ------
    UsageProblem
        `objects_left` if an object cannot be read, is gone, or has changed since listing. Other reasons: see
        `ObjectServer.iterate_objects`.
    EnvironmentProblem, StorageProblem
        See `ObjectServer.download`.
    """
    whole, part = (folder.with_name(f"{folder.name}{suffix}") for suffix in (".json", ".part.json"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = dict(_intact(server, folder, whole if whole.is_file() else part))
        states = {address: state or _state(server, address) for address, state in server.iterate_objects()}
        wanted = {address: state for address, state in states.items() if not state or kept.get(address) != state}
        if whole.is_file():
            whole.replace(part)
        for address in kept.keys() - states.keys():
            _path_of(address, server, folder).unlink()
        kept = {address: kept[address] for address in states.keys() - wanted.keys()}
        problems = _copy_all(server, folder, wanted, kept=kept, part=part, progress=progress)
        if not problems:
            part.replace(whole)
    except OSError as error:
        raise storage_problem(error, folder) from error
    for address, problem in problems.items():
        said = {"name": address.rpartition("/")[2], "detail": problem.text}
        raise UsageProblem(reason("objects_left", count=len(problems), address=server.address, **said))
    return CopyResult(len(states), len(wanted))


def _state(server: ObjectServer, address: str) -> str:
    """Return the state (size and tag) of an object on a server that does not list states; "" if it cannot be read."""
    with contextlib.suppress(Unreadable):  # copying the object will report its problem
        return server.read_beginning(address, "", 1)[1]
    return ""


def _copy_all(
    server: ObjectServer,
    folder: Path,
    wanted: Mapping[str, str],
    *,
    kept: dict[str, str],
    part: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Reason]:
    """Copy the objects `wanted` (states by address), and store the states of all copies in the file `part`.

    `kept` are the states of objects copied before. Returns the problem of each object that could not be copied.
    """
    problems = dict[str, Reason]()
    for number, (address, problem) in enumerate(_copy(server, folder, wanted), start=1):
        if problem:
            problems[address] = problem
        else:
            kept[address] = wanted[address]
        progress(number, len(wanted))
        if number % _OBJECTS_PER_SAVE == 0:
            write_atomically(part, json.dumps(kept).encode())
    write_atomically(part, json.dumps(kept).encode())
    return problems


def _path_of(address: str, server: ObjectServer, folder: Path) -> Path:
    """Return the path of the file for the copy of an object. The path is always inside `folder`."""
    own = address_to_path(server.address).parts
    return folder.joinpath(*address_to_path(address).parts[len(own) :] or own[-1:])


def _intact(server: ObjectServer, folder: Path, list_path: Path) -> Iterator[tuple[str, str]]:
    """Yield address and state (size and tag) of each object whose copy in `folder` exists and has the right size.

    `list_path` is the JSON file of the states by address. Yields nothing if the file does not exist.
    """
    if not list_path.is_file():
        return
    with raise_if_damaged(list_path):
        known = dict(json.loads(list_path.read_bytes()))
    for address, state in known.items():
        path = _path_of(address, server, folder)
        if state and path.is_file() and path.stat().st_size == int(state.partition(" ")[0]):
            yield address, state


def _copy(server: ObjectServer, folder: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, Reason | None]]:
    """Download the objects `wanted` (states by address). Yields each address, with the problem or None."""
    refs = [ImageRef(path=address_to_path(address)) for address in wanted]
    with (
        tempfile.TemporaryDirectory(dir=folder.parent) as scratch,
        tempfile.TemporaryDirectory(dir=folder.parent) as cache,
        PieceDownloads(server, ObjectCache(Path(cache)), refs, list(wanted.values()), Path(scratch)) as ahead,
    ):
        for address, ref in zip(wanted, refs, strict=True):
            try:
                with ahead.local_file(ref) as path:
                    target = _path_of(address, server, folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
            except InputProblem as problem:
                yield address, problem.reason
            else:
                yield address, None
