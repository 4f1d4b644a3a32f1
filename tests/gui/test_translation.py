"""Every visible text has its entry in every catalogue, with the same placeholders; one file adds a language."""

from __future__ import annotations

import argparse
import ast
import logging
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import read_mo
from desk import Desk
from PySide6.QtCore import QLocale
from PySide6.QtWidgets import QApplication, QComboBox, QFileDialog

import translations
from fieldray.cli import command_parser
from fieldray.desktop.application import resolve_language
from fieldray.desktop.dialogs import SettingsDialog
from fieldray.desktop.widgets import ask_for_paths
from fieldray.formatting import format_dicom_date, format_number
from fieldray.reasons import reason
from fieldray.settings import Settings, load_settings
from fieldray.translation import Translator, best_language, languages

PATHS = sorted(translations.CATALOGUES.glob(f"*/{translations.CATALOGUE_PATH.as_posix()}"))

# Written alike in both languages: names of things, commands, file kinds, keys and units.
_SAME = """
AUC ROC abnormal positive our clinic z
    DICOM SR SC SEG PDF PACS FR
    PNG JPEG DICOMDIR Excel zip CSV JSON Fieldray SHA Edge TPU Coral USB Accelerator TensorFlow Lite Ed25519 Ed PEM AVX
    Intel AMD Linux Ctrl N H O E x a f libedgetpu libusb ai edge litert tflite runtime edgetpu compiler edgetpu_compiler
    coral docs udev plugdev cpupower frequency set g performance FIELDRAY_HOME Apache GNU LGPL Qt Python for code qt io
    yes all history compare list
    pack splits weights none learning_rate fieldray adapt RECIPE pip install
    cluster certificates join start workflow sweep out send files tcp tls
    fetch t update measure slowest simulate output plot picture svg png
    mode sync async split server central distributed staleness torch workers PyTorch
    chmod unencrypted task status trials e table uncertain Last Modified
 BY CC COVID Data Goldbaum Image Kermany Mendeley ROC Repository Winther Zhang al et default packs pack fieldray ID
W L R IP Transfer Syntax maps
PPV NPV Photometric Interpretation Bits Stored Patient Orientation FOR PRESENTATION PROCESSING
Rescale Slope Intercept Modality LUT VOI SOP Instance history list
screen Google compile key EfficientNet Enter Esc UID sys class powercap root http https sftp s config fsspec json ETag
Photometric Interpretation Bits Stored Patient Orientation FOR PROCESSING PRESENTATION
"""
SAME_IN_ALL = set(_SAME.split())

# Words that no English text uses because the field has better ones: referred, detected, with the condition; current
# image; results database; constancy test.
_NOT_ENGLISH = (
    r"\b(called|sick|sickest|healthy|told|tells|whose|vouch\w*|files? of (results|pictures)|the open image|"
    r"checks? of constancy|anew|laid over|leans|at hand|somebody else)\b"
)
# Beginnings of sentences that cannot be understood without the sentence before.
_NOT_ALONE = r"^(It|Its|They|Their|Them|Yours|Theirs|This costs|That)\b(?! (computer|image|file|run))"
# висновок is a radiologist's formal report, not a reader's verdict; a folder is тека; one kind of apostrophe, of dash
# and of quotation mark.
_NOT_UKRAINIAN = (
    r"\bвиснов\w+|\bпап(?:к|ок)\w*|\bвиклика(?:но|них|ного|ють)\b|\bщільніш\w*|(?<=[а-яіїєґ])'(?=[а-яіїєґ])|"
    r"[а-яіїєґ] [–-] |\"|\bзі станом\b|\b(?:цій|цієї|обох|попередніх) перевір(?:ці|ки|ках|ок)\b|\bвідкрит\w+ знім\w+"
)
# The help of a command begins with an imperative, so not with these words.
_NOT_IMPERATIVE = r"(a|an|the|of|for|what|who|which|no|how|where|when|\w+ing|\w+[^s]s)\b"


@pytest.fixture(params=PATHS, ids=[path.parent.parent.name for path in PATHS])
def catalogue(request: pytest.FixtureRequest) -> Catalog:
    return translations.read_catalogue(request.param)


def keys(catalogue: Catalog) -> set[tuple[str | None, str | tuple[str, ...]]]:
    return {(message.context, message.id) for message in catalogue if message.id}


def forms(catalogue: Catalog) -> Iterator[tuple[str, str]]:
    """Each translation with the English form that it stands for."""
    for message in catalogue:
        if isinstance(message.id, tuple):
            yield from ((message.id[1], form) for form in message.string)
        elif message.id:
            yield message.id, str(message.string)


def texts(catalogue: Catalog) -> list[tuple[str, ...]]:
    return sorted((_text(m.context), *_all(m.id), *_all(m.string)) for m in catalogue if m.id)


def _text(context: str | bytes | None) -> str:
    """A context, which the reader of .mo files leaves as bytes."""
    return context.decode() if isinstance(context, bytes) else context or ""


def _all(forms: object) -> tuple[str, ...]:
    return tuple(forms) if isinstance(forms, tuple | list) else (str(forms),)


