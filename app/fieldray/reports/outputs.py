"""Writing of outputs that a person names. The program never replaces a file that it did not write.

The program recognises its own files by content, never by name. It refuses to write over an input under any of its
names, into its own folder, over a link or device, and over any file that an earlier output of this kind did not write.
A forgotten argument must not cost an X-ray.

New files and new folders are readable only by this user (POSIX), because they may name patients.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TextIO

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.paths import user_data
from fieldray.persistence import (
    PRIVATE_FOLDER,
    is_regular_or_absent,
    make_folder,
    replace_atomically,
    storage_problem,
    temporary_path,
    write_new,
    writing_atomically,
)
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import exporters

if TYPE_CHECKING:
    from fieldray.domain.image import ShownImage
    from fieldray.domain.run import StoredResult

    ImageResult = tuple[StoredResult, ShownImage | Reason]
    ReadPreview = Callable[[StoredResult], ShownImage | None]
    ReadImages = Callable[[Iterable[StoredResult], int], Iterator[ImageResult]]
from fieldray.reports.exporter import StoredRun

Recognise = Callable[[bytes], bool]
# What an output is: one of the program's own kinds, or what recognises an earlier one by its first bytes.
Kind = Literal["lines", "json", "html", "png", "map", "demo", "comparison"]
_MAP_KINDS: Final[tuple[Kind, ...]] = ("png", "map")
GENERATOR: Final = '<meta name="generator" content="fieldray">'
# NumPy's format allows blanks at the end of a header. Nobody else fills it to 512 bytes: so a class map is known again.
NPY_START: Final = b"\x93NUMPY\x01\x00" + (512 - 10).to_bytes(2, "little") + b"{'descr': '<f4'"
_HEAD_BYTES: Final = 2**16
_AUDIT_TABLES: Final = ('\ufeff"group","name","threshold"', '\ufeff"image","patient","exam","reference"')
_AUDIT_START: Final = b'{\n "report": "fieldray audit"'
_LINE_KEYS: Final = frozenset({"path", "study", "image", "status", "reason_code", "pack", "model_sha256", "decode_ms"})
_JSON_STARTS: Final = (b'{\n "report": "', b'{\n "pack": "', b'{\n "study": "')


def require_free(path: Path, kind: Kind | Recognise, *, inputs: Sequence[Path] = ()) -> None:
    """Raise an error if an output may not be written to `path`.

    That is so if `path` is in the program's own data folder, or if anything but an earlier output of this kind is
    there.

    kind, inputs  as for `require_own`

    Raises UsageProblem (output_in_home, output_is_input, output_not_ours), StorageProblem if `path` cannot be examined.
    """
    require_outside_home(path)
    require_own(path, kind, inputs=inputs)


def require_own(path: Path, kind: Kind | Recognise, *, inputs: Sequence[Path] = ()) -> None:
    """Raise an error if something exists at `path` that is not an earlier output of this kind.

    kind    one of the program's kinds of output, or a function that recognises one by the first bytes of a file
    inputs  files and folders that are read, which are never replaced

    Raises UsageProblem (output_is_input, output_not_ours), StorageProblem if `path` cannot be examined.
    """
    if not os.path.lexists(path):
        return
    if any(_is_same(path, other) for other in inputs):
        raise UsageProblem(reason("output_is_input", path=path))
    if not is_regular_or_absent(path) or not _is_ours(path, kind):
        raise UsageProblem(reason("output_not_ours", path=path))


def require_outside_home(path: Path) -> None:
    """Raise UsageProblem (output_in_home) for a path in the program's own data folder."""
    real = Path(os.path.realpath(path))
    if any(_is_same(other, user_data()) for other in (real, *real.parents)):
        raise UsageProblem(reason("output_in_home", path=path))


def require_inside(path: Path, folder: Path) -> None:
    """Raise StorageProblem (not_plain) if a link leads from a path below `folder` to a place outside the folder."""
    real = Path(os.path.realpath(path))
    if folder.exists() and not any(_is_same(other, folder) for other in (real, *real.parents)):
        raise StorageProblem(reason("not_plain", path=path))


def is_stream(path: Path) -> bool:
    """Return whether `path` is a pipe or a device, to which a command may write without any check."""
    return path.is_fifo() or path.is_char_device()


