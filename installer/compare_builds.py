"""Compare two builds: contents, modes and times of all files, and targets of all links must be equal.

    python installer/compare_builds.py FIRST SECOND     (two folders, or two files)

Prints a line for each difference. Exit code 0 if the builds are equal, 1 if they differ.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path


def describe_files(build: Path) -> dict[str, str]:
    """Return a text for each file and link of a build, by path: kind, mode, time and SHA-256, or target of the link.

    If `build` is a single file, only the content counts.
    """
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
    """Return a line for each path that is only in one build, or that differs between the builds."""
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
    """Compare the two builds that the arguments name, and print the differences. Returns the exit code."""
    first, second = (describe_files(Path(argument)) for argument in arguments)
    lines = differences(first, second)
    equal = f"Both builds are equal: {len(first)} files, folders and links\n"
    sys.stdout.write("".join(f"{line}\n" for line in lines) or equal)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
