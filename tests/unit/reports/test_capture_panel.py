"""The text panel below a secondary capture: no text is cut, whatever its length and the image's width."""

from __future__ import annotations

import pytest

from fieldray.reports.dicom_images import _font, _font_for, _lines_of

LONG = (
    "Measured at this operating point on the test part (787 images, 729 patients): sensitivity 68.6 % (59.1–76.7), "
    "specificity 93.7 % (91.4–95.3) (95 % confidence interval).",
    "The colours show which parts of the image influenced the score. The colours do not outline a lesion. "
    "The line is the outline of the lungs as found by the program.",
)


@pytest.mark.parametrize("room", [760, 1240])
@pytest.mark.parametrize("height", [158, 118])
def test_all_lines_fit_into_the_panel(room: int, height: int) -> None:
    lines, size = _lines_of(LONG, room, height)
    assert " ".join(lines) == " ".join(LONG)
    assert all(_font(size).getlength(line) <= room for line in lines)
    assert len(lines) * (size + 7) <= height


def test_a_long_head_gets_a_smaller_font() -> None:
    head = "No signs of tuberculosis flagged   Changes that may be tuberculosis 0.03"
    assert _font_for("Flagged 0.9", 570).size == 34
    assert _font_for(head, 570).getlength(head) <= 570
