"""PDF reports: complete content in both languages, for patients' names of any script and length."""

from __future__ import annotations

import contextlib
import datetime
import io
import itertools
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from PIL import Image

from fieldray.domain.finding import Category, RefusedOutcome, ScreenedOutcome
from fieldray.domain.lungs import LungMeasurement
from fieldray.domain.run import StoredResult, SupersededVerdict, Verdict
from fieldray.reasons import reason
from fieldray.reports.document import shorten
from fieldray.reports.exporter import ReportOptions, is_own_pdf, uid_alias
from fieldray.reports.exporters.pdf import write_pdf
from fieldray.reports.exporters.pdf_studies import EXPORTER as STUDIES
from fieldray.reports.pdf_document import Column, Document
from fieldray.reports.pdf_fonts import (
    FONT_FAMILY,
    Align,
    FullyEmbeddedFont,
    MethodReturnValue,
    break_lines,
    escape_missing_letters,
    standard_fonts,
)
from fieldray.reports.performance import BarPart, MeasuredPerformance, PerformanceBar
from fieldray.reports.wording import Wording
from fieldray.translation import Translator
from outcomes import failed, image_ref, refused
from pairs import compared_with
from report_programs import needs, pdf_text
from report_programs import said as printed
from report_runs import KEY, NAMES, results_of, run_with, with_header

LANGUAGES = ("en", "uk")
NOON_S = datetime.datetime(2026, 11, 29, 12).timestamp()
NOTICES = {
    "en": "Research use only. Not for diagnostic use.",
    "uk": "Лише для досліджень. Не для діагностики.",
}


def called(outcome: ScreenedOutcome, name: str, number: str = "7") -> ScreenedOutcome:
    return with_header(outcome, patient_name=name, patient_id=number)


def only(folder: Path) -> Path:
    """The only document in a folder."""
    (path,) = folder.iterdir()
    return path


def streams(data: bytes, *, within: bytes = b" Td ") -> Iterator[bytes]:
    """The drawing streams of the pages without fonts and pictures; or the parts that contain `within`."""
    for found in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S):
        stream = found[1]
        with contextlib.suppress(zlib.error):
            stream = zlib.decompress(stream)
        if within in stream:
            yield stream


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_document_is_tagged_and_states_its_language(language: str, one: ScreenedOutcome, tmp_path: Path) -> None:
    path = tmp_path / "run.pdf"
    results = [*results_of([one]), *results_of([refused(), failed()])]  # type: ignore[list-item]
    write_pdf(path, run_with(results, options=ReportOptions(language=language)))
    data = path.read_bytes()
    assert is_own_pdf(data)
    assert f"/Lang ({language})".encode() in data
    assert b"/MarkInfo" in data
    assert b"/S /H1" in data
    assert b"/DisplayDocTitle true" in data
    assert b"/FontFile2" in data  # embedded fonts
    drawn = b"".join(streams(data))
    assert drawn.count(b"BDC") + drawn.count(b"BMC") == drawn.count(b"EMC") > 20


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_run_document_has_all_its_texts(language: str, one: ScreenedOutcome, tmp_path: Path) -> None:
    path = tmp_path / "run.pdf"
    results = [*results_of([one]), *results_of([refused(), failed()])]  # type: ignore[list-item]
    counts = {"abnormal": 1, "refused": 1, "failed": 1}
    stored = run_with(results, options=ReportOptions(language=language), counts=counts)
    write_pdf(path, stored)
    text = pdf_text(path)
    assert text.count(NOTICES[language]) == 3  # at the top, and at the foot of two pages
    assert "m" * 64 in text.replace(" ", "")  # with a line break, because no real hash has this text
    assert "tiny-1.0.0" in text
    assert "lungs-1.0.0 0123456789ab" in text
    expected = {
        "en": (
            "Flagged: 1",
            "90.0 % (80.0–95.0)",
            "Not a frontal view",
            "0.80",
            "pseudonyms",
            "Name, signature, date",
            "Folder FI-",
        ),
        "uk": ("Позначено: 1", "90,0 % (80,0–95,0)", "0,80", "псевдонім", "Підпис, прізвище, дата"),
    }
    for said in expected[language]:
        assert said in text


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_study_document_has_all_its_texts(language: str, one: ScreenedOutcome, tmp_path: Path) -> None:
    person = called(one, "Шевченко^Тарас^Григорович-Довгопол", "UA-2026-000123456789")
    results = results_of([person], verdict=Verdict(choice="disagree", note="тінь ребра", given_s=NOON_S))
    options = ReportOptions(language=language, names_people=True, reader_name="Dr Reader")
    STUDIES.write(tmp_path / "s", run_with(results, options=options))
    text = pdf_text(only(tmp_path / "s"))
    assert b"/Count 1" in only(tmp_path / "s").read_bytes()
    assert text.count(NOTICES[language]) == 1
    said = {
        "en": (
            "Flagged",
            "0.80",
            "Operating point “screening”: threshold 0.50",
            "right lung 13.0 %",
            "Verdict of the reader: Disagree · Dr Reader · 2026-11-29 12:00",
        ),
        "uk": (
            "Позначено",
            "Робоча точка «screening»: поріг 0,50",
            "13,0 %",
            "Оцінка лікаря: Незгода · Dr Reader · 29.11.2026 12:00",
        ),
    }[language]
    for words in (*said, "Шевченко Тарас", "тінь ребра"):
        assert words in text, text
    assert one.facts.content_sha256 in text.replace(" ", "")  # on two lines


