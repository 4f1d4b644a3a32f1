"""Our own results are known by their content, and nothing else is taken for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray.domain.run import StoredResult
from fieldray.reports.content import COLUMNS, image_line
from fieldray.reports.exporters.csv import write_csv
from fieldray.reports.exporters.json import write_json
from fieldray.reports.outputs import is_own_report
from outcomes import refused, stored_run


@pytest.fixture
def written(tmp_path: Path) -> dict[str, bytes]:
    """Every kind of file that a run writes, by name."""
    results = [StoredResult(row_id=1, run_id=1, outcome=refused(), is_resumed=False)]
    write_csv(tmp_path / "table", stored_run(results))
    write_json(tmp_path / "document", stored_run(results))
    line = json.dumps(image_line(results[0].outcome, pack="tiny-1.0.0", model_sha256="m" * 64))
    (tmp_path / "lines").write_text(f"{line}\n" * 2)
    return {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["table", "document", "lines"])
def test_what_a_run_writes_is_known(name: str, written: dict[str, bytes]) -> None:
    assert is_own_report(written[name][: 2**15])


def test_a_table_is_known_however_it_was_saved_again() -> None:
    for separator in (",", ";", "\t"):
        for quote in ("", '"'):
            for mark in (b"", b"\xef\xbb\xbf"):
                line = separator.join(f"{quote}{name}{quote}" for name in (*COLUMNS, "a new one"))
                assert is_own_report(mark + line.encode() + b"\r\n1;2;3\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Dear colleague,\n",
        b"path,study,image\n",
        b"study,path," + ",".join(COLUMNS[2:]).encode(),
        b'{"about": {"program": "another"}}',
        b'{"path": "a", "study": "b", "image": "c", "status": "screened"}\n',
        b'{"path": ' + b"[" * 20_000,
        b'"' * 30_000,
        bytes(range(256)) * 8,
        b"a\rb",
        json.dumps(dict.fromkeys(("patient", "status"))).encode(),
    ],
)
def test_nothing_else_is(head: bytes) -> None:
    assert not is_own_report(head)


@given(st.binary() | st.text('\r\n\0",;{}[]:a1\ufeff').map(str.encode))
def test_any_bytes_have_an_answer(head: bytes) -> None:
    """True for the little that the beginning of a report may be, which Hypothesis finds among the program's texts."""
    assert is_own_report(head) in (False, head.startswith(b'{\n "report": "fieldray audit"'))
