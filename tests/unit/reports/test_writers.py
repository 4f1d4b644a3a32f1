from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.domain.run import StoredResult, Verdict
from fieldray.reports.content import EXPORT_COLUMNS, RESEARCH_ONLY_NOTICE
from fieldray.reports.exporter import ReportOptions
from fieldray.reports.exporters.csv import escape_formula, is_own_csv, write_csv
from fieldray.reports.exporters.json import write_json
from hostile import ALL, forbidden_in
from outcomes import failed, image_ref, refused, screened, stored_run

NAMED = ReportOptions(names_people=True)


def results() -> list[StoredResult]:
    verdict = Verdict(choice="agree", note='=HYPERLINK("http://example.org"),\n"quoted"')
    outcomes = [screened(image_ref("знімок.dcm")), refused(), failed(image_ref("not-unicode-\udcff.dcm"))]
    return [
        StoredResult(result_id=number, row_id=number, run_id=1, outcome=outcome, is_reused=False, verdict=verdict)
        for number, outcome in enumerate(outcomes, 1)
    ]


def test_a_table_reads_back_with_every_column(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.csv"
    write_csv(path, replace(stored_run(results()), options=NAMED))
    head, row, _ = path.read_bytes().decode().split("\r\n", 2)
    assert head == "\ufeff" + ",".join(f'"{name}"' for name in EXPORT_COLUMNS)
    assert row.startswith('"') and row.endswith('"')
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [tuple(row) for row in rows] == [EXPORT_COLUMNS] * 3
    assert rows[0]["path"].endswith("знімок.dcm")
    assert float(rows[0]["score"]) == 0.8
    assert [row["status"] for row in rows] == ["screened", "refused", "failed"]
    assert rows[2]["path"].endswith("not-unicode-\\udcff.dcm")
    assert [file.name for file in path.parent.iterdir()] == ["results.csv"]


def test_spreadsheet_formulas_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    write_csv(path, stored_run(results()))
    with path.open(encoding="utf-8-sig", newline="") as stream:
        notes = [row["reader_note"] for row in csv.DictReader(stream)]
    assert notes == ["'" + '=HYPERLINK("http://example.org"),\n"quoted"'] * 3


@pytest.mark.parametrize("value", [-1.5, 0, None, "", "plain", "a=b"])
def test_other_values_are_not_escaped(value: str | float | None) -> None:
    assert escape_formula(value) == value


def test_a_document_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, replace(stored_run(results()), options=NAMED))
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["about"]["notice"] == RESEARCH_ONLY_NOTICE
    assert [row["status"] for row in document["results"]] == ["screened", "refused", "failed"]
    assert document["results"][2]["path"].endswith("not-unicode-\udcff.dcm")
    write_json(path, stored_run([]))
    assert json.loads(path.read_text(encoding="utf-8"))["results"] == []


def test_a_failed_export_keeps_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    write_csv(path, stored_run(results()))
    before = path.read_bytes()

    def breaking() -> Iterator[StoredResult]:
        yield results()[0]
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        write_csv(path, stored_run(breaking()))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]


SIGNS = "=+-@＝＋－＠"
HIDDEN = ["", " ", "  ", "\u00a0", "\u200b", '"', "'", ' "', "\ufeff", "\u202e"]


def strange_names() -> list[str]:
    """Texts that become formulas where a spreadsheet splits lines by its country's separator."""
    parts = [f"{hidden}{sign}1+1" for sign in SIGNS for hidden in HIDDEN]
    names = [f"x{separator}{part}{separator}y.png" for separator in ",;\t|\n\r" for part in parts]
    return [*parts, *names, "\t1", "\r1", "\n1", 'a";"=1+1', 'a"";=1', "a\r\n=1", ";;=1", ";,\t=1"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_no_cell_is_a_formula_however_the_line_is_split(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "results.csv"
    results = [
        StoredResult(
            result_id=number,
            row_id=number,
            run_id=1,
            outcome=screened(image_ref(name)),
            is_reused=False,
            verdict=Verdict(choice="agree", note=name),
        )
        for number, name in enumerate(strange_names(), 1)
    ]
    write_csv(path, stored_run(results))
    with path.open(encoding="utf-8-sig", newline="") as stream:
        cells = [cell for row in csv.reader(stream, delimiter=delimiter) for cell in row]
    assert len(cells) > len(strange_names())
    begins = tuple(SIGNS)
    assert [cell for cell in cells if cell.lstrip(' \u00a0\u200b\ufeff\u202e"').startswith(begins)] == []
    if delimiter == ",":
        assert [cell for cell in cells if cell.startswith(("\t", "\r", "\n"))] == []


def test_a_table_for_a_country_with_decimal_commas_has_semicolons_and_is_replaced(tmp_path: Path) -> None:
    path, with_comma = tmp_path / "results.csv", ReportOptions(uses_decimal_comma=True)
    write_csv(path, stored_run(results()))
    (plain, *_) = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
    for _ in range(2):
        write_csv(path, replace(stored_run(results()), options=with_comma))
    head = path.read_bytes()
    (row, *_) = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), delimiter=";")
    assert "." in plain["score"]
    assert row["score"] == plain["score"].replace(".", ",")
    assert row.keys() == plain.keys()
    assert {name for name in row if row[name] != plain[name]} <= {
        "score",
        "threshold",
        "unsure_low",
        "unsure_high",
        "decode_ms",
        "inference_ms",
    }
    assert is_own_csv(head) and is_own_csv(head.replace(b";", b","))
    for between in (b",", b";", b"\t"):  # as a spreadsheet saves it, perhaps with additions by a person
        assert not is_own_csv(head.replace(b'"', b"").replace(b";", between))


def test_invisible_and_reordering_characters_are_escaped_and_read_back(tmp_path: Path) -> None:
    hidden = "".join(ALL)
    verdict = Verdict(choice="agree", note=f"знімок {hidden} \u202etxt.exe\x9b1m\u2028 5\u00a0мг")
    result = StoredResult(result_id=1, row_id=1, run_id=1, outcome=refused(), is_reused=False, verdict=verdict)
    path = tmp_path / "results.json"
    write_json(path, replace(stored_run([result], paths=(f"/images/{hidden}",)), options=NAMED))
    text = path.read_text(encoding="utf-8")
    assert forbidden_in(text.replace("\n", "")) == set()
    assert "знімок" in text and "5\u00a0мг" in text
    document = json.loads(text)
    assert document["results"][0]["reader_note"] == verdict.note
    assert document["about"]["paths"] == [f"/images/{hidden}"]