def fields(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name)


def test_a_catalogue_has_every_text_with_its_placeholders(catalogue: Catalog) -> None:
    """A catalogue has every text of the program and no other, in every plural form, with the same placeholders.

    The last plural form stands for any number, so it has every placeholder; a form for one number may use words.
    """
    assert keys(catalogue) == keys(translations.make_template())
    assert [english for english, other in forms(catalogue) if not other] == []
    assert [message.id for message in catalogue if message.id and message.fuzzy] == []
    counted = [message for message in catalogue if isinstance(message.id, tuple)]
    assert {len(message.string) for message in counted} == {catalogue.num_plurals}
    assert [english for english, other in forms(catalogue) if fields(english) != fields(other)] == []


def test_no_text_is_inside_an_f_string() -> None:
    """Before Python 3.12 an f-string is one token, so texts inside it would not be found for the catalogues."""
    found = [
        f"{path.name}:{call.lineno}"
        for path in (translations.ROOT / "app").rglob("*.py")
        for joined in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(joined, ast.JoinedStr)
        for call in ast.walk(joined)
        if isinstance(call, ast.Call)
        and getattr(call.func, "attr", getattr(call.func, "id", "")) in ("text", "plural", "in_context")
        and call.args
        and isinstance(call.args[0], ast.Constant)
    ]
    assert found == []


def test_translations_contain_no_english_words(catalogue: Catalog) -> None:
    left = {
        other: foreign
        for _, other in forms(catalogue)
        if (foreign := set(re.findall(r"[A-Za-z_]+", re.sub(r"\{\w+\}", "", other))) - SAME_IN_ALL)
    }
    assert left == {}


def test_english_texts_use_the_words_of_radiology() -> None:
    texts = [text for message in translations.make_template() if message.id for text in _all(message.id)]
    assert [text for text in texts if re.search(_NOT_ENGLISH, re.sub(r"\{\w+\}", "", text), re.IGNORECASE)] == []


def test_every_english_sentence_can_be_read_alone() -> None:
    texts = [text for message in translations.make_template() if message.id for text in _all(message.id)]
    assert [text for text in texts if re.search(_NOT_ALONE, text)] == []


def helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The help of each command and each option, with the command or option."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (("command", str(each.help)) for each in action._choices_actions)
            for below in action.choices.values():
                yield "command", below.description or "do"
                yield from helps(below)
        else:
            yield "option", str(action.help)


def test_every_help_text_is_an_imperative_in_the_words_of_radiology() -> None:
    found = list(helps(command_parser()))
    assert len(found) > 200
    assert [text for of, text in found if of == "command" and re.match(_NOT_IMPERATIVE, text, re.IGNORECASE)] == []
    assert [text for _, text in found if re.search(_NOT_ENGLISH, text, re.IGNORECASE)] == []


def test_ukrainian_texts_use_the_words_of_radiology() -> None:
    texts = [
        text
        for english, text in forms(
            translations.read_catalogue(translations.CATALOGUES / "uk" / translations.CATALOGUE_PATH)
        )
        if " – " not in english  # a minus sign
    ]
    assert len(texts) > 1000 and [text for text in texts if re.search(_NOT_UKRAINIAN, text, re.IGNORECASE)] == []


@pytest.mark.parametrize("path", PATHS, ids=[path.parent.parent.name for path in PATHS])
def test_the_compiled_catalogue_is_up_to_date(path: Path) -> None:
    """If this fails, `make translations` was forgotten."""
    with path.with_suffix(".mo").open("rb") as file:
        assert texts(read_mo(file)) == texts(translations.read_catalogue(path))


def test_the_font_of_the_window_has_every_letter(qapp: object, catalogue: Catalog) -> None:
    from PySide6.QtGui import QFont, QFontMetrics

    metrics = QFontMetrics(QFont())
    letters = set("".join(other for _, other in forms(catalogue))) - {"\n"}
    assert [letter for letter in sorted(letters) if not metrics.inFontUcs4(ord(letter))] == []


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ("1", "пропущено 1 файл результатів"), ("3", "3 файли результатів"), ("5", "5 файлів результатів"),
        ("11", "11 файлів результатів"), ("21", "21 файл результатів"), ("104", "104 файли результатів"),
    ],
)  # fmt: skip
def test_a_ukrainian_number_has_the_right_plural_form(count: str, said: str) -> None:
    assert said in Translator("uk").reason(reason("own_reports", count=count))


def test_a_number_in_a_reason_has_the_decimal_mark_of_the_language_and_a_name_keeps_its_own() -> None:
    why = reason("measured_own", images=618, auc="0.98", low="0.95", high="0.99")
    assert "0,98 (95 % довірчий інтервал від 0,95 до 0,99)" in Translator("uk").reason(why)
    assert "0.98 (95 % confidence interval 0.95 to 0.99)" in Translator("en").reason(why)
    assert "scan-1.5.zip" in Translator("uk").reason(reason("not_plain", path="scan-1.5.zip"))


