"""Whether two builds are the same: the same files with the same content, modes and times, links with the same targets.

    python installer/compare_builds.py FIRST SECOND     (two folders, or two files)

Prints what differs, a line for each; exit code 0 if nothing does, 1 if something does.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path


def contents(build: Path) -> dict[str, str]:
    """Return what must be equal, by path: kind, mode, time and SHA-256. A single file counts with its content only."""
    if build.is_file():
        return {"": hashlib.sha256(build.read_bytes()).hexdigest()}
    found = {}
    for path in sorted(build.rglob("*")):
        name = path.relative_to(build).as_posix()
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            facts = path.stat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = f"{facts.st_mode & 0o777:o} {int(facts.st_mtime)} {digest}"
    return found


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return a line for each path that is in one build only, or differs."""
    lines = [f"only in the first: {name}" for name in first.keys() - second.keys()]
    lines += [f"only in the second: {name}" for name in second.keys() - first.keys()]
    both = first.keys() & second.keys()
    lines += [
        f"differs: {name or 'the file'} ({first[name]} / {second[name]})"
        for name in both
        if first[name] != second[name]
    ]
    return sorted(lines)


def main(arguments: list[str]) -> int:
    """Compare two builds. Returns the exit code."""
    first, second = (contents(Path(argument)) for argument in arguments)
    lines = differences(first, second)
    sys.stdout.write("".join(f"{line}\n" for line in lines) or f"the same: {len(first)} files, folders and links\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
