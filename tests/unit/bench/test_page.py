"""Reports as files: whole HTML that needs nothing from outside, SVG that parses, JSON that loads."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fieldray.bench.report import Chart, Points, Report, Series, Table, lines, nice_step, page, svg, write
from fieldray.errors import StorageProblem
from fieldray.reports.content import NOTICE

VOID = {"meta"}


class Balance(HTMLParser):
    """Fails on tags that are not closed in order, and collects attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def chart(kind: str = "lines", values: tuple[float | None, ...] = (1.0, None, 4.0)) -> Chart:
    return Chart(
        title='a < b & "c"',
        kind="bars" if kind == "bars" else "lines",
        x_title="iteration",
        y_title="ms",
        categories=("1", "2", "3"),
        series=(Series("<one>", values), Series("two", (2.0, 3.0, 2.0))),
    )


def report() -> Report:
    table = Table("Times <ms>", ("", "mean"), (("cpu & co", "1.0"), ("edgetpu", "12.5")))
    blocks = (table, Points("Notes", ("a < b",)), chart(), chart("bars"))
    return Report(kind="bench-test", title="Test & try", blocks=blocks, data={"x": [1.5]})


def test_the_page_is_whole_and_needs_nothing_from_outside() -> None:
    text = page(report(), made="today")
    parsed = Balance(text)
    assert text.startswith("<!DOCTYPE html>")
    assert parsed.seen.count("svg") == 2
    assert not {"script", "link", "img", "iframe"} & set(parsed.seen)
    assert not {"src", "href", "srcset"} & {name for name, _ in parsed.attributes}
    assert "url(" not in text and "@import" not in text
    words = " ".join(parsed.words)
    assert NOTICE in words and "cpu & co" in words and "a < b" in words


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_a_chart_is_xml_with_every_value_in_the_frame(kind: str) -> None:
    root = ElementTree.fromstring(svg(chart(kind)))
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title") == 'a < b & "c"'
    _, _, wide, high = map(float, root.attrib["viewBox"].split())
    if kind == "lines":
        lines_drawn = [line.attrib["points"].split() for line in root.iter(f"{space}polyline")]
        # the first series has no value at its second place
        assert [len(points) for points in lines_drawn] == [2, 3]
        places = [tuple(map(float, point.split(","))) for points in lines_drawn for point in points]
        assert all(0 <= x <= wide and 0 <= y <= high for x, y in places)
    else:
        # five bars and two squares of the legend
        assert len(list(root.iter(f"{space}rect"))) == 7


def test_bars_below_zero_hang_from_the_zero_line() -> None:
    root = ElementTree.fromstring(svg(chart("bars", (-2.0, None, 2.0))))
    first, third, *_ = root.iter("{http://www.w3.org/2000/svg}rect")
    # equal lengths, one below the line where the other ends
    assert first.attrib["height"] == third.attrib["height"]
    assert float(first.attrib["y"]) == pytest.approx(float(third.attrib["y"]) + float(third.attrib["height"]), abs=0.2)


@pytest.mark.parametrize(("rough", "nice"), [(0.9, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (0.03, 0.05), (240, 500)])
def test_steps_are_round_numbers(rough: float, nice: float) -> None:
    assert nice_step(rough) == pytest.approx(nice)


@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (None, None, None), (1e-9, 0.0, 0.0), (1e9, -1e9, None)])
def test_strange_values_are_drawn_too(values: tuple[float | None, ...]) -> None:
    for kind in ("lines", "bars"):
        ElementTree.fromstring(svg(chart(kind, values)))


def test_what_is_drawn_above_the_top_is_cut_off() -> None:
    cut = Chart(
        title="t",
        kind="lines",
        x_title="",
        y_title="",
        categories=("1", "2"),
        series=(Series("a", (99.0, 1.0)),),
        top=2.0,
    )
    (line,) = ElementTree.fromstring(svg(cut)).iter("{http://www.w3.org/2000/svg}polyline")
    # at the top margin, not far above it
    assert line.attrib["points"].split()[0].endswith(",16.0")


def test_files(tmp_path: Path) -> None:
    written = write(report(), tmp_path / "new")
    names = ["bench-test.json", "bench-test.html", "bench-test-1.svg", "bench-test-2.svg"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(names)
    data = json.loads(written[0].read_text(encoding="utf-8"))
    assert data["report"] == "bench-test" and data["x"] == [1.5] and data["program"].startswith("fieldray ")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageProblem):
        write(report(), blocked)


def test_on_the_console_columns_are_under_each_other() -> None:
    text = list(lines(report()))
    assert text[1] == "Times <ms>"
    assert [line.rstrip()[-4:] for line in text[2:5]] == ["mean", " 1.0", "12.5"]
    assert text[3].startswith("  cpu & co") and "  - a < b" in text


def test_rows_and_series_must_fit() -> None:
    with pytest.raises(ValueError, match="columns"):
        Table("t", ("a", "b"), (("only one",),))
    with pytest.raises(ValueError, match="categories"):
        chart(values=(1.0,))
