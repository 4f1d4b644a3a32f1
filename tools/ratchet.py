"""Keep the project small: count lines of code, and pages and words of documents, and compare with `ratchet.txt`.

    python tools/ratchet.py            report each count above its limit; part of `make check`
    python tools/ratchet.py --lower    first lower the limits in ratchet.txt to the present counts

To raise a limit, change `ratchet.txt` by hand and give the reason in the commit message. A merge can leave two limits
for a count in the file (`.gitattributes` allows this). The lower limit is then used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LIMITS_FILE: Final = Path("tools", "ratchet.txt")
_PACKAGES: Final = ("fieldray", "fieldray_adapt", "fieldray_cluster")
_BESIDE: Final = ("benchmarks", "tools", "installer")
_MADE_BY_CODE: Final = "recipe-reference.md"


def count_lines_and_words(root: Path = ROOT) -> dict[str, int]:
    """Return the present counts by name: lines of each package, of tests and of tools; pages and words of documents.

    `root` is the checkout.
    """
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


def parse_limits(text: str) -> dict[str, int]:
    """Parse the lines of `ratchet.txt` (`docs pages: 75`). Returns the limits by name of the count.

    If a name has two limits, the lower is returned. Raises ValueError for a line without a number.
    """
    held: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(":")
        held[name] = min(int(value), held.get(name, int(value)))
    return held


def limits_text(values: Mapping[str, int]) -> str:
    """Return limits as the text of `ratchet.txt`, a line such as `docs pages: 75` for each limit."""
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def lower_limits(held: Mapping[str, int], found: Mapping[str, int]) -> dict[str, int]:
    """Return new limits: for each count of `found`, the lower of the present count and the limit in `held`.

    A count without a limit gets the present count as its limit.
    """
    return {name: min(count, held.get(name, count)) for name, count in found.items()}


def exceeded_limits(held: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Return a message for each count of `found` that is above its limit in `held`, or that has no limit."""
    return [
        f"{name}: {count}, but the limit in {LIMITS_FILE} is {held.get(name, 'missing')}"
        for name, count in found.items()
        if count > held.get(name, -1)
    ]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print each count that is above its limit. With `--lower`, first lower the limits. Returns 1 if any was printed.

    `root` is the checkout.
    """
    parser = argparse.ArgumentParser(description="Compare the size of code and documents with tools/ratchet.txt.")
    parser.add_argument("--lower", action="store_true", help="first lower the limits to the present counts")
    options = parser.parse_args(arguments)
    found, path = count_lines_and_words(root), root / LIMITS_FILE
    held = parse_limits(path.read_text(encoding="utf-8")) if path.exists() else {}
    if options.lower:
        held = lower_limits(held, found)
        path.write_text(limits_text(held), encoding="utf-8")
    lines = exceeded_limits(held, found)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
