from __future__ import annotations

import pytest

from fieldray.reasons import reason
from hostile import ALL, forbidden_in


@pytest.mark.parametrize("text", ALL)
def test_a_name_in_a_reason_is_shown_whole_and_on_one_line(text: str) -> None:
    said = reason("nothing_to_screen", path=text).text
    assert forbidden_in(said) == set()
    assert len(said.splitlines()) == 1
    # without its escapes it would name another file, perhaps one that is there
    assert said.count("\\") >= len(forbidden_in(text))


def test_a_long_text_is_cut() -> None:
    assert reason("nothing_to_screen", path="x" * 300).parameters == (("path", "x" * 197 + "..."),)


def test_line_ends_around_a_librarys_words_are_dropped() -> None:
    assert reason("damaged", detail="not a PNG\n").text == "The file is damaged: not a PNG."