def require_folder(folder: Path, *, is_made: bool = True) -> None:
    """Test that a folder is writable, before hours of work. With `is_made`, a missing folder is created.

    Raises UsageProblem (output_in_home), StorageProblem.
    """
    require_outside_home(folder)
    try:
        if is_made:
            make_folder(folder, is_private=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise storage_problem(error, folder) from error


@contextlib.contextmanager
def open_output(
    path: Path, kind: Kind | Recognise, *, encoding: str = "utf-8", inputs: Sequence[Path] = ()
) -> Iterator[TextIO]:
    """Yield a text stream whose content appears at `path` when the block ends, and is discarded if the block raises.

    path      path of the file; a missing folder is created
    kind      recognises an earlier output, which may be replaced
    encoding  with "utf-8", file names that are not valid Unicode are written with backslash escapes, as in JSON
    inputs    files and folders that are read, which are never replaced

    Raises UsageProblem as `require_free`, StorageProblem (disk_full, not_writable).
    """
    require_free(path, kind, inputs=inputs)
    with writing_atomically(path) as stream:
        text = io.TextIOWrapper(stream, encoding=encoding, errors="backslashreplace", newline="")
        try:
            yield text
        finally:
            text.detach()  # flushes into the stream, which is not its own to close
        require_free(path, kind, inputs=inputs)  # hours may have passed


def write_output(path: Path, kind: Kind | Recognise, data: bytes, *, inputs: Sequence[Path] = ()) -> None:
    """Write bytes to a file. Parameters, rules and exceptions are those of `open_output`."""
    require_free(path, kind, inputs=inputs)
    with writing_atomically(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def open_output_folder(path: Path, kind: Recognise, *, inputs: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a new folder, which appears at `path` when the block ends.

    The folder is discarded if it is empty or if the block raises.

    path    an earlier folder is replaced as a whole, if every file in it is of this kind
    kind    recognises a file of such a folder
    inputs  files and folders that are read, which are never replaced
    Raises UsageProblem as `require_free`, StorageProblem (disk_full, not_writable).

    """
    _require_free_folder(path, kind, inputs)
    temporary = temporary_path(path)
    try:
        make_folder(path.parent, is_private=True)
        temporary.mkdir(mode=PRIVATE_FOLDER)
        yield temporary
        _require_free_folder(path, kind, inputs)
        if any(temporary.iterdir()):
            replace_atomically(temporary, path)
        elif os.path.lexists(path):
            shutil.rmtree(path)
    except OSError as error:
        raise storage_problem(error, path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _require_free_folder(path: Path, kind: Recognise, inputs: Sequence[Path]) -> None:
    require_outside_home(path)
    if not os.path.lexists(path):
        return
    if any(_is_same(path, other) for other in inputs):
        raise UsageProblem(reason("output_is_input", path=path))
    try:
        is_ours = not path.is_symlink() and path.is_dir()
        is_ours = is_ours and all(is_regular_or_absent(file) and _is_ours(file, kind) for file in path.iterdir())
    except OSError as error:
        raise storage_problem(error, path) from error
    if not is_ours:
        raise UsageProblem(reason("output_not_ours", path=path))


def is_own_report(head: bytes) -> bool:
    """Return whether a file that begins with `head` (its first kilobytes) is an output of this program.

    Outputs are reports, JSON lists, and the files of `--maps`. They are often stored beside the images, where the next
    run finds them.
    """
    if _is_lines(head) or head.startswith(_AUDIT_START):
        return True
    # what a class map means, as `--maps` writes it beside the map
    is_class_map = head.startswith(b'{\n "report": "class map"') and b'\n "model_sha256": "' in head
    if is_class_map or is_audit_table(head) or any(_RECOGNISE[kind](head) for kind in _MAP_KINDS):
        return True
    return any(exporter.is_own(head) for exporter in exporters().values())


def is_audit_table(head: bytes) -> bool:
    """Return whether a file that begins with `head` is an audit's table of thresholds or of images."""
    return head.startswith(tuple(start.replace(",", mark).encode() for start in _AUDIT_TABLES for mark in ",;"))


def _is_ours(path: Path, kind: Kind | Recognise) -> bool:
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise storage_problem(error, path) from error
    recognise = kind if callable(kind) else _RECOGNISE[kind]
    return not head or recognise(head)


def _is_same(first: Path, second: Path) -> bool:
    """Return whether two paths lead to one file or folder."""
    try:
        return os.path.samefile(first, second)  # noqa: PTH121
    except OSError:
        return False


def _is_lines(head: bytes) -> bool:
    try:
        line = json.loads(head.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(line, dict) and line.keys() >= _LINE_KEYS


_RECOGNISE: Final[Mapping[Kind, Recognise]] = {
    "lines": _is_lines,
    "json": lambda head: head.startswith(_JSON_STARTS),
    "html": lambda head: GENERATOR.encode() in head,
    "png": lambda head: head.startswith(b"\x89PNG") and b"tEXtSoftware\0fieldray" in head[:512],
    "map": lambda head: head.startswith(NPY_START),
    "comparison": lambda head: head.startswith(b'{\n "comparable": ') and b'\n "similarity_before": ' in head,
    "demo": lambda head: b"Synthetic^" in head and b"Synthetic chest, not a patient" in head,
}


def folder_writer(
    files: Callable[[StoredRun], Generator[tuple[str, bytes]]], is_own: Callable[[bytes], bool]
) -> Callable[[Path, StoredRun], None]:
    """Return the function `Exporter.write` for an exporter that writes a folder of files.

    files   generator of the name and content of each file; it is closed at the end and after an error
    is_own  returns whether a file that begins with these bytes is one of this exporter
    """

    def write(path: Path, stored: StoredRun) -> None:
        with (
            contextlib.closing(files(stored)) as made,
            open_output_folder(path, is_own, inputs=stored.inputs) as folder,
        ):
            for name, data in made:
                write_new(folder / name, data)

    return write