def test_an_english_number_has_the_right_plural_form() -> None:
    assert "1 result file of" in reason("own_reports", count=1).text
    assert "2 result files of" in Translator("en").reason(reason("own_reports", count=2))


def test_the_dialog_of_files_is_translated_where_qt_has_no_word(desk: Desk) -> None:
    mode, words = QFileDialog.FileMode.Directory, Translator("uk")
    ask_for_paths(desk.window, "Тека", mode, lambda _paths: None, words)
    dialog = desk.dialog(QFileDialog)
    labels = (QFileDialog.DialogLabel.LookIn, QFileDialog.DialogLabel.FileType)
    assert [dialog.labelText(label) for label in labels] == ["Шукати в:", "Тип файлів:"]
    dialog.close()


# ---- a language that no module of the program knows

POLISH = """
msgid ""
msgstr ""
"Language: pl\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<12 || n%100>14) ? 1 : 2);\\n"

msgid "English"
msgstr "Polski"

msgid "Start"
msgstr "Rozpocznij"

msgid "Normal"
msgstr "Norma {nonsense}"

msgid "Zoom {percent} %"
msgstr "{procent} %"

msgctxt "decimal mark"
msgid "."
msgstr ","

msgctxt "date in numbers"
msgid "{year}-{month}-{day}"
msgstr "{day}.{month}.{year}"
"""


@pytest.fixture
def polish(home: Path) -> Path:
    """The one file that adds Polish: a compiled catalogue in the user's data folder."""
    path = home / "translations" / "pl" / translations.CATALOGUE_PATH.with_suffix(".mo")
    source = home / "pl.po"
    source.write_text(POLISH, encoding="utf-8")
    path.parent.mkdir(parents=True)
    path.write_bytes(translations.compile_catalogue(translations.read_catalogue(source)))
    return path


def test_one_file_adds_a_language(polish: Path, desk: Desk, home: Path) -> None:
    assert languages() == {"en": "English", "pl": "Polski", "uk": "Українська"}
    dialog = SettingsDialog(desk.application.settings, Translator("en"))
    choice = dialog.fields["language"]
    assert isinstance(choice, QComboBox)
    choice.setCurrentIndex(choice.findText("Polski"))
    assert dialog.changed_settings() == {"language": "pl"}
    desk.application.change_settings(dialog.changed_settings())
    dialog.deleteLater()
    assert desk.window.actions_by_name["start"].text().startswith("Rozpocznij")
    assert desk.window.actions_by_name["pause"].text().startswith("Pause")
    assert load_settings(home / "settings.json")[0]["language"] == "pl"
    assert QLocale().language() == QLocale.Language.Polish
    assert resolve_language("pl") == "pl"


def test_numbers_and_dates_are_those_of_the_language(polish: Path) -> None:
    written = {
        code: (format_number(Translator(code), 1234.5, digits=1), format_dicom_date(Translator(code), "20260304"))
        for code in languages()
    }
    assert written == {
        "en": ("1234.5", "2026-03-04"),
        "pl": ("1234,5", "04.03.2026"),
        "uk": ("1234,5", "04.03.2026"),
    }
    assert format_dicom_date(Translator("uk"), "20261399") == "20261399"


def test_a_catalogue_with_other_placeholders_is_not_used(polish: Path) -> None:
    assert Translator("pl").text("Zoom {percent} %", percent=50) == "Zoom 50 %"
    assert Translator("pl").text("Normal") == "Norma {nonsense}"


@pytest.mark.parametrize("content", [b"", b"x" * 40, bytes.fromhex("de120495") + b"\xff" * 60])
def test_a_damaged_catalogue_adds_no_language(
    polish: Path, content: bytes, qapp: QApplication, caplog: pytest.LogCaptureFixture
) -> None:
    whole = polish.read_bytes()
    for damaged in (content, whole[: len(whole) // 2]):
        polish.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            assert "pl" not in languages()
        assert "cannot be read" in caplog.text
        assert Translator("pl").text("Start") == "Start"


def test_a_missing_language_in_the_settings_gives_the_systems_language(polish: Path, home: Path) -> None:
    Settings({"language": "pl"}).save(home / "settings.json")
    polish.unlink()
    settings, problems = load_settings(home / "settings.json")
    assert (settings["language"], len(problems)) == ("system", 1)


@pytest.mark.parametrize(
    ("wanted", "best"),
    [(("uk-UA", "en-GB"), "uk"), (("de-DE", "uk"), "uk"), (("en-US", "uk-UA"), "en"), (("de",), "en"), ((), "en")],
)
def test_the_first_available_language_is_used(wanted: tuple[str, ...], best: str) -> None:
    assert best_language(wanted) == best


def test_a_text_of_a_pack_is_found_by_its_region_then_by_its_language() -> None:
    texts = {"en": "Chest", "pt": "Peito", "pt-BR": "Tórax"}
    assert Translator("pt_BR").pack_text(texts) == "Tórax"
    assert Translator("pt_PT").pack_text(texts) == "Peito"
    assert Translator("pl").pack_text(texts) == "Chest"
