"""Texts in a person's language. English texts are the keys (msgids) of gettext catalogues.

A language is one file, `translations/<code>/LC_MESSAGES/fieldray.mo`, of the program or in the user's data folder
(`paths.translation_catalogue_paths`). No module names a language: settings, window and installer list the catalogues. A
text that a catalogue lacks is shown in English. `make translations` collects the texts, updates the .po files and
compiles them.
"""

from __future__ import annotations

import gettext
import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fieldray.paths import translation_catalogue_paths
from fieldray.reasons import NON_IDENTIFYING_PARAMETERS, NUMERIC_PARAMETERS, Plural, Reason, template_of

log = logging.getLogger(__name__)

ENGLISH: Final = "en"


class Translator:
    """Translates the program's texts to one language.

    language     a code such as "uk" or "pt_BR"; English if the language has no readable catalogue
    hides_names  whether names of patients, and of their files and folders, are hidden now
    """

    def __init__(self, language: str = ENGLISH, hides_names: Callable[[], bool] = bool) -> None:
        self.language, self.hides_names = language, hides_names
        self._catalogue = _open(language)

    def text(self, english: str, **parameters: object) -> str:
        """Return an English text in the language of this translator, with the `{name}` placeholders filled in."""
        return _filled(self._catalogue.gettext(english) if english else "", english, parameters)

    def in_context(self, context: str, english: str, **parameters: object) -> str:
        """Return the translation of a word that has several meanings in English.

        context  says in English which meaning is meant; the context of the text in the catalogue (`msgctxt`)
        english  the word
        """
        return _filled(self._catalogue.pgettext(context, english), english, parameters)

    def plural(self, one: str, many: str, count: int, **parameters: object) -> str:
        """Return the singular or plural form of a text, as the number `count` requires.

        one, many  the English texts; the placeholder `{count}` is filled in, too
        """
        english = one if count == 1 else many
        return _filled(self._catalogue.ngettext(one, many, count), english, {"count": count, **parameters})

    def reason(self, why: Reason) -> str:
        """Return a reason's sentence in the language of this translator.

        A parameter that is a phrase of the program is translated, too. While names are hidden, each parameter that may
        reveal a patient is hidden (see `reasons.NON_IDENTIFYING_PARAMETERS`).
        """
        template = template_of(why.code)
        values = {
            name: self.with_decimal_mark(value) if name in NUMERIC_PARAMETERS else self.text(value)
            for name, value in why.parameters
        }
        values |= {
            name: self.name_unless_hidden(value)
            for name, value in values.items()
            if name not in NON_IDENTIFYING_PARAMETERS
        }
        if isinstance(template, Plural):
            found = self._catalogue.ngettext(template.one, template.many, template.count_in_parameters(why.parameters))
        else:
            found = self._catalogue.gettext(template)
        return _filled(found, why.template, values)

    def name_unless_hidden(self, name: str, *, row_id: int | None = None) -> str:
        """Return the name of a patient, a file or a folder; while names are hidden, return a substitute text.

        row_id  number of the image's row, which the substitute text then contains; None for a text without a number
        """
        if not self.hides_names():
            return name
        return self.text("(hidden)") if row_id is None else self.text("Image {number}", number=row_id)

    def with_decimal_mark(self, digits: str) -> str:
        """Replace the decimal point in a number by the decimal mark of this translator's language.

        digits  the number as text
        """
        # Translators: what stands between the whole number and its decimals: "," in most languages.
        return digits.replace(".", self.in_context("decimal mark", "."))

    def pack_text(self, texts: Mapping[str, str]) -> str:
        """Return a pack's text in this translator's language; the English text if the pack lacks this language."""
        # Catalogues are named as gettext does ("pt_BR"), texts of packs by BCP 47 ("pt-BR").
        language = self.language.replace("_", "-")
        return texts.get(language) or texts.get(language.partition("-")[0]) or texts.get(ENGLISH, "")


# A function that returns a text in the language of a translator.
LocalText = Callable[[Translator], str]


def languages() -> dict[str, str]:
    """Return the available languages, English first: the name of each language in the language itself, by code."""
    names = {code: _own_name(code) for code in sorted(translation_catalogue_paths())}
    return {ENGLISH: "English"} | {code: name for code, name in names.items() if name}


def best_language(wanted: Iterable[str]) -> str:
    """Return the first language in `wanted` that is available; English if none is available.

    wanted  language tags such as "uk-UA", the preferred language first
    """
    known = languages()
    for tag in wanted:
        whole = tag.replace("-", "_")
        for code in (whole, whole.partition("_")[0]):
            if code in known:
                return code
    return ENGLISH


def _own_name(code: str) -> str:
    """Return the name of a language in the language itself; "" if the catalogue cannot be read."""
    catalogue = _open(code)
    # Translators: the name of your own language, written in it, as people pick it in the settings.
    name = catalogue.gettext("English")
    return (name if name != "English" else code) if isinstance(catalogue, gettext.GNUTranslations) else ""


def _open(language: str) -> gettext.NullTranslations:
    path = translation_catalogue_paths().get(language)
    if path is None:
        return gettext.NullTranslations()
    try:
        with path.open("rb") as file:
            return gettext.GNUTranslations(file)
    except (OSError, ValueError, LookupError, struct.error) as error:  # errors of reading a damaged file
        log.warning("The translation %s cannot be read: %r", path, error)
        return gettext.NullTranslations()


def _filled(template: str, english: str, parameters: Mapping[str, object]) -> str:
    """Fill in a template's placeholders. The English text is used if the template has unknown placeholders."""
    if not parameters:
        return template
    try:
        return template.format(**parameters)
    except (LookupError, ValueError, AttributeError):
        return english.format(**parameters)
