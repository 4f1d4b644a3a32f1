"""The PDF documents of a run and of its studies."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from typing import Final

from fieldray.domain.finding import Category, Outcome
from fieldray.domain.image import ShownImage
from fieldray.domain.run import StoredResult
from fieldray.reasons import Reason
from fieldray.reports.document import Field
from fieldray.reports.exporter import StoredRun
from fieldray.reports.pdf.document import Document
from fieldray.reports.pdf.fonts import Fonts
from fieldray.reports.pdf.pages import Illustration, image_page, run_pages, table_pages, texts_of
from fieldray.reports.picture import has_map, picture_of
from fieldray.reports.wording import Wording

_PICTURE_SIDE: Final = 1100  # pixels over 112 mm: 250 per inch


def run_document(stored: StoredRun) -> bytes:
    """The whole run. Texts are collected first: they decide which fonts are needed."""
    wording = Wording(stored)
    rows: list[tuple[Category, tuple[str, ...]]] = [
        (result.outcome.category, wording.row(number, result)) for number, result in enumerate(stored.results, 1)
    ]
    run, table, labels = wording.run(), wording.table(), _labels(wording)
    with Fonts() as fonts:
        texts = [*texts_of(run), *texts_of(table), *texts_of(rows), *labels.values()]
        document = _document(fonts, texts, wording, stored, title=run.title)
        run_pages(document, run, labels)
        if rows:
            document.add_page()
            table_pages(document, table.title, table.headings, rows)
        return document.finished()


def study_documents(stored: StoredRun) -> Iterator[tuple[str, bytes]]:
    """A name and a document for each study, in the order of their first images in the work list.

    A file that is no image is of no study.
    """
    wording = Wording(stored)
    results: dict[str, list[StoredResult]] = {}
    for result in stored.results:
        if result.outcome.category != "not_an_image":
            results.setdefault(result.outcome.ref.study_key, []).append(result)
    together = itertools.chain.from_iterable(results.values())
    with Fonts() as fonts:
        for study in results.values():
            fonts.foresee(texts_of([wording.image(result) for result in study]))
        images = stored.read_images(together, _PICTURE_SIDE)
        for number, study in enumerate(results.values(), 1):
            yield f"{number:05}.pdf", _study(list(itertools.islice(images, len(study))), fonts, wording, stored)


def _study(
    images: list[tuple[StoredResult, ShownImage | Reason]], fonts: Fonts, wording: Wording, stored: StoredRun
) -> bytes:
    texts = [wording.image(result, picture=_problem(image)) for result, image in images]
    about = (*wording.pack(), *wording.run_fields(), *wording.provenance())
    labels = _labels(wording)
    title = wording.study_title(images[0][0].outcome.ref)
    letters = [*texts_of(texts), *texts_of(about), *labels.values(), *wording.legend]
    document = _document(fonts, letters, wording, stored, title=title)
    for place, (text, (result, image)) in enumerate(zip(texts, images, strict=True)):
        if place:
            document.add_page()
        image_page(document, text, _illustration(result, image, wording, stored))
        document.heading(labels["image"])
        document.fields((*text.patient, *text.image))
        if text.priors:
            document.heading(labels["prior"])
            document.fields(text.priors)
        _about(document, about, labels)
    return document.finished()


def _illustration(
    result: StoredResult, image: ShownImage | Reason, wording: Wording, stored: StoredRun
) -> Illustration | None:
    outcome = result.outcome
    shown = (stored.read_preview(result) or _thumbnail(outcome)) if isinstance(image, Reason) else image
    if shown is None:
        return None
    picture = picture_of(outcome, shown, stored.manifest)
    return Illustration(picture, has_map(outcome, stored.manifest), wording.legend)


def _about(document: Document, about: tuple[Field, ...], labels: dict[str, str]) -> None:
    document.heading(labels["pack"])
    document.fields(about)


def _thumbnail(outcome: Outcome) -> ShownImage | None:
    """The smallest image that is kept with a result, where there is no preview either."""
    facts = outcome.facts
    if facts.thumbnail is None or not facts.rows:
        return None
    return ShownImage(pixels=facts.thumbnail, rows=facts.rows, columns=facts.columns)


def _problem(image: ShownImage | Reason) -> Reason | None:
    return image if isinstance(image, Reason) else None


def _labels(wording: Wording) -> dict[str, str]:
    text = wording.translator.text
    return {
        "counts": text("What came out"),
        "pack": text("The pack"),
        "provenance": text("What it was made with"),
        "image": text("Patient and image"),
        "prior": text("Compared with a prior image"),
    }


def _document(fonts: Fonts, texts: list[str], wording: Wording, stored: StoredRun, *, title: str) -> Document:
    made = datetime.datetime.fromtimestamp(stored.run.ended_s or stored.run.started_s, datetime.UTC)
    return Document(fonts, texts, title=title, notice=wording.notice, language=wording.language, made=made)
