"""Change the code in one place at a time, and check that a unit test then fails (mutation testing with mutmut).

    make mutation ROOM=domain
    python tools/mutation.py ROOM [MODULE ...] [--minutes N] [--again]

ROOM is a package: domain, packs or store. MODULE is a file of the package (finding.py). Without MODULE, the script
takes the modules in which a mistake would do most harm. Only the unit tests of the package run, with low priority. The
script prints a line for each module. Changes that no test noticed go to build/mutation/ROOM/survivors.diff. Add a test
for each of these changes, unless the changed code does the same.

mutmut skips decorated functions and code outside of functions. In a copy of the code, the script therefore replaces
decorators by assignments (`area = property(area)`). Constants are not changed.
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
WORK_FOLDER: Final = ROOT / "build" / "mutation"
_READ_ONLY: Final = ("assets", "models", "docs", "benchmarks", "tools", "installer")
_TRIED: Final = ("killed", "timeout", "suspicious", "segfault", "survived", "no tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationTarget:
    """The modules of a package in which a mistake would do most harm, and the tests of these modules.

    `modules` are file names, `tests` are arguments for pytest.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]


MUTATION_TARGETS: Final[Mapping[str, MutationTarget]] = {
    "domain": MutationTarget(
        modules=("finding.py", "lungs.py", "model.py", "intended_use.py"), tests=("tests/unit/domain",)
    ),
    "packs": MutationTarget(
        modules=("signing.py", "naming.py", "manifest.py"),
        tests=(
            *(
                f"tests/unit/packs/test_{name}.py"
                for name in ("signing", "naming", "manifest", "verified", "companions")
            ),
            "tests/unit/packs/test_manifest.py::test_the_published_schema_equals_the_one_of_the_types",
        ),
    ),
    "store": MutationTarget(
        modules=("results.py", "rows.py"),
        tests=tuple(f"tests/unit/store/test_{name}.py" for name in ("results", "passes", "history", "taken_over")),
    ),
}


@dataclass(slots=True)
class Result:
    """The results of a module's mutants. A mutant is a copy of the module with one change.

    `counts` is the number of mutants for each status of mutmut. `survivors` names the mutants that no test noticed.
    `open` names the survivors and the mutants that were not tried.
    """

    module: str
    counts: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    @property
    def row(self) -> tuple[str, ...]:
        """Name of the module, then numbers of mutants: all, tried, noticed by a test, not noticed, without a test."""
        tried = sum(self.counts[status] for status in _TRIED)
        killed = tried - self.counts["survived"] - self.counts["no tests"]
        numbers = (self.counts.total(), tried, killed, self.counts["survived"], self.counts["no tests"])
        return (self.module, *map(str, numbers))


def main() -> int:
    """Run mutmut on the modules of the command line, and write the survivors to a file. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", choices=MUTATION_TARGETS)
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    text = "run only the mutants that survived or were not tried in the last run, with the present tests"
    parser.add_argument("--again", action="store_true", help=text)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this number of minutes (default: 60)")
    options = parser.parse_args()
    room = MUTATION_TARGETS[options.room]
    modules = tuple(f"{options.room}/{name}" for name in options.modules or room.modules)
    work, left = WORK_FOLDER / options.room, []
    if options.again:
        left = [name for result in _results(work, modules) for name in result.open]
        shutil.copytree(ROOT / "tests", work / "tests", dirs_exist_ok=True)
    else:
        copy_checkout(work, modules, room.tests)
    _mutmut(work, "run", *left, limit_s=60 * options.minutes)
    results = _results(work, modules)
    for result in results:
        say("{}: {} mutants, {} tried, {} killed, {} survived, {} without a test".format(*result.row))
    diffs = [_mutmut(work, "show", name, is_read=True) for result in results for name in result.survivors]
    (work / "survivors.diff").write_text("\n".join(diffs), encoding="utf-8")
    return 0


def copy_checkout(work: Path, modules: Sequence[str], tests: Sequence[str]) -> None:
    """Copy the checkout to the folder `work`, and write the settings of mutmut to pyproject.toml in the copy.

    `modules` are the files to change, relative to app/fieldray. `tests` are the tests to run.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(ROOT / "app", work / "src")
    shutil.copytree(ROOT / "tests", work / "tests")
    for name in _READ_ONLY:
        (work / name).symlink_to(ROOT / name)
    for module in modules:
        path = work / "src" / "fieldray" / module
        path.write_text(without_decorators(path.read_text(encoding="utf-8")), encoding="utf-8")
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


def without_decorators(source: str) -> str:
    """Replace decorators of functions in Python source code by equivalent assignments. Returns the new source code.

    Functions with a setter or overload decorator are left unchanged.
    """
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
    """Return whether a function has a `.setter` or `overload` decorator, so that another function has the same name."""
    return any(re.search(r"\.setter$|overload$", ast.unparse(decorator)) for decorator in node.decorator_list)


def parse_results(text: str, modules: Sequence[str]) -> list[Result]:
    """Parse the output of `mutmut results`: lines such as `fieldray.packs.trust.x_name__mutmut_1: killed`.

    Returns the results of each of `modules` (`packs/trust.py`), in the given order.
    """
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
    return parse_results(_mutmut(work, "results", "--all", "true", is_read=True), modules)


def _mutmut(work: Path, command: str, *arguments: str, limit_s: float | None = None, is_read: bool = False) -> str:
    """Run a mutmut command in the folder `work`. Returns what mutmut prints if `is_read`, else "".

    mutmut is stopped after `limit_s` seconds; None means no limit. Results of the mutants tried by then are kept.
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