@needs("pdftotext", "qpdf")
def test_an_image_without_a_patient_is_headed_by_its_file_name(one: ScreenedOutcome, tmp_path: Path) -> None:
    results = results_of([called(one, "", "")])
    STUDIES.write(tmp_path / "s", run_with(results, options=ReportOptions(names_people=True)))
    assert "Not for diagnostic use. one.dcm" in pdf_text(only(tmp_path / "s"))


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_prior_image_that_was_compared_is_named(language: str, one: ScreenedOutcome, tmp_path: Path) -> None:
    one = with_header(one, study_date="20240405", patient_id="PX-1")
    other = compared_with(
        one, similarity=None, regions=(), not_comparable_reason=reason("compare_unlike"), patient_match="unknown"
    )
    pairs = compared_with(one), other, compared_with(one, current_sha256="f" * 64)
    options = ReportOptions(language=language, prior_comparisons=pairs)
    STUDIES.write(tmp_path / "s", run_with(results_of([one]), options=options))
    text = " ".join(pdf_text(only(tmp_path / "s")).split())
    said = {
        "en": (
            "Compared with a prior image", "2021-02-05 · 3 years 2 months earlier", "0.83",
            "1. Denser in the current image: difference 5.0 times the noise, area 0.5 % of the image",
            "The images are not comparable.",
            "The program cannot tell whether both images show the same patient", "not show the course of a disease",
        ),
        "uk": (
            "Порівняно з попереднім знімком", "05.02.2021 · на 3 роки 2 місяці раніше", "0,83",
            "Знімки не можна порівняти.",
            "не показують перебігу хвороби",
        ),
    }[language]  # fmt: skip
    for words in (*said, uid_alias("1.2.840.7.3", key=KEY)):
        assert words in text, text
    assert "1.2.840.7.3" not in text
    assert text.count("2021") == 2


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_drawn_or_escaped(name: str, one: ScreenedOutcome, tmp_path: Path) -> None:
    options = ReportOptions(names_people=True)
    STUDIES.write(tmp_path / "s", run_with(results_of([called(one, name)]), options=options))
    assert NAMES[name] in pdf_text(only(tmp_path / "s"))
    write_pdf(tmp_path / "run.pdf", run_with(results_of([called(one, name)]), options=options))
    assert NAMES[name].split(" ", maxsplit=1)[0] in pdf_text(tmp_path / "run.pdf")


@pytest.mark.parametrize("text", ["x" * 10_000, "word " * 3000, "\n" * 500, "", "\u202e" * 900, "=1+1"])
def test_texts_of_any_length_stay_within_the_page(text: str, one: ScreenedOutcome, tmp_path: Path) -> None:
    results = results_of([called(one, text, text)], verdict=Verdict(choice="agree", note=text))
    options = ReportOptions(names_people=True)
    STUDIES.write(tmp_path / "s", run_with(results, options=options))
    write_pdf(tmp_path / "run.pdf", run_with(results, options=options))
    for path in (only(tmp_path / "s"), tmp_path / "run.pdf"):
        assert b"/Count 1" in path.read_bytes() or b"/Count 2" in path.read_bytes() or b"/Count 3" in path.read_bytes()


