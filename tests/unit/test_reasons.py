from __future__ import annotations

from collections import Counter
from importlib import import_module
from string import Formatter

import pytest

from fieldray.reasons import NON_IDENTIFYING_PARAMETERS, TEMPLATES, Plural, reason, templates_of_subpackages
from fieldray.translation import Translator
from hostile import ALL, forbidden_in


@pytest.mark.parametrize("text", ALL)
def test_a_name_in_a_reason_is_shown_whole_and_on_one_line(text: str) -> None:
    said = reason("nothing_to_screen", path=text).text
    assert forbidden_in(said) == set()
    assert len(said.splitlines()) == 1
    # without its escapes it would name another file, perhaps an existing one
    assert said.count("\\") >= len(forbidden_in(text))


def test_a_long_text_is_cut() -> None:
    assert reason("nothing_to_screen", path="x" * 300).parameters == (("path", "x" * 197 + "..."),)


def test_line_breaks_around_a_librarys_message_are_dropped() -> None:
    assert reason("damaged", detail="not a PNG\n").text == "The file is damaged: not a PNG."


def test_reason_texts_of_all_packages_are_found_and_codes_are_unique() -> None:
    rooms = [import_module(f"fieldray.{room}.reasons").TEMPLATES for room in ("audit", "comparison", "packs", "store")]
    assert all(templates_of_subpackages()[code] == text for room in rooms for code, text in room.items())
    codes = [code for room in (TEMPLATES, *rooms) for code in room]
    assert [code for code, times in Counter(codes).items() if times > 1] == []
    assert reason("audit_few", count=1).text.startswith(
        "The smaller group (with or without the condition) has only 1 score."
    )


def fields_of(code: str) -> set[str]:
    """The names of the placeholders in a reason's sentence."""
    template = {**TEMPLATES, **templates_of_subpackages()}[code]
    texts = (template.one, template.many) if isinstance(template, Plural) else (template,)
    return {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("code", sorted({**TEMPLATES, **templates_of_subpackages()}))
def test_each_parameter_that_may_name_a_patient_is_hidden_with_the_names(code: str) -> None:
    names = fields_of(code)
    why = reason(code, **{name: 7 if name == "count" else f"MARK{name}" for name in names})
    shown, hidden = Translator().reason(why), Translator(hides_names=lambda: True).reason(why)
    for name in names - {"count"} - NON_IDENTIFYING_PARAMETERS:
        assert f"MARK{name}" in shown and f"MARK{name}" not in hidden
    for name in names & NON_IDENTIFYING_PARAMETERS - {"count"}:
        assert f"MARK{name}" in hidden


def test_texts_of_persons_or_files_are_never_declared_harmless() -> None:
    written = {
        "address", "age", "born", "detail", "file", "first", "folder", "image", "known", "label", "missing", "name",
        "names", "path", "paths", "patient", "reference", "rows", "second", "several", "text", "two_labels", "value",
    }  # fmt: skip
    assert not written & NON_IDENTIFYING_PARAMETERS
    codes = ("audit_which_positive", "audit_no_class", "audit_counted_positive", "audit_table_column")
    assert all(fields_of(code) & written for code in codes)
