"""Hold the size of the project: counts may fall, and rise only in a commit that says so. `make check` compares, and

    python tools/ratchet.py --lower

writes today's counts in place of higher ones. A count that must grow is raised in `ratchet.txt` by hand, and the commit
says why. If a merge leaves two values of a count (`.gitattributes` allows it), the lower one holds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HELD: Final = Path("tools", "ratchet.txt")
_PACKAGES: Final = ("fieldray", "fieldray_adapt", "fieldray_cluster")
_BESIDE: Final = ("benchmarks", "tools", "installer")
_MADE_BY_CODE: Final = "recipe-reference.md"


def counts(root: Path = ROOT) -> dict[str, int]:
    """Return each count by its name: lines of a package, lines of tests and tools, pages and words of documents."""
    found: dict[str, int] = {}
    for package in _PACKAGES:
        paths = list(_modules(root / "app" / package))
        if paths:
            found[f"{package} lines"] = sum(map(_lines, paths))
    found["tests lines"] = sum(map(_lines, _modules(root / "tests")))
    found["benchmarks, tools, installer lines"] = sum(
        _lines(path) for name in _BESIDE for path in _modules(root / name)
    )
    pages = [path for path in (root / "docs").rglob("*.md") if path.name != _MADE_BY_CODE]
    found["docs pages"] = len(pages)
    found["docs words"] = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    return found


def _modules(folder: Path) -> Iterator[Path]:
    return folder.rglob("*.py")


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def read(text: str) -> dict[str, int]:
    """Parse the values of `ratchet.txt` (`docs pages: 75`); of two values the lower one. Raises ValueError for other
    lines.
    """
    held: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(":")
        held[name] = min(int(value), held.get(name, int(value)))
    return held


def written(values: Mapping[str, int]) -> str:
    """Return the values as text."""
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def lowered(held: Mapping[str, int], found: Mapping[str, int]) -> dict[str, int]:
    """Return the lower value of each count, and today's value of a new count."""
    return {name: min(count, held.get(name, count)) for name, count in found.items()}


def risen(held: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Return a line for each count above its value, or without a value."""
    return [
        f"{name}: {count}, but {HELD} holds {held.get(name, 'no value')}"
        for name, count in found.items()
        if count > held.get(name, -1)
    ]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Compare the counts, or lower the values first. Returns 1 if a count has risen."""
    parser = argparse.ArgumentParser(description="Hold the size of the house.")
    parser.add_argument("--lower", action="store_true", help="hold today's counts where they are lower")
    options = parser.parse_args(arguments)
    found, path = counts(root), root / HELD
    held = read(path.read_text(encoding="utf-8")) if path.exists() else {}
    if options.lower:
        held = lowered(held, found)
        path.write_text(written(held), encoding="utf-8")
    lines = risen(held, found)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
