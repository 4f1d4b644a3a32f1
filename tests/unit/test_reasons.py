from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest

from fieldray.reasons import TEMPLATES, reason, templates_of_rooms
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


def test_the_sentences_of_rooms_are_found_and_no_code_stands_twice() -> None:
    rooms = [import_module(f"fieldray.{room}.reasons").TEMPLATES for room in ("audit", "comparison", "packs", "store")]
    assert all(templates_of_rooms()[code] == text for room in rooms for code, text in room.items())
    codes = [code for room in (TEMPLATES, *rooms) for code in room]
    assert [code for code, times in Counter(codes).items() if times > 1] == []
    assert reason("audit_few", count=1).text.startswith("Only 1 image of the rarer kind")
