"""Code in the current directory, such as a folder of images from elsewhere, is never run."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fieldray
from fieldray.errors import FieldrayError
from fieldray.paths import program_command
from fieldray.processes.child import Child
from fieldray.processes.wire import Message
from program import python

PACKAGE = Path(fieldray.__file__).parent
ROOT = PACKAGE.parent.parent
NAMES = (
    "json", "struct", "numpy", "pydicom", "PIL", "ai_edge_litert", "pycoral", "fieldray_adapt", "fieldray_cluster",
    "sitecustomize", "usercustomize",
)  # fmt: skip


@pytest.fixture
def strange_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory with modules that leave a mark when they run, and PYTHONPATH naming it in every way."""
    folder = tmp_path / "images"
    package = folder / "fieldray"
    package.mkdir(parents=True)
    files = [*(folder / f"{name}.py" for name in NAMES)]
    files += [package / name for name in ("__init__.py", "__main__.py", "child_main.py", "serving.py", "offline.py")]
    for file in files:
        file.write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nos._exit(77)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", str(folder)]))
    monkeypatch.setenv("PYTHONSTARTUP", str(folder / "json.py"))
    with contextlib.chdir(folder):
        yield folder
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("service", "body"),
    [
        ("fieldray.workers.image_worker:handle", {"call": "image", "value": {"ref": {"path": "json.py"}}}),
        ("fieldray.inference.service:handle", {"call": "open", "value": {}}),
        ("fieldray.inference.coral:handle", {"call": "ask", "value": {"libraries": []}}),
        ("fieldray.bench.machine:handle", {"share": 0.0, "is_irregular": False, "seed": 1}),
    ],
)
def test_no_child_runs_code_from_the_current_directory(
    strange_folder: Path, service: str, body: dict[str, object]
) -> None:
    child = Child(service)
    child.start()
    with contextlib.suppress(FieldrayError):  # an answer in any case: no image, no Edge TPU
        child.call(Message(body), timeout_s=60)
    assert child.is_running
    child.close()


def test_a_program_started_by_the_program_runs_no_code_of_the_directory(strange_folder: Path) -> None:
    done = subprocess.run(program_command("packs", "list"), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"PYTHONPATH": ""},
        {"PYTHONPATH": os.pathsep},
        *(
            pytest.param(own, marks=pytest.mark.skipif(os.name != "posix", reason="a process that begins again"))
            for own in ({"PYTHONPATH": "{folder}/below"}, {"PYTHONUSERBASE": "{folder}"}, {"PYTHONPYCACHEPREFIX": "."})
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", ["-m fieldray", "console script"])
def test_a_program_started_by_a_person_runs_no_code_of_the_directory(
    tmp_path: Path, variables: dict[str, str], start: str
) -> None:
    folder = tmp_path / "images"
    for place in (folder, folder / "below", folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"):
        place.mkdir(parents=True)
        for name in NAMES[:-2]:  # Python reads the last two before any line of the program
            (place / f"{name}.py").write_text("import os\nos._exit(77)\n")
    script = tmp_path / "fieldray"  # as pip writes it
    script.write_text("import re\nimport sys\nfrom fieldray.__main__ import main\nsys.exit(main())\n")
    own = {name: value.format(folder=folder) for name, value in variables.items()}
    own["PYTHONDONTWRITEBYTECODE"] = "1"  # read before any line of the program; lost in a program that restarts itself
    done = subprocess.run(
        [sys.executable, *(["-m", "fieldray"] if start == "-m fieldray" else [script]), "doctor"],
        cwd=folder, env={**os.environ, "FIELDRAY_HOME": str(tmp_path / "home"), **own},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert not [*folder.rglob("*.pyc")]


@pytest.mark.skipif(os.name != "posix", reason="a folder that is in use cannot be removed")
@pytest.mark.skipif(sys.version_info[:3] == (3, 13, 0), reason="Python 3.13.0 cannot import NumPy in such a folder")
def test_a_current_directory_that_was_removed_is_no_error(tmp_path: Path) -> None:
    code = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); "
    done = python(code + "from fieldray.__main__ import main; main()", "packs", "list", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.adapt
@pytest.mark.parametrize("module", ["fieldray_adapt.reports.page"])
def test_matplotlib_reads_no_settings_from_the_current_directory(tmp_path: Path, module: str) -> None:
    """The file has settings of its own, and bytes that are no text."""
    pytest.importorskip("matplotlib")
    (tmp_path / "matplotlibrc").write_bytes(b"font.size: 77\n\xff\xfe\n")
    code = f"import {module}, matplotlib; print(matplotlib.rcParams['font.size'] == 77)"
    done = python(code, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def starts(path: Path) -> Iterator[tuple[int, ast.expr | None]]:
    """Where a file mentions this Python in a command: the line, and the next argument of the command."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.List | ast.Tuple) else []
        for part, after in zip(parts, [*parts[1:], None], strict=False):
            if ast.unparse(part) in ("sys.executable", "executable"):
                yield part.lineno, after


def test_only_one_function_of_the_program_starts_python() -> None:
    mentions = {path.stem: list(starts(path)) for path in PACKAGE.rglob("*.py")}
    assert {name for name, found in mentions.items() if found} - {"paths"} == set()
    isolated = [after for _, after in mentions["paths"] if isinstance(after, ast.Constant)]
    assert [constant.value for constant in isolated] == ["-I"]


def test_tools_start_python_isolated_or_with_a_script() -> None:
    """With -m and -c, Python searches the current directory first; with a script, the folder of that script."""
    careless = [
        f"{path.name}:{line}"
        for folder in ("tools", "installer")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, after in starts(path)
        if isinstance(after, ast.Constant) and after.value not in ("-I", "-P")
    ]
    assert careless == []
