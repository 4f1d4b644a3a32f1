"""Bars of measured performance: each part has its class's colour, a length by its number, and words."""

from __future__ import annotations

from collections import Counter

import pytest
from desk import texts
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from fieldray.desktop.performance_bars import PerformanceBars, PerformanceBarWidget
from fieldray.desktop.style import colour
from fieldray.domain.finding import Category
from fieldray.reports.performance import BarPart, MeasuredPerformance, PerformanceBar

WITH = PerformanceBar(
    "Per 100 with the finding",
    (BarPart("abnormal", 60, "Flagged"), BarPart("unsure", 40, "Uncertain"), BarPart("normal", 0, "Not flagged")),
)
WITHOUT = PerformanceBar(
    "Per 100 without the finding", (BarPart("unsure", 25, "Uncertain"), BarPart("normal", 75, "Not flagged"))
)
PERFORMANCE = MeasuredPerformance(
    sentence="", title="At another hospital", bars=(WITH, WITHOUT), detailed_sentences=("60 of 100 (50 to 70 %)",)
)


def drawn(strip: PerformanceBarWidget) -> QImage:
    return strip.grab().toImage()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_part_is_as_long_as_its_number_in_the_colour_of_its_class(qtbot: QtBot, theme: str) -> None:
    bars = PerformanceBars(PERFORMANCE, theme)
    qtbot.addWidget(bars)
    bars.resize(400, 200)
    bars.show()
    first, second = bars.findChildren(PerformanceBarWidget)
    for strip, numbers in ((first, {"abnormal": 60, "unsure": 40}), (second, {"unsure": 25, "normal": 75})):
        picture = drawn(strip)
        length = Counter(picture.pixelColor(x, 7).name() for x in range(picture.width()))
        for category, number in numbers.items():
            wide = length[colour(theme, category).name()] / picture.width() * 100
            assert wide == pytest.approx(number, abs=1), category
    none: Category = "normal"
    nothing = drawn(first)
    assert colour(theme, none).name() not in {nothing.pixelColor(x, 7).name() for x in range(nothing.width())}


def test_the_source_of_the_images_is_above_the_bars_and_screen_readers_get_all(qtbot: QtBot) -> None:
    bars = PerformanceBars(PERFORMANCE, "light")
    qtbot.addWidget(bars)
    bars.show()
    assert texts(bars).split("\n") == ["At another hospital", "Per 100 with the finding", "Per 100 without the finding"]
    assert [strip.accessibleName() for strip in bars.findChildren(PerformanceBarWidget)] == [
        "Per 100 with the finding: Flagged 60, Uncertain 40, Not flagged 0",
        "Per 100 without the finding: Uncertain 25, Not flagged 75",
    ]
    assert "60 of 100 (50 to 70 %)" in bars.toolTip()


def test_class_names_are_drawn_next_to_the_numbers_if_they_fit(qtbot: QtBot) -> None:
    """With less room only shapes and numbers are drawn, none of them cut."""
    ends = {}
    for width in (220, 660):
        strip = PerformanceBarWidget(WITH, "light")
        qtbot.addWidget(strip)
        strip.resize(width, strip.sizeHint().height())
        picture, ground = drawn(strip), drawn(strip).pixelColor(width - 1, strip.height() - 1).name()
        columns = [
            x for x in range(width)
            if any(picture.pixelColor(x, y).name() != ground for y in range(20, picture.height()))
        ]  # fmt: skip
        ends[width] = max(columns)
    assert ends[220] < 200 and ends[660] > 220
