"""House rules that no linter checks: length of modules and functions, names, and imports between packages."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks
import fieldray
from fieldray.command_names import OPTIONAL_PACKAGES
from fieldray.imaging.synthetic import write_studies
from program import python, write_images
from tiny_packs import fingerprint, write_tiny_pack

PACKAGE = Path(fieldray.__file__).parent
BENCHMARKS = Path(benchmarks.__file__).parent
ROOT = BENCHMARKS.parent
PROGRAM = sorted(path for name in ("fieldray", *OPTIONAL_PACKAGES) for path in (PACKAGE.parent / name).rglob("*.py"))
MODULES = sorted([*PROGRAM, *BENCHMARKS.rglob("*.py")])
LONGEST_MODULE, LONGEST_FUNCTION = 630, 52
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}

# Runs in every Python process of the program: absent packages cannot be imported, and a socket ends the process.
FENCE = """
import os, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def audit(event, arguments):
    if event in ("socket.__new__", "socket.connect", "socket.bind"):
        os.write(2, f"opened a socket: {{event}} {{arguments}}".encode())
        os._exit(99)

sys.meta_path.insert(0, Absent())
sys.addaudithook(audit)
"""


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def test_the_package_was_found() -> None:
    assert len(MODULES) > 50


def test_modules_and_functions_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}
    spans = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert {name: span for name, span in spans.items() if span > LONGEST_FUNCTION} == {}


def test_the_program_does_not_import_the_benchmarks() -> None:
    """The installed program works without the benchmarks, which measure it from outside."""
    named = re.compile(r"^\s*(from|import) benchmarks\b|[\"']benchmarks\.", re.MULTILINE)
    assert [path for path in PROGRAM if named.search(path.read_text(encoding="utf-8"))] == []
    assert named.search('import_module("benchmarks.program")') and named.search("from benchmarks import archive")


def test_names_say_what_a_module_is_for() -> None:
    words = {path: set(path.stem.split("_")) | set(path.parent.name.split("_")) for path in MODULES}
    assert [path for path, parts in words.items() if parts & VAGUE_NAMES] == []


def test_package_files_are_empty() -> None:
    assert [path for path in MODULES if path.name == "__init__.py" and path.read_text().strip()] == []


def test_no_module_calls_print() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert calls == []


def test_public_functions_have_docstrings() -> None:
    """The window's package is left out, because its widgets override Qt's methods."""
    bare = []
    for path in MODULES:
        if "desktop" in path.parts:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            is_public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if is_public and not ast.get_docstring(node):
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert bare == []


@pytest.fixture
def fenced(tmp_path: Path) -> dict[str, str]:
    """An environment in which PySide6 and TensorFlow are not installed and no socket can be opened."""
    folder = tmp_path / "fence"
    folder.mkdir()
    absent = ("PySide6", "shiboken6", "tensorflow", "keras", "torch")
    (folder / "sitecustomize.py").write_text(FENCE.format(absent=absent))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_the_fence_blocks_sockets_and_absent_packages(fenced: dict[str, str]) -> None:
    assert "No module named 'PySide6'" in python("import PySide6", environment=fenced).stderr
    assert python("import socket; socket.socket()", environment=fenced).returncode == 99


def test_every_package_but_the_window_can_be_imported_with_the_core_requirements(fenced: dict[str, str]) -> None:
    names = [module.name for module in pkgutil.walk_packages([str(PACKAGE)], "fieldray.")]
    rooms = [name for name in names if not name.startswith("fieldray.desktop")]
    if sys.platform != "win32":
        rooms = [name for name in rooms if not name.endswith("_windows")]
    assert "fieldray.pipeline.session" in rooms
    code = "import importlib, sys; from fieldray.offline import stay_offline; stay_offline()"
    code += "\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = python(code, *rooms, environment=fenced)
    assert done.returncode == 0, done.stderr


def test_screening_needs_no_qt_no_tensorflow_and_no_socket(tmp_path: Path, fenced: dict[str, str]) -> None:
    pack = write_tiny_pack(tmp_path / "packs")
    write_images(tmp_path / "images", 2)
    write_studies(tmp_path / "images", count=1)
    code = "import sys; from fieldray.__main__ import main; sys.exit(main(sys.argv[1:]))"
    done = python(
        code, "screen", tmp_path / "images", "--pack", pack, "--trust", fingerprint(pack), "--json", "-",
        environment=fenced,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"status": "screened"') == 3


def test_help_is_quick_because_it_imports_almost_nothing() -> None:
    heavy = {"numpy", "pydicom", "PIL", "sqlite3", "cryptography", "psutil", "ai_edge_litert", "PySide6", "tensorflow"}
    code = "import sys; from fieldray.__main__ import main; main(['screen', '--help']); print(sorted(sys.modules))"
    done = python(code)
    assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stdout.splitlines()[-1]))
    assert loaded & heavy == set()
    assert "usage: fieldray screen" in done.stdout