@needs("pdftotext")
def test_columns_of_the_list_never_touch(one: ScreenedOutcome, tmp_path: Path) -> None:
    """At least two millimetres stay free, also after a name that cannot be broken."""
    named = called(replace(one, ref=replace(one.ref, zip_member="m" * 200)), "N" * 90, "")
    write_pdf(tmp_path / "run.pdf", run_with(results_of([named]), options=ReportOptions(names_people=True)))
    last_page = printed("pdftotext", "-bbox", tmp_path / "run.pdf", "-").rpartition("<page")[2]
    words = re.findall(r'xMin="(.+?)" .*xMax="(.+?)" .*>(.+)</word>', last_page)
    starts = {text: float(left) for left, _, text in words}
    for letter, next_text in (("N", "2024-01-02"), ("m", "Flagged")):
        ends = [float(right) for _, right, text in words if set(text) == {letter}]
        assert len(ends) > 1
        assert max(ends) + 2 / 25.4 * 72 < starts[next_text]


def test_missing_parts_of_a_run_are_named_in_the_reports_language() -> None:
    verdict = SupersededVerdict(
        image_key="/a.dcm", content_sha256="c" * 64, category="normal", score=0.1,
        verdict=Verdict(choice="agree"),
    )  # fmt: skip
    options = ReportOptions(language="uk", names_people=True)
    stored = run_with([], options=options, absent_images=("/b.dcm",), superseded_verdicts=(verdict, verdict))
    assert Wording(stored).run_remarks() == (
        "Файлу 1 знімка цього сеансу вже немає. Результат збережено, але в переліку його більше не показано.",
        "2 оцінки лікаря дано щодо результатів, які відтоді змінилися. Ці оцінки є в експорті JSON.",
    )


def test_a_study_document_has_all_images_of_its_patient(one: ScreenedOutcome, tmp_path: Path) -> None:
    """Whatever images stand between them in the work list."""
    people = [called(one, name, number="") for name in ("Alpha^Anna", "Beta^Boris", "Alpha^Anna")]
    for name, images in (("s", [one, with_header(one, study_instance_uid="1.2.3.4"), one]), ("p", people)):
        STUDIES.write(tmp_path / name, run_with(results_of(images)))
        pages = sorted(re.findall(rb"/Count (\d)", path.read_bytes())[0] for path in (tmp_path / name).iterdir())
        assert pages == [b"1", b"2"]


@pytest.mark.parametrize("is_named", [True, False])
def test_a_document_is_named_by_patient_and_day(is_named: bool, one: ScreenedOutcome, tmp_path: Path) -> None:
    """Two studies of a day get two names. No name leaves the folder, is reserved by Windows or looks like an option."""
    people = ("Шевченко^Тарас", "шевченко^тарас", "../Con", "a" * 400, "", "--rf")
    dates = ("20260314", "20260314", "../../ab", *["20260314"] * 3)
    results = []
    for number, (name, day) in enumerate(zip(people, dates, strict=True)):
        results.append(with_header(called(one, name, ""), study_date=day, study_instance_uid=f"1.2.{number}"))
    STUDIES.write(tmp_path / "s", run_with(results_of(results), options=ReportOptions(names_people=is_named)))
    names = {path.stem for path in (tmp_path / "s").iterdir()}
    assert len(names) == len(people)
    if is_named:
        assert names >= {"Шевченко Тарас 2026-03-14", "шевченко тарас 2026-03-14 (2)", ".._Con", "one.dcm 2026-03-14"}
        assert "_--rf 2026-03-14" in names
    else:
        assert all(re.fullmatch("FR-[A-Z2-7]{10}( 2026-03-14)?", name) for name in names)


def test_a_missing_image_is_shown_by_its_stored_preview(one: ScreenedOutcome, tmp_path: Path) -> None:
    one.ref.path.unlink()
    STUDIES.write(tmp_path / "s", run_with(results_of([one])))
    assert b"/Subtype /Image" in only(tmp_path / "s").read_bytes()
    text = Wording(run_with([])).image_text(results_of([one])[0], problem=reason("missing"))
    assert text.caption == "The image could not be read for this report: The file no longer exists."


def test_a_run_without_results_gets_a_document(tmp_path: Path) -> None:
    write_pdf(tmp_path / "run.pdf", run_with([]))
    assert b"/Count 1" in (tmp_path / "run.pdf").read_bytes()
    STUDIES.write(tmp_path / "s", run_with([]))
    assert not (tmp_path / "s").exists()


