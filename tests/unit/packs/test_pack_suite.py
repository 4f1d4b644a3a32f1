"""The public suite of packs for other readers: written by its command, with expected results in `expected.json`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fieldray.errors import PackProblem
from fieldray.packs.verified import read_pack

if sys.platform == "win32":
    pytest.skip("it holds links and pipes of POSIX", allow_module_level=True)
import pack_suite


def test_each_pack_of_the_suite_has_its_expected_result(tmp_path: Path) -> None:
    command = [sys.executable, pack_suite.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = json.loads(Path(done.stdout.strip()).read_text(encoding="utf-8"))["packs"]
    assert {path.name for path in tmp_path.iterdir()} == {*expected, pack_suite.EXPECTED}
    assert {name.partition("-")[0] for name in expected} == {"good", "bad", "hostile"}
    wrong = {}
    for name, pack in expected.items():
        try:
            read_pack(tmp_path / pack["folder"])
            found = ("good", None)
        except PackProblem as problem:
            found = ("broken", problem.reason.code)
        if found != (pack["verdict"], pack["reason"]):
            wrong[name] = found
    assert wrong == {}


def test_the_suite_is_not_written_if_a_result_differs(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="good-but-broken"):
        pack_suite.write(tmp_path, {"good-but-broken": ("good", "no id", pack_suite.without("id"))})
