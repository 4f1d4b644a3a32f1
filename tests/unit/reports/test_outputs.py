"""Output files: the program recognises its own earlier files by their content and replaces no others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fieldray.domain.run import StoredResult
from fieldray.errors import UsageProblem
from fieldray.reports.content import EXPORT_COLUMNS, image_result_values
from fieldray.reports.exporters.csv import is_own_csv, write_csv
from fieldray.reports.exporters.json import is_own_json, write_json
from fieldray.reports.outputs import (
    IsOwnOutput,
    OutputKind,
    is_own_report,
    open_output,
    require_writable_output,
    write_output,
)
from outcomes import refused, screened, stored_run


def refusal(path: Path, kind: OutputKind | IsOwnOutput = "lines", *inputs: Path) -> str | None:
    try:
        require_writable_output(path, kind, inputs=inputs)
    except UsageProblem as problem:
        return problem.reason.code
    return None


def image_file(folder: Path) -> Path:
    Image.new("L", (64, 64)).save(folder / "image.png")
    return folder / "image.png"


def own_lines(path: Path) -> Path:
    line = json.dumps(image_result_values(screened(), pack="p", model_sha256="0"))
    path.write_text(f"{line}\n" * 2)
    return path


def test_a_new_name_and_an_earlier_output_may_be_written(tmp_path: Path) -> None:
    assert refusal(tmp_path / "new") is None
    assert refusal(own_lines(tmp_path / "lines")) is None and is_own_report((tmp_path / "lines").read_bytes())
    (tmp_path / "empty").touch()
    assert refusal(tmp_path / "empty") is None


def test_an_input_file_is_refused_under_all_its_names(tmp_path: Path) -> None:
    image = image_file(tmp_path)
    assert refusal(image, "lines", image) == "output_is_input"
    assert refusal(tmp_path / "." / "image.png", "lines", image) == "output_is_input"
    if sys.platform != "win32":
        (tmp_path / "hard").hardlink_to(image)
        assert refusal(tmp_path / "hard", "lines", image) == "output_is_input"
        (tmp_path / "soft").symlink_to(image)
        assert refusal(tmp_path / "soft", "lines", image) == "output_is_input"
        empty = tmp_path / "empty.dcm"
        empty.touch()
        assert refusal(empty, "lines", empty) == "output_is_input"


@pytest.mark.parametrize("kind", [is_own_csv, is_own_json, "lines", "json", "html", "png", "demo"])
def test_a_file_not_written_by_the_program_is_refused(tmp_path: Path, kind: OutputKind | IsOwnOutput) -> None:
    image = image_file(tmp_path)
    assert refusal(image, kind) == "output_not_ours"
    texts = ["path,result\n", '{"name": "mine"}\n', '{"path": "a"}\n', "<html>", "<svg ></svg>", "[" * 70_000, "\0"]
    for number, text in enumerate(texts):
        place = tmp_path / f"file{number}"
        place.write_text(text)
        assert refusal(place, kind) == "output_not_ours", text[:20]
    assert refusal(tmp_path, kind) == "output_not_ours"


def test_nothing_is_written_into_the_programs_own_folder(home: Path, tmp_path: Path) -> None:
    (home / "results.sqlite").write_bytes(b"SQLite format 3\0")
    for place in (home / "results.sqlite", home / "new.json", home / "deep" / "new.json", home):
        assert refusal(place) == "output_in_home"
    if sys.platform != "win32":
        (tmp_path / "way").symlink_to(home)
        assert refusal(tmp_path / "way" / "results.sqlite") == "output_in_home"


@pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")
def test_a_link_is_refused_even_to_an_own_output(tmp_path: Path) -> None:
    own_lines(tmp_path / "lines")
    (tmp_path / "link").symlink_to(tmp_path / "lines")
    assert refusal(tmp_path / "link") == "output_not_ours"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert refusal(tmp_path / "dangling") == "output_not_ours"


def test_a_file_created_under_the_name_during_writing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with pytest.raises(UsageProblem), open_output(path, "lines") as stream:
        stream.write("something")
        path.write_text("precious")
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


RESULTS = [StoredResult(result_id=1, row_id=1, run_id=1, outcome=refused(), is_reused=False)]
WRITERS: dict[str, Callable[[Path], None]] = {
    "csv": lambda path: write_csv(path, stored_run(RESULTS)),
    "json": lambda path: write_json(path, stored_run(RESULTS)),
    "bytes": lambda path: write_output(path, "json", b'{\n "pack": "a"}'),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_an_export_replaces_its_own_earlier_file_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "export"
    WRITERS[kind](path)
    WRITERS[kind](path)
    assert is_own_report(path.read_bytes()[: 2**15]) == (kind != "bytes")
    image = image_file(tmp_path)
    before = image.read_bytes()
    with pytest.raises(UsageProblem):
        WRITERS[kind](image)
    assert image.read_bytes() == before
    assert sorted(place.name for place in tmp_path.iterdir()) == ["export", "image.png"]


# ---- recognised by their content


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"Dear colleague,\n",
        b"path,study,image\n",
        b"\xef\xbb\xbf" + ";".join(EXPORT_COLUMNS).encode() + b"\r\n1;2;3\r\n",  # saved again by a spreadsheet
        b"study,path," + ",".join(EXPORT_COLUMNS[2:]).encode(),
        b'{"about": {"program": "another"}}',
        b'{"path": "a", "study": "b", "image": "c", "status": "screened"}\n',
        b'{"path": ' + b"[" * 20_000,
        b'"' * 30_000,
        bytes(range(256)) * 8,
        b"a\rb",
        json.dumps(dict.fromkeys(("patient", "status"))).encode(),
    ],
)
def test_other_content_is_not_recognised_as_own_output(head: bytes) -> None:
    assert not is_own_report(head)


@given(st.binary() | st.text('\r\n\0",;{}[]:a1\ufeff').map(str.encode))
def test_recognising_own_output_never_raises(head: bytes) -> None:
    """Hypothesis finds the few beginnings of reports among the program's texts, for which the answer is True."""
    assert is_own_report(head) in (False, head.startswith(b'{\n "report": "fieldray audit"'))