def test_the_reason_for_read_first_is_printed_once_at_the_top(one: ScreenedOutcome) -> None:
    assert one.lungs is not None
    lungs = replace(one.lungs, unseen_lungs=("left",), unseen_measurement=LungMeasurement("smaller", 0.02, 0.12))
    assert lungs.read_first_reason is not None
    unseen = replace(one, lungs=lungs, notes=(lungs.read_first_reason,))
    text = Wording(run_with([])).image_text(results_of([unseen])[0])
    said = "The left lung is far smaller than the right lung. Share of the image: left lung 2.0 %, right lung 12.0 %."
    assert (text.class_name, text.read_first_reason) == ("Read first", said)
    assert said not in text.remarks


def test_refused_images_have_a_page_with_the_reason(tmp_path: Path) -> None:
    text_file = RefusedOutcome(ref=image_ref("readme.txt", kind="unknown"), reason=reason("not_an_image"))
    results: list[StoredResult] = results_of([refused(), failed(), text_file])  # type: ignore[list-item]
    wording = Wording(run_with([]))
    assert wording.image_text(results[0]).remarks[0] == "Not a frontal view: the file says LL."
    STUDIES.write(tmp_path / "s", run_with(results))
    assert b"/Count 2" in only(tmp_path / "s").read_bytes()  # of one study; a file that is no image has no patient


def document() -> Document:
    return Document("", Translator(), made_s=0)


def test_the_page_numbers_end_at_the_right_margin() -> None:
    made = document()
    made.add_page()
    starts = [float(re.findall(rb"BT (\S+) \S+ Td", page)[-1]) for page in streams(made.to_pdf_bytes())]
    assert starts == pytest.approx([(210 - 16 - made.get_string_width("1 / 2")) * made.k] * 2, abs=0.01)


def test_usual_letters_need_no_additional_font() -> None:
    plain, other = document(), document()
    plain.add_paragraph("Пневмонія в дітей № 5 – 90 % «так» … Pneumonia Ż")
    assert len(plain.fonts) == 2
    for text, number in (("Διον", 3), ("山", 4), ("山田 Διον", 4)):
        other.add_paragraph(text)
        assert len(other.fonts) == number
    assert escape_missing_letters("a𒀀山\n", other) == "a\\U00012000山\\n"
    meanings = b"".join(stream for stream in streams(other.to_pdf_bytes(), within=b"beginbfchar"))
    assert b"<5C71>" in meanings  # 山
    assert b"<7530>" in meanings  # 田
    assert b"<592A>" not in meanings  # 太: of additional fonts only the drawn letters are embedded


@pytest.mark.parametrize("categories", [*itertools.combinations(get_args(Category), 2)], ids="-".join)
def test_two_classes_of_a_bar_differ_by_shape_and_word(categories: tuple[Category, Category]) -> None:
    """Also without colours, because a page may be printed in grey."""
    drawn = []
    for category in categories:
        made = document()
        made.draw_performance(
            MeasuredPerformance(
                sentence="s",
                title="t",
                bars=(PerformanceBar("b", (BarPart(category, 0, "w"),)),),
                detailed_sentences=(),
            )
        )
        (page,) = streams(made.to_pdf_bytes())
        (figure,) = re.findall(rb"/Figure.*?BDC(.*?)EMC", page, re.S)
        shape, _, word = figure.partition(b"BT")
        assert b" rg" in shape and b" Td " in word  # a filled shape in the colour of the class, then the word
        drawn.append(re.sub(rb"[0-9. ]+ rg", b"", shape))
    assert drawn[0] != drawn[1]


