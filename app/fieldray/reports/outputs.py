"""Writing of output files that a person names. The program never replaces a file that it did not write.

The program recognises its files by content, never by name. It refuses to write to an input file, even through another
path, into the data folder of the program, and to a link or device. It replaces an existing file only by an output of
the same kind, such as a PDF report by a PDF report. So a mistyped argument never destroys an X-ray.

On Linux and macOS, new files and folders are readable only by this user, because they may name patients.
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
from fieldray.paths import data_folder
from fieldray.persistence import (
    PRIVATE_FOLDER_MODE,
    is_regular_or_absent,
    make_folder,
    replace_folder_atomically,
    storage_problem,
    temporary_path,
    write_new_file,
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

IsOwnOutput = Callable[[bytes], bool]
# The kinds of output that this module recognises by their first bytes.
OutputKind = Literal["lines", "json", "html", "png", "map", "demo", "comparison"]
_MAP_KINDS: Final[tuple[OutputKind, ...]] = ("png", "map")
HTML_GENERATOR_TAG: Final = '<meta name="generator" content="fieldray">'
# NumPy's format allows spaces at the end of a header. Only this program fills the header to 512 bytes, as a mark.
CLASS_MAP_NPY_START: Final = b"\x93NUMPY\x01\x00" + (512 - 10).to_bytes(2, "little") + b"{'descr': '<f4'"
_HEAD_BYTES: Final = 2**16
_AUDIT_TABLES: Final = ('\ufeff"group","name","threshold"', '\ufeff"image","patient","exam","reference"')
_AUDIT_START: Final = b'{\n "report": "fieldray audit"'
_LINE_KEYS: Final = frozenset({"path", "study", "image", "status", "reason_code", "pack", "model_sha256", "decode_ms"})
_JSON_STARTS: Final = (b'{\n "report": "', b'{\n "pack": "', b'{\n "study": "')


def require_writable_output(path: Path, kind: OutputKind | IsOwnOutput, *, inputs: Sequence[Path] = ()) -> None:
    """Raise an error if an output may not be written to `path`.

    An output may not be written into the program's own data folder. If something exists at `path`, it must be an
    earlier output of the kind `kind`.

    kind    a kind of output of the program, or a function that recognises an output by the first bytes of its file
    inputs  files and folders that the command reads, which are never replaced

    Raises UsageProblem (output_in_home, output_is_input, output_not_ours), StorageProblem if `path` cannot be examined.
    """
    require_outside_data_folder(path)
    require_own_output(path, kind, inputs=inputs)


def require_own_output(path: Path, kind: OutputKind | IsOwnOutput, *, inputs: Sequence[Path] = ()) -> None:
    """Raise an error if something exists at `path` that is not an earlier output of the kind `kind`.

    kind    a kind of output of the program, or a function that recognises an output by the first bytes of its file
    inputs  files and folders that the command reads, which are never replaced

    Raises UsageProblem (output_is_input, output_not_ours), StorageProblem if `path` cannot be examined.
    """
    if not os.path.lexists(path):
        return
    if any(_is_same(path, other) for other in inputs):
        raise UsageProblem(reason("output_is_input", path=path))
    if not is_regular_or_absent(path) or not _is_ours(path, kind):
        raise UsageProblem(reason("output_not_ours", path=path))


def require_outside_data_folder(path: Path) -> None:
    """Raise UsageProblem (output_in_home) if a path is in the program's own data folder."""
    real = Path(os.path.realpath(path))
    if any(_is_same(other, data_folder()) for other in (real, *real.parents)):
        raise UsageProblem(reason("output_in_home", path=path))


def require_inside_folder(path: Path, folder: Path) -> None:
    """Raise StorageProblem (not_plain) if a link leads from a path below `folder` to a path outside the folder."""
    real = Path(os.path.realpath(path))
    if folder.exists() and not any(_is_same(other, folder) for other in (real, *real.parents)):
        raise StorageProblem(reason("not_plain", path=path))


def is_stream(path: Path) -> bool:
    """Return whether `path` is a pipe or a device. A command may write to such a path without any check."""
    return path.is_fifo() or path.is_char_device()


