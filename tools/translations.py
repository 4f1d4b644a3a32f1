"""Collect all texts that the program shows to users, update the translation catalogues and compile them.

    make translations
    python tools/translations.py pl       also begin a catalogue for a new language, here Polish

Three kinds of text are collected. The first are arguments of `Translator.text`, `in_context` and `plural`. The second
are the sentences in the modules `reasons.py`, and the phrases that are inserted in the sentences. The third are the
labels of settings and devices.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from babel.localedata import locale_identifiers
from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_dir
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT: Final = Path(__file__).resolve().parent.parent
APP: Final = ROOT / "app"
CATALOGUES: Final = ROOT / "assets" / "translations"
CATALOGUE_PATH: Final = Path("LC_MESSAGES", "fieldray.po")

_KEYWORDS: Final = {"text": None, "gettext": None, "in_context": ((1, "c"), 2), "plural": (1, 2)}
# Classes of table rows, each with the field that the user sees.
_LABELS: Final = {"SettingRow": "label", "BackendEntry": "title", "Exporter": "title"}
_COMMENTS: Final = ("Translators:",)
_WIDTH: Final = 110

# Line number, function name, text (or singular and plural), and comments for translators, as Babel needs them.
Message = tuple[int, str, str | tuple[str, str], list[str]]


def make_template() -> Catalog:
    """Return a catalogue of all texts of the program without translations. Each text names the files that use it."""
    catalogue = _catalogue(None)
    for method in (("**/reasons.py", sentences), ("**.py", phrases), ("**.py", "python")):
        for file, line, texts, comments, context in extract_from_dir(
            APP, [method], keywords=_KEYWORDS, comment_tags=_COMMENTS, strip_comment_tags=True
        ):
            catalogue.add(texts, None, [(f"app/{file}", line)], auto_comments=comments, context=context)
    return catalogue


def _catalogue(language: str | None) -> Catalog:
    header = "# Translations of Fieldray, under the licence of Fieldray (Apache-2.0)."
    return Catalog(
        locale=language,
        header_comment=header,
        project="Fieldray",
        version="1",
        msgid_bugs_address="the issues of the project",
        last_translator="the contributors of Fieldray",
        language_team=language,
        charset="utf-8",
        fuzzy=False,
    )


def sentences(file: BinaryIO, *_: object, **__: object) -> Iterator[Message]:
    """Yield the sentences in a module `reasons.py`. Babel calls this function as an extraction method.

    `file` is the open source file. A comment for translators names the reason of each sentence.
    """
    for table in ast.walk(ast.parse(file.read())):
        for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
            comments = [f"Reason: {key.value}"] if isinstance(key, ast.Constant) else []
            if isinstance(value, ast.Constant):
                yield value.lineno, "", value.value, comments
            elif isinstance(value, ast.Call):
                one, many = (argument.value for argument in value.args[:2] if isinstance(argument, ast.Constant))
                yield value.lineno, "plural", (str(one), str(many)), comments


def phrases(file: BinaryIO, *_: object, **__: object) -> Iterator[Message]:
    """Yield the phrases in calls of `reason(...)` and the labels of settings, devices and exporters.

    Babel calls this function as an extraction method. `file` is the open source file of a module.
    """
    for node in ast.walk(ast.parse(file.read())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        for given in node.keywords:
            if given.arg == _LABELS.get(node.func.id) and isinstance(given.value, ast.Constant):
                yield given.value.lineno, "", str(given.value.value), [f"The {given.arg} of a {node.func.id}"]
            elif node.func.id == "reason":
                for line, text in _literals(given.value):
                    yield line, "", text, [f"The {given.arg} of a reason"]


def _literals(value: ast.expr) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of each string of two or more words that the expression `value` may result in."""
    if isinstance(value, ast.IfExp):
        yield from (*_literals(value.body), *_literals(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (literal for part in value.values for literal in _literals(part))
    elif isinstance(value, ast.Constant) and isinstance(value.value, str) and " " in value.value.strip():
        yield value.lineno, value.value


def read_catalogue(path: Path) -> Catalog:
    """Read the translation catalogue at `path`, in .po format. Raises an error of Babel if the file is malformed."""
    with path.open("rb") as file:
        return read_po(file, abort_invalid=True)


def catalogue_source(catalogue: Catalog) -> bytes:
    """Return a catalogue as the bytes of a .po file. Line numbers are left out, so that moved code changes nothing."""
    file = io.BytesIO()
    write_po(file, catalogue, width=_WIDTH, include_lineno=False, sort_output=False, ignore_obsolete=True)
    return file.getvalue()


def compile_catalogue(catalogue: Catalog) -> bytes:
    """Return a catalogue as the bytes of a .mo file, the compiled format that the program reads."""
    file = io.BytesIO()
    write_mo(file, catalogue)
    return file.getvalue()


def main(begin: list[str]) -> int:
    """Update and compile the catalogues of all languages, and print how many translations are missing.

    `begin` are codes of new languages, for which a catalogue is made. Returns 0, or 2 if a code is unknown.
    """
    if unknown := set(begin) - set(locale_identifiers()):
        sys.stderr.write(f"Unknown languages: {', '.join(sorted(unknown))}. Examples: pl, pt_BR.\n")
        return 2
    for language in begin:
        path = CATALOGUES / language / CATALOGUE_PATH
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(catalogue_source(_catalogue(language)))
    texts = make_template()
    for path in sorted(CATALOGUES.glob(f"*/{CATALOGUE_PATH.as_posix()}")):
        catalogue = read_catalogue(path)
        catalogue.update(texts, no_fuzzy_matching=True, update_creation_date=False)
        path.write_bytes(catalogue_source(catalogue))
        path.with_suffix(".mo").write_bytes(compile_catalogue(catalogue))
        missing = [message for message in catalogue if message.id and not _is_done(message.string)]
        print(f"{catalogue.locale}: {len(catalogue)} texts, {len(missing)} without a translation")  # noqa: T201
    return 0


def _is_done(string: str | tuple[str, ...]) -> bool:
    return all(string) if isinstance(string, tuple) else bool(string)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
