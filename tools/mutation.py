"""Changes the program in one place at a time and asks whether its unit tests notice: `make mutation`, or

    python tools/mutation.py ROOM [MODULE ...] [--minutes N] [--again]

ROOM is one of `MATCHING`, MODULE a file of it (`finding.py`); without one, those of the room where a wrong answer would
hurt most. Only the room's own tests are asked, by mutmut, one at a time and with low priority. A line for each module;
what survived stands as diffs in build/mutation/ROOM/survivors.diff. Each is then killed by a test, or known to be the
same.

mutmut changes no decorated function and nothing outside of functions. Decorators are therefore written as what they
stand for (`area = property(area)`) in the copy that is changed; constants stay as they are.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.runner import say

ROOT: Final = Path(__file__).resolve().parents[1]
WORK: Final = ROOT / "build" / "mutation"
_READ_ONLY: Final = ("assets", "models", "docs", "benchmarks", "tools", "installer")
_TRIED: Final = ("killed", "timeout", "suspicious", "segfault", "survived", "no tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The modules of a package in which a wrong answer would do most harm, and their tests."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


MATCHING: Final[Mapping[str, Room]] = {
    "domain": Room(
        modules=("finding.py", "lungs.py", "model.py", "purpose.py"),
        tests=("tests/unit/domain",),
    ),
    "packs": Room(
        modules=("signing.py", "naming.py", "manifest.py"),
        tests=(
            *(
                f"tests/unit/packs/test_{name}.py"
                for name in ("signing", "naming", "manifest", "verified", "companions")
            ),
            "tests/unit/packs/test_manifest.py::test_the_published_schema_is_the_one_that_the_types_give",
        ),
    ),
    "store": Room(
        modules=("results.py", "rows.py"),
        tests=tuple(f"tests/unit/store/test_{name}.py" for name in ("results", "passes", "history", "taken_over")),
    ),
}


@dataclass(slots=True)
class Result:
    """The mutants of a module: the number of each fate, and the names of those that no test noticed.

    `open` are their names, and those of mutants that were not tried.
    """

    module: str
    counts: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, ...]:
        """Module, and numbers of mutants: all, tried, killed, survived, without a test."""
        tried = sum(self.counts[status] for status in _TRIED)
        killed = tried - self.counts["survived"] - self.counts["no tests"]
        numbers = (self.counts.total(), tried, killed, self.counts["survived"], self.counts["no tests"])
        return (self.module, *map(str, numbers))


def main() -> int:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", choices=MATCHING)
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--again", action="store_true", help="only what the last run left, with the tests of today")
    parser.add_argument("--minutes", type=float, default=60.0, help="what is not tried by then is left out")
    options = parser.parse_args()
    room = MATCHING[options.room]
    modules = tuple(f"{options.room}/{name}" for name in options.modules or room.modules)
    work, left = WORK / options.room, []
    if options.again:
        left = [name for result in _results(work, modules) for name in result.open]
        shutil.copytree(ROOT / "tests", work / "tests", dirs_exist_ok=True)
    else:
        lay(work, modules, room.tests)
    _mutmut(work, "run", *left, limit_s=60 * options.minutes)
    results = _results(work, modules)
    for result in results:
        say("{}: {} mutants, {} tried, {} killed, {} survived, {} without a test".format(*result.row))
    diffs = [_mutmut(work, "show", name, is_read=True) for result in results for name in result.survivors]
    (work / "survivors.diff").write_text("\n".join(diffs), encoding="utf-8")
    return 0


def lay(work: Path, modules: Sequence[str], tests: Sequence[str]) -> None:
    """Copy the checkout to a folder as mutmut needs it, with the modules to change and the tests to run."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(ROOT / "app", work / "src")
    shutil.copytree(ROOT / "tests", work / "tests")
    for name in _READ_ONLY:
        (work / name).symlink_to(ROOT / name)
    for module in modules:
        path = work / "src" / "fieldray" / module
        path.write_text(undecorated(path.read_text(encoding="utf-8")), encoding="utf-8")
    settings = {
        "source_paths": ["src"],
        "only_mutate": [f"src/fieldray/{module}" for module in modules],
        "also_copy": list(_READ_ONLY),
        "pytest_add_cli_args_test_selection": list(tests),
        "pytest_add_cli_args": ["-n", "0"],
    }
    lines = "".join(f"{name} = {value!r}\n" for name, value in settings.items())
    own = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (work / "pyproject.toml").write_text(f"{own}\n[tool.mutmut]\n{lines}", encoding="utf-8")


def undecorated(source: str) -> str:
    """Return equal source code with decorators of functions as assignments. Functions that share a name keep theirs."""
    lines = source.splitlines(keepends=True)
    found = [
        node
        for scope in ast.walk(ast.parse(source))
        if isinstance(scope, ast.Module | ast.ClassDef)
        for node in scope.body
        if isinstance(node, ast.FunctionDef) and node.decorator_list and not _shares_its_name(node)
    ]
    for node in sorted(found, key=lambda each: each.lineno, reverse=True):
        value = node.name
        for decorator in reversed(node.decorator_list):
            value = f"{ast.unparse(decorator)}({value})"
        lines.insert(node.end_lineno or 0, f"{' ' * node.col_offset}{node.name} = {value}\n")
        del lines[node.decorator_list[0].lineno - 1 : node.lineno - 1]
    return "".join(lines)


def _shares_its_name(node: ast.FunctionDef) -> bool:
    """Return whether several definitions share a name, as setters and overloads do."""
    return any(re.search(r"\.setter$|overload$", ast.unparse(decorator)) for decorator in node.decorator_list)


def results_of(text: str, modules: Sequence[str]) -> list[Result]:
    """Parse the results that mutmut lists (`fieldray.packs.trust.x_name__mutmut_1: killed`), by module."""
    results = [Result(module) for module in modules]
    for result in results:
        own = re.escape("fieldray." + result.module.removesuffix(".py").replace("/", "."))
        for name, status in re.findall(rf"^ *({own}\.\S+): (.+)$", text, re.MULTILINE):
            result.counts[status] += 1
            if status in ("survived", "no tests"):
                result.survivors.append(name)
            if status not in _TRIED or name in result.survivors:
                result.open.append(name)
    return results


def _results(work: Path, modules: Sequence[str]) -> list[Result]:
    return results_of(_mutmut(work, "results", "--all", "true", is_read=True), modules)


def _mutmut(work: Path, command: str, *arguments: str, limit_s: float | None = None, is_read: bool = False) -> str:
    """Run mutmut in the copy. Returns its output if `is_read`.

    After `limit_s` seconds mutmut is ended. The mutants tried until then keep their results.
    """
    own = ["--max-children", "1"] if command == "run" else []
    with subprocess.Popen(
        ["nice", "-n", "15", sys.executable, "-P", "-m", "mutmut", command, *own, *arguments],
        cwd=work,
        stdout=subprocess.PIPE if is_read else None,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=limit_s)[0] or ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()
            return ""


if __name__ == "__main__":
    sys.exit(main())
