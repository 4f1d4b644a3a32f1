"""Tools for releases: outdated libraries, the steps of a release, and the results of the steps."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import libraries
import release_check


def test_a_library_unchanged_for_a_year_is_named() -> None:
    table = f"# on 2025-11-28\npytest=={version('pytest')}\nnumpy==0.1\nno-such-library==9.0\n"
    assert libraries.outdated_libraries(table) == [f"pytest {version('pytest')}"]


def test_every_library_of_the_table_is_a_requirement() -> None:
    named = {line.split("==")[0] for line in libraries.TABLE.read_text(encoding="utf-8").splitlines() if "==" in line}
    assert named <= {name.lower() for name in libraries.required_libraries()}


def test_steps_cover_each_python_and_an_update_from_the_last_package() -> None:
    plain = release_check.check_targets(None, {})
    assert "update" not in plain and plain["suite"] == ("test",)
    whole = release_check.check_targets(Path("/srv/old.deb"), {"3.13": Path("/usr/bin/python3.13")})
    assert whole["update"] == ("update", "PREVIOUS=/srv/old.deb")
    assert whole["suite on Python 3.13"] == ("test", "PYTHON=/usr/bin/python3.13", "VENV=build/release/python-3.13")
    makefile = Path(release_check.ROOT, "Makefile").read_text(encoding="utf-8")
    assert [name for name, (target, *_) in whole.items() if f"\n{target}:" not in makefile] == []


def test_the_release_page_lists_passed_failed_and_omitted_steps() -> None:
    done = {
        "suite": {"code": 0, "seconds": 1230, "ended": "2026-11-28T12:00+00:00", "last": "9000 passed"},
        "smoke": {"code": 1, "seconds": 60, "ended": "2026-11-28T13:00+00:00", "last": "a | b"},
    }
    assert release_check.results_page("0123", ["suite", "smoke", "walks"], done).splitlines()[-3:] == [
        "| suite | held | 20 | 2026-11-28T12:00+00:00 | 9000 passed |",
        "| smoke | **failed (1)** | 1 | 2026-11-28T13:00+00:00 | a \\| b |",
        "| walks | not run | | | |",
    ]
