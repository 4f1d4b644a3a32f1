"""The options of every command that writes the results of a run as files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fieldray.reasons import reason
from fieldray.reports.exporter import EXPORTERS, ReportOptions, available_exporters, default_exporters
from fieldray.settings import LanguageChoices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fieldray.commands.console import Console
    from fieldray.settings import Settings


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Formats, whether people are named, and the language."""
    names = ",".join(exporter.name for exporter in available_exporters())
    usual = " and ".join(exporter.name for exporter in default_exporters())
    parser.add_argument("--formats", type=_formats, metavar=names, help=f"formats to write to --out (default: {usual})")
    parser.add_argument(
        "--names",
        action="store_true",
        help="write the names and numbers of patients, and names of files, into exports (default: pseudonyms)",
    )
    parser.add_argument(
        "--language",
        choices=LanguageChoices()[1:],
        help="language of PDF reports and of what is written into images (default: from the settings, else English)",
    )


def report_options(options: argparse.Namespace, settings: Settings, console: Console) -> ReportOptions:
    """What was chosen; who wants pseudonyms is told where they do not reach."""
    shows_images = bool(set(options.formats or ()) & {"pdf", "pdf-studies", "sc"} or getattr(options, "maps", None))
    if shows_images and not options.names:
        console.print_error(reason("pixels_not_cleaned").text)
    language = options.language or str(settings["language"])
    return ReportOptions(language="en" if language == "system" else language, names_people=options.names)


def _formats(text: str) -> Sequence[str]:
    known = {exporter.name: exporter for exporter in EXPORTERS.entries()}
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    if not set(names) <= set(known):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
    for name in names:
        if why := known[name].unavailable_reason():
            raise argparse.ArgumentTypeError(f"{name}: {why.text}")
    return names
