"""What is published goes through the door for outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.files import publish, require_publishable
from fieldray_adapt.page import Report, page

CONTENT = {
    "cross.json": b'{\n "pack": "tiny 1.0.0"}\n',
    "results.json": b'{\n "study": "quick"}\n',
    "report.html": page(Report(title="A study", sections=[])),
}


@pytest.mark.parametrize("name", CONTENT)
def test_an_earlier_one_is_replaced_and_nothing_else(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        publish(tmp_path / name, CONTENT[name])
    assert (tmp_path / name).read_bytes() == CONTENT[name]
    (tmp_path / name).write_bytes(b"somebody's own")
    for act in (lambda: publish(tmp_path / name, CONTENT[name]), lambda: require_publishable(tmp_path / name)):
        with pytest.raises(UsageProblem) as problem:
            act()
        assert problem.value.reason.code == "output_not_ours"
    assert (tmp_path / name).read_bytes() == b"somebody's own"