def require_writable_folder(folder: Path, *, create_missing: bool = True) -> None:
    """Raise an error if files cannot be written into a folder. Call this before hours of work.

    create_missing  whether a missing folder is created

    Raises UsageProblem (output_in_home), StorageProblem.
    """
    require_outside_data_folder(folder)
    try:
        if create_missing:
            make_folder(folder, is_private=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise storage_problem(error, folder) from error


@contextlib.contextmanager
def open_output(
    path: Path, kind: OutputKind | IsOwnOutput, *, encoding: str = "utf-8", inputs: Sequence[Path] = ()
) -> Iterator[TextIO]:
    """Yield a text stream for writing a file.

    The file appears at `path` when the `with` block ends. After an error, the written text is discarded.

    path      path of the file; a missing folder is created
    kind      kind of the output, or a function that recognises an earlier output, which may be replaced
    encoding  with "utf-8", file names that are not valid Unicode are written with backslash escapes, as in JSON
    inputs    files and folders that the command reads, which are never replaced

    Raises UsageProblem as `require_writable_output`, StorageProblem (disk_full, not_writable).
    """
    require_writable_output(path, kind, inputs=inputs)
    with writing_atomically(path) as stream:
        text = io.TextIOWrapper(stream, encoding=encoding, errors="backslashreplace", newline="")
        try:
            yield text
        finally:
            text.detach()  # flushes, and leaves `stream` open
        require_writable_output(path, kind, inputs=inputs)  # checked again, because hours may have passed


def write_output(path: Path, kind: OutputKind | IsOwnOutput, data: bytes, *, inputs: Sequence[Path] = ()) -> None:
    """Write bytes to a file, which appears at `path` when it is complete. A missing folder is created.

    kind    kind of the output, or a function that recognises an earlier output, which may be replaced
    inputs  files and folders that the command reads, which are never replaced

    Raises UsageProblem (output_in_home, output_is_input, output_not_ours), StorageProblem.
    """
    require_writable_output(path, kind, inputs=inputs)
    with writing_atomically(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def open_output_folder(path: Path, kind: IsOwnOutput, *, inputs: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a new folder, which appears at `path` when the `with` block ends.

    The folder is discarded if it is empty or if the block raises.

    path    path of the folder. An existing folder is replaced as a whole if `kind` recognises every file in it
    kind    function that recognises a file of such a folder by the file's first bytes
    inputs  files and folders that the command reads, which are never replaced

    Raises UsageProblem as `require_writable_output`, StorageProblem (disk_full, not_writable).
    """
    _require_free_folder(path, kind, inputs)
    temporary = temporary_path(path)
    try:
        make_folder(path.parent, is_private=True)
        temporary.mkdir(mode=PRIVATE_FOLDER_MODE)
        yield temporary
        _require_free_folder(path, kind, inputs)
        if any(temporary.iterdir()):
            replace_folder_atomically(temporary, path)
        elif os.path.lexists(path):
            shutil.rmtree(path)
    except OSError as error:
        raise storage_problem(error, path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _require_free_folder(path: Path, kind: IsOwnOutput, inputs: Sequence[Path]) -> None:
    require_outside_data_folder(path)
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
    """Return whether a file with the first bytes `head` (a few kilobytes) is an output of this program.

    Outputs are reports, JSON lists, and the files of `--maps`. Outputs are often stored next to the images. The next
    run finds these files and must leave them out.
    """
    if _is_lines(head) or head.startswith(_AUDIT_START):
        return True
    # the description of a class map that `--maps` writes
    is_class_map = head.startswith(b'{\n "report": "class map"') and b'\n "model_sha256": "' in head
    if is_class_map or is_audit_table(head) or any(_RECOGNISE[kind](head) for kind in _MAP_KINDS):
        return True
    return any(exporter.is_own_output(head) for exporter in exporters().values())


def is_audit_table(head: bytes) -> bool:
    """Return whether a file with the first bytes `head` is an audit's table of thresholds or of images."""
    return head.startswith(tuple(start.replace(",", mark).encode() for start in _AUDIT_TABLES for mark in ",;"))


def _is_ours(path: Path, kind: OutputKind | IsOwnOutput) -> bool:
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


_RECOGNISE: Final[Mapping[OutputKind, IsOwnOutput]] = {
    "lines": _is_lines,
    "json": lambda head: head.startswith(_JSON_STARTS),
    "html": lambda head: HTML_GENERATOR_TAG.encode() in head,
    "png": lambda head: head.startswith(b"\x89PNG") and b"tEXtSoftware\0fieldray" in head[:512],
    "map": lambda head: head.startswith(CLASS_MAP_NPY_START),
    "comparison": lambda head: head.startswith(b'{\n "comparable": ') and b'\n "similarity_before": ' in head,
    "demo": lambda head: b"Synthetic^" in head and b"Synthetic chest, not a patient" in head,
}


def folder_writer(
    files: Callable[[StoredRun], Generator[tuple[str, bytes]]], is_own: Callable[[bytes], bool]
) -> Callable[[Path, StoredRun], None]:
    """Return a function for `Exporter.write` that writes a folder of files.

    files   generator of the name and content of each file; it is closed at the end and after an error
    is_own  function that returns whether a file with these first bytes is a file of this exporter
    """

    def write(path: Path, stored: StoredRun) -> None:
        with (
            contextlib.closing(files(stored)) as made,
            open_output_folder(path, is_own, inputs=stored.screened_paths) as folder,
        ):
            for name, data in made:
                write_new_file(folder / name, data)

    return write
