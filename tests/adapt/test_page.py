"""HTML reports: escaped texts, readable values, links and print layout; and how a report replaces an earlier one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.files import require_publication_writable, write_published
from fieldray_adapt.reports.page import (
    CodeBlock,
    Figure,
    Paragraph,
    Report,
    Section,
    Table,
    duration_text,
    render_page,
    settings_report_parts,
    value_text,
)
from fieldray_adapt.training.loop import EpochFigures

TRAINED = {
    "input": {"height": 64, "margin": 0.04, "labels": ("a", "b")},
    "seed": 3,
    "data": [{"name": "clean", "where": {"set": ["x"]}, "share": 1.0}, {"name": "small", "share": 0.5}],
    "prune": None,
}


def _html(*parts: Table | Figure | Paragraph | CodeBlock) -> str:
    return render_page(Report(title="A <run>", sections=[Section(title="Size & speed", parts=parts)])).decode()


def test_texts_from_outside_are_escaped_and_plots_are_not() -> None:
    html = _html(
        Paragraph("<b>"),
        Table(column_names=("<i>",), rows=[["<u>"]]),
        CodeBlock("<s> [labels]"),
        Figure(svg="<svg/>", caption="<q>"),
    )
    assert not any(tag in html for tag in ("<b>", "<i>", "<u>", "<s>", "<q>", "<run>"))
    assert "<svg/>" in html and "&lt;s&gt; [labels]" in html
    assert 'href="#size-speed"' in html and 'id="size-speed"' in html and "@media print" in html


def test_columns_of_numbers_are_set_right() -> None:
    table = Table(
        column_names=("name", "images", "share", "note"), rows=[["a", "1,024", "0.5", "x"], ["b", "7", "-", "1"]]
    )
    assert table.numeric_column_indices == {1, 2}
    assert _html(table).count('class="number"') == 6


def test_a_section_without_parts_is_left_out() -> None:
    assert "Pruning" not in render_page(Report(title="A", sections=[Section(title="Pruning", parts=[])])).decode()


def test_settings_become_tables_without_a_raw_dictionary() -> None:
    html = _html(*settings_report_parts(TRAINED))
    assert "{" not in html[html.index("<main>") :] and "None" not in html and "[" not in html[html.index("<main>") :]
    assert "set x" in html and "a, b" in html


def test_values_are_formatted_for_a_person() -> None:
    told = {None: "-", True: "yes", 12345: "12,345", 0.123456: "0.1235", (): "-", "x": "x"}
    assert {value: value_text(value) for value in told} == told
    assert [duration_text(value) for value in (1.25, 125.0, 7384.0)] == ["1.2 s", "2 min 05 s", "2 h 03 min"]


@pytest.mark.parametrize("meaning", ["$x^$", "$\\frac$ of $", "costs $5 or $6", "$"])
def test_a_label_may_be_called_anything(meaning: str) -> None:
    from fieldray_adapt.reports.page import class_map_plots_svg, training_curves_svg

    history = [EpochFigures(epoch=number, epochs=2, loss=1 / number, auc=(0.8,)) for number in (1, 2)]
    assert meaning in training_curves_svg(history, labels=[meaning])
    images, maps = np.zeros((1, 8, 8), np.uint8), np.ones((1, 2, 2), np.float32)
    assert meaning in class_map_plots_svg(images, maps, titles=[meaning])


CONTENT = {
    "cross.json": b'{\n "pack": "tiny 1.0.0"}\n',
    "results.json": b'{\n "study": "quick"}\n',
    "report.html": render_page(Report(title="A study", sections=[])),
}


@pytest.mark.parametrize("name", CONTENT)
def test_only_an_earlier_report_is_replaced(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        write_published(tmp_path / name, CONTENT[name])
    assert (tmp_path / name).read_bytes() == CONTENT[name]
    (tmp_path / name).write_bytes(b"somebody's own")
    for act in (
        lambda: write_published(tmp_path / name, CONTENT[name]),
        lambda: require_publication_writable(tmp_path / name),
    ):
        with pytest.raises(UsageProblem) as problem:
            act()
        assert problem.value.reason.code == "output_not_ours"
    assert (tmp_path / name).read_bytes() == b"somebody's own"
