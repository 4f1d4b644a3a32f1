"""Reading and writing of files in a run folder, publication of files, and digests of inputs.

Files are written whole or not at all. Files of a run folder have the permissions of the user's umask. Published files
are readable by this user alone. A published `.json` file replaces only a published `.json` file; a `.html` file only a
`.html` file. `digest` covers all inputs of a result, so that a stored result is never used for other inputs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldray import persistence
from fieldray.errors import StorageProblem
from fieldray.reasons import reason
from fieldray.reports.outputs import OutputKind, require_writable_output, write_output


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file of a run folder, whole or not at all. Raises StorageProblem (disk full, not writable)."""
    persistence.write_atomically(path, data, mode=persistence.SHARED_FILE_MODE)


def to_builtins(content: object) -> Any:
    """Convert structs, dataclasses, NumPy numbers and paths to dictionaries, lists, numbers and texts, for JSON."""
    return msgspec.to_builtins(
        content, enc_hook=lambda value: value.item() if isinstance(value, np.generic) else str(value)
    )


def json_bytes(content: object) -> bytes:
    """Return an object as indented JSON text in UTF-8, with one value on each line."""
    return json.dumps(to_builtins(content), indent=1).encode()


def write_published(path: Path, data: bytes) -> None:
    """Write a `.json` or `.html` file to a path that the user chose. Raises UsageProblem, StorageProblem."""
    write_output(path, _kind(path), data)


def require_publication_writable(*paths: Path) -> None:
    """Raise UsageProblem or StorageProblem if `write_published` could not write one of the files `paths`.

    Called before a training, so that an unwritable path is reported before hours of work.
    """
    for path in paths:
        require_writable_output(path, _kind(path))


def _kind(path: Path) -> OutputKind:
    return "html" if path.suffix == ".html" else "json"


@contextlib.contextmanager
def remove_on_failure(*paths: Path) -> Iterator[None]:
    """Run a block. If the block raises an exception, remove the files and empty folders that the block has made.

    Only `paths` and their parent folders are removed, and only if they did not exist before the block.
    """
    new = [path for each in paths for path in (each, *each.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in new:
            with contextlib.suppress(OSError):  # a folder that is not empty is kept
                path.rmdir() if path.is_dir() else path.unlink()
        raise


@contextlib.contextmanager
def raise_if_damaged(path: Path) -> Iterator[None]:
    """Run a block that reads the file `path` of a run folder.

    Raises StorageProblem (run_file_damaged) if the block fails because the content of the file is damaged.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as problem:
        raise StorageProblem(reason("run_file_damaged", path=path)) from problem


@contextlib.contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Open a `.npz` file of a run folder, and yield the arrays of the file by name.

    Raises OSError, StorageProblem (run_file_damaged).
    """
    with raise_if_damaged(path), path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        yield arrays


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a `.npz` file of a run folder, whole or not at all. Raises StorageProblem."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content as hexadecimal text; "" if the file cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def digest(*parts: object) -> str:
    """Return a SHA-256, as hexadecimal text, of numbers, texts, arrays, dataclasses and collections of these.

    Equal values have equal digests in every process. The order of entries in a mapping or set does not change the
    digest. Raises TypeError for objects of other types.
    """
    found = hashlib.sha256()
    for part in parts:
        _add(found, part)
    return found.hexdigest()


def _add(hasher: Any, part: object) -> None:
    if isinstance(part, np.ndarray):
        _add_text(hasher, f"array {part.dtype.str} {part.shape}")
        hasher.update(np.ascontiguousarray(part))
    elif is_dataclass(part) and not isinstance(part, type):
        _add_mapping(hasher, {field.name: getattr(part, field.name) for field in fields(part)}, type(part).__name__)
    elif isinstance(part, Mapping):
        _add_mapping(hasher, part, "mapping")
    elif isinstance(part, set | frozenset):
        _add_text(hasher, f"set {sorted(digest(item) for item in part)}")
    elif isinstance(part, tuple | list):
        _add_text(hasher, f"list {len(part)}")
        for item in part:
            _add(hasher, item)
    elif part is None or isinstance(part, bool | int | float | str | Path):
        value = float(part) if isinstance(part, float) else part  # NumPy and Python print floats differently
        _add_text(hasher, f"{'path' if isinstance(part, Path) else type(value).__name__} {value}")
    else:
        raise TypeError(f"no digest of a {type(part).__name__}")


def _add_mapping(hasher: Any, part: Mapping[Any, object], name: str) -> None:
    _add_text(hasher, f"{name} {len(part)}")
    for key in sorted(part):
        _add(hasher, key)
        _add(hasher, part[key])


def _add_text(hasher: Any, text: str) -> None:
    data = text.encode(errors="surrogatepass")
    hasher.update(f"{len(data)}:".encode() + data)