@needs("pdftotext", "qpdf")
def test_class_names_of_a_bar_wrap_within_their_column(tmp_path: Path) -> None:
    made = document()
    parts = tuple(BarPart("abnormal", 25, f"{letter * 30}") for letter in "abcd")
    made.draw_performance(
        MeasuredPerformance(sentence="s", title="t", bars=(PerformanceBar("bar", parts),), detailed_sentences=()),
        column=Column(16, 70),
    )
    (tmp_path / "a.pdf").write_bytes(made.to_pdf_bytes())
    page = printed("pdftotext", "-bbox", tmp_path / "a.pdf", "-")
    places = re.findall(r'xMin="(.+?)" yMin="(.+?)" xMax="(.+?)" .*>(\w{30})</word>', page)
    assert [word[0] for *_, word in places] == list("abcd")
    assert len({top for _, top, *_ in places}) == 4
    assert all(float(right) < (16 + 70) / 25.4 * 72 for _, _, right, _ in places)


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize("name", ["כהן שרון", "قباني محمد", "ܣܘܪܝܝܐ"])
def test_a_right_to_left_name_is_followed_by_its_number(name: str, tmp_path: Path) -> None:
    """Poppler gives the words of a page by position, and the text in reading order."""
    words_of_the_notice = {*["Research", "use", "only.", "Not", "for", "diagnostic", "use."]}
    made = document()
    made.add_paragraph(f"{name} · 777")
    (tmp_path / "a.pdf").write_bytes(made.to_pdf_bytes())
    assert name in pdf_text(tmp_path / "a.pdf")
    page = printed("pdftotext", "-bbox", tmp_path / "a.pdf", "-")
    places = [(float(left), word) for left, word in re.findall(r'xMin="(.+?)" .*>(.+)</word>', page)]
    places = [place for place in places if place[1] not in words_of_the_notice]
    line = "".join(word for _, word in sorted(places[: [word for _, word in places].index("777") + 1]))
    assert line.replace("\u200e", "") == f"{name.replace(' ', '')[::-1]}·777"


def test_arabic_letters_are_joined() -> None:
    made = document()
    made.add_paragraph("ههه")
    drawn = [glyph for glyph, _ in made.fonts["noto sans arabic"].subset.items()]  # type: ignore[union-attr]
    assert sum(glyph is not None and glyph.unicode == (0x647,) for glyph in drawn) == 3  # first, middle and last form
    made.to_pdf_bytes()


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize(
    ("text", "scripts"),
    [("देवनागरी ܣܘܪܝܝܐ सं", "Devanagari, Syriac"), ("山田 Διον שרון قباني Їжак Nguyễn", "")],
)
def test_scripts_that_cannot_be_shaped_are_named(text: str, scripts: str, tmp_path: Path) -> None:
    made = document()
    made.add_paragraph(text)
    (tmp_path / "a.pdf").write_bytes(made.to_pdf_bytes())
    said = "separately instead of joined: "
    assert pdf_text(tmp_path / "a.pdf").partition(said)[2].startswith(f"{scripts}." if scripts else "")
    assert (said in pdf_text(tmp_path / "a.pdf")) == bool(scripts)


def test_line_breaks_equal_those_of_the_library() -> None:
    random, made = Random(7), document()
    for text in ("".join(random.choices("abc W.Ї\xa0", k=random.randrange(1, 90))) for _ in range(150)):
        made.set_font(FONT_FAMILY, random.choice(["", "B"]), 9)
        width, font = random.uniform(8, 60), made.current_font
        assert isinstance(font, FullyEmbeddedFont)
        broken = made.multi_cell(width, 4, text, align=Align.L, dry_run=True, output=MethodReturnValue.LINES)
        assert break_lines(text, font, 1000 * width * made.k / 9) == tuple(broken)  # type: ignore[arg-type]
    for text in ("a\nb", "a\u00adb", "山"):
        assert break_lines(text, standard_fonts()[0], 1.0) is None


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("published-bacterial-pneumonia-2.jpg", ("published-bacterial-", "pneumonia-2.jpg")),
        ("a_b/viral_pneumonia_in_children.dcm", ("a_b/viral_pneumonia_in_", "children.dcm")),
        ("-" + "m" * 20, ("-" + "m" * 13, "m" * 7)),  # no line with only a hyphen
        ("x published-bacterial-pneumonia-2.jpg", ("x", "published-bacterial-", "pneumonia-2.jpg")),
    ],
)
def test_a_long_name_breaks_after_its_punctuation(name: str, broken: tuple[str, ...]) -> None:
    assert break_lines(name, standard_fonts()[0], 1000 * 38 * document().k / 8) == broken


def test_a_long_text_ends_with_dots() -> None:
    assert shorten("a" * 400).endswith("a…")
    assert len(shorten("\u202e" * 400)) == 300
    assert shorten("short") == "short"


def test_the_document_has_the_image_with_and_without_overlay(one: ScreenedOutcome, tmp_path: Path) -> None:
    STUDIES.write(tmp_path / "s", run_with(results_of([one])))
    data = only(tmp_path / "s").read_bytes()
    pictures = [Image.open(io.BytesIO(data[found.start() :])) for found in re.finditer(b"\xff\xd8\xff", data)]
    # a small image is not enlarged in the file
    assert [(picture.mode, picture.size) for picture in pictures] == [("L", (128, 160)), ("RGB", (128, 160))]
