"""The export formats of stored runs: one table for the command line, the window and the export itself.

To add a format, put a module with an `EXPORTER` into `reports/exporters`. No other module names the format. Every
`--help` imports the module. So the module must import NumPy, pydicom and other large packages inside its functions.

Reports contain pseudonyms instead of patients' names, unless a person asked for names. A patient has one pseudonym in
all reports of this installation. Only the key of the installation leads from a pseudonym to the patient. Without a
usable Patient ID, each study gets a pseudonym. The UIDs of studies and images, by which any archive finds the patient,
are replaced, too. Only the DICOM formats keep UIDs, because a DICOM object refers to its image by UID.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from fieldray.persistence import exclusive_write_access, require_regular_file, storage_problem, write_atomically
from fieldray.plain_text import escape_invisible_characters
from fieldray.reasons import Reason, reason
from fieldray.registry import discover_entries

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from fieldray.domain.finding import Category, Outcome
    from fieldray.domain.image import ImageHeader, ImageRef, ShownImage
    from fieldray.domain.model import Manifest
    from fieldray.domain.prior_image import ComparisonRecord
    from fieldray.domain.run import PackSpec, Run, StoredResult, SupersededVerdict

    ImageResult = tuple[StoredResult, ShownImage | Reason]
    ReadPreview = Callable[[StoredResult], ShownImage | None]
    ReadImages = Callable[[Iterable[StoredResult], int], Iterator[ImageResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The options of an export.

    language            code of the language of the texts in the files, such as "en"
    names_people        whether patients are named; if False, pseudonyms replace the names, because files leave the
                        computer
    uses_decimal_comma  whether tables have decimal commas and semicolons between columns, as Excel expects in many
                        countries
    reader_name         name and role of the person who gave the verdicts, from the settings; "" if not entered
    prior_comparisons   comparisons with prior images, which documents and structured reports include
    """

    language: str = "en"
    names_people: bool = False
    uses_decimal_comma: bool = False
    reader_name: str = ""
    prior_comparisons: tuple[ComparisonRecord, ...] = ()

    def comparisons_of_current_image(self, outcome: Outcome) -> tuple[ComparisonRecord, ...]:
        """Return the comparisons in `prior_comparisons` in which the image of an outcome is the current image."""
        facts, frame = outcome.facts, outcome.ref.frame
        known = (
            pair
            for pair in self.prior_comparisons
            if facts.content_sha256 and pair.current_sha256 == facts.content_sha256
        )
        return tuple(pair for pair in known if pair.current_frame == frame)


DEFAULT_REPORT_OPTIONS: Final = ReportOptions()


_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def map_with_lookahead(
    make: Callable[[_Given], _Made], given: Iterable[_Given], threads: Executor, *, ahead: int
) -> Iterator[_Made]:
    """Yield the result of `make` for each item of `given`, in order. Raises the exceptions of `make`.

    threads  threads that call `make`
    ahead    number of further items for which `make` is called in advance
    """
    waiting: deque[Future[_Made]] = deque()
    for one in given:
        waiting.append(threads.submit(make, one))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    for future in waiting:
        yield future.result()


def results_without_images(results: Iterable[StoredResult], _side: int) -> Iterator[ImageResult]:
    """Yield each result with the reason *missing* in place of its image, for exports that read no image files."""
    return ((result, reason("missing")) for result in results)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackOfStoredRun:
    """The facts of one pack of a stored run.

    counts    number of images by category, according to the pack's results
    warnings  warnings about the pack's results as a whole, not about single images
    manifest  the manifest of the pack; None if the pack is no longer installed
    """

    counts: Mapping[Category, int] = field(default_factory=dict)
    warnings: tuple[Reason, ...] = ()
    manifest: Manifest | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredRun:
    """A run with its results, and the functions that an exporter needs.

    results                     results in the order of the work list. The results of one image are adjacent. The
                                results can be iterated only once
    packs                       facts of each pack, in the order of the packs in the run
    pack_position               position of the pack to which `pack`, `counts`, `warnings` and `manifest` belong; see
                                `for_result`
    absent_images               names of the images that an earlier pass of the run found, but the last complete pass
                                did not
    superseded_verdicts         readers' verdicts on results that changed after the verdict was given
    options                     options that a person chose
    pseudonym_key               key from which pseudonyms are made; equal keys give a patient equal pseudonyms
    read_preview                function that returns the preview stored with a result, for an image that cannot be read
                                any more
    read_images                 function that takes results and a side in pixels. Yields each result with its displayed
                                image, whose longer side is at most that long, or with the reason why there is no image
    captured_work_list_numbers  numbers (in the work list) of images of which a secondary capture is written; None for
                                all
    report_omission             function that an exporter calls for each result that it leaves out, with the reason
    """

    run: Run
    results: Iterable[StoredResult]
    packs: tuple[PackOfStoredRun, ...] = (PackOfStoredRun(),)
    pack_position: int = 0
    absent_images: tuple[str, ...] = ()
    superseded_verdicts: tuple[SupersededVerdict, ...] = ()
    options: ReportOptions = DEFAULT_REPORT_OPTIONS
    pseudonym_key: bytes = b""
    read_preview: ReadPreview = lambda _result: None
    read_images: ReadImages = results_without_images
    captured_work_list_numbers: frozenset[int] | None = None
    report_omission: Callable[[StoredResult, Reason], None] = lambda _result, _why: None

    @property
    def screened_paths(self) -> tuple[Path, ...]:
        """The paths of the files and folders that were screened. An export never replaces these files."""
        return tuple(map(Path, self.run.spec.paths))

    @property
    def pack(self) -> PackSpec:
        """The pack at `position` in the run."""
        return self.run.spec.packs[self.pack_position]

    @property
    def counts(self) -> Mapping[Category, int]:
        """The number of images in each category, by the results of the pack at `position`."""
        return self.packs[self.pack_position].counts

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """The warnings about the results of the pack at `position` as a whole, not about single images."""
        return self.packs[self.pack_position].warnings

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the pack at `position`; None if the pack is no longer installed."""
        return self.packs[self.pack_position].manifest

    def for_result(self, result: StoredResult) -> StoredRun:
        """Return a copy of this run in which `pack_position` is that of the pack that gave a result.

        The properties `pack`, `counts`, `warnings` and `manifest` of the copy then belong to that pack.
        """
        return self if result.pack_position == self.pack_position else replace(self, pack_position=result.pack_position)

    def split_by_pack(self) -> tuple[StoredRun, ...]:
        """Return one copy of this run for each pack. The `pack_position` of a copy is the position of that pack."""
        return tuple(replace(self, pack_position=position) for position in range(len(self.packs)))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Exporter:
    """An export format.

    name           name of the format in `--formats`
    suffix         suffix of the output, with a dot if the output is a file
    title          English name of the format. The window shows the translation, if there is one
    write          function that writes a run to a path with `outputs.open_output`, `write_output` or
                   `open_output_folder`. These functions replace only files that `is_own_output` recognises. Raises
                   UsageProblem, StorageProblem
    is_own_output  function that returns whether a file with these first bytes (up to 64 KB) was written by `write`
    is_default     whether the format is written if a person names no formats
    """

    name: str
    suffix: str
    title: str
    write: Callable[[Path, StoredRun], None]
    is_own_output: Callable[[bytes], bool]
    is_default: bool = True


# By these bytes a later export recognises files of this program: a comment after the header of a PDF document, and the
# name of the writer in the file meta information of a DICOM object (PS3.10 7.1).
PDF_VERSION_AND_PROGRAM_MARK: Final = "1.7\n%fieldray report"
DICOM_WRITER_NAME: Final = "FIELDRAY_REPORT"
_PREAMBLE: Final = 128
_META_BYTES: Final = 1024


def is_own_pdf(head: bytes) -> bool:
    """Return whether a file with the first bytes `head` is a PDF document of this program."""
    return head.startswith(f"%PDF-{PDF_VERSION_AND_PROGRAM_MARK}\n".encode())


def is_own_dicom(head: bytes) -> bool:
    """Return whether a file with the first bytes `head` is a DICOM object made by this program."""
    meta = head[_PREAMBLE : _PREAMBLE + _META_BYTES]
    return meta.startswith(b"DICM") and DICOM_WRITER_NAME.encode() in meta


@functools.cache
def exporters() -> dict[str, Exporter]:
    """Return all export formats by name."""
    return discover_entries("fieldray.reports.exporters", "EXPORTER")


def default_exporters() -> tuple[Exporter, ...]:
    """Return the export formats that are written if a person names no formats."""
    return tuple(exporter for exporter in exporters().values() if exporter.is_default)


_BETWEEN: Final = re.compile(r"[/\\!]")
_SHORT: Final = 2  # a part of a path with so few letters names no person
_KEY_NAME: Final = "pseudonym.key"
_KEY_BYTES: Final = 32
_LETTERS: Final = 10  # 50 bits: among a million patients two share a pseudonym in one of two thousand installations


def header_for_report(ref: ImageRef, stored: StoredRun) -> ImageHeader:
    """Return the header of an image with the patient data that this run's reports may show.

    Unless a person asked for names, a pseudonym replaces the patient's name and ID, and birth date and study numbers
    are empty.
    """
    header = ref.header
    if stored.options.names_people:
        name, number = map(escape_invisible_characters, (header.patient_name, header.patient_id))
        return replace(header, patient_name=name, patient_id=number)
    alias = pseudonym(header, ref.patient_study_key, key=stored.pseudonym_key)
    return replace(
        header, patient_name=alias, patient_id=alias, patient_birth_date="", study_id="", accession_number=""
    )


def pseudonym(header: ImageHeader, study: str, *, key: bytes) -> str:
    """Return a patient's pseudonym: `FR-` and ten letters or digits (HMAC-SHA256, RFC 2104).

    header  header of any image of the patient
    study   key of the image's study; used for the pseudonym if the header has no usable Patient ID
    key     the installation's `pseudonym_key`
    """
    from fieldray.domain.image import patient_id_if_usable

    number = patient_id_if_usable(header.patient_id)
    return patient_alias(number, key=key) if number else f"FR-{_letters(f'study{chr(0)}{study}', key)}"


def patient_alias(patient_id: str, *, key: bytes) -> str:
    """Return the pseudonym of the patient with this Patient ID: `FR-` and ten letters or digits."""
    return f"FR-{_letters(f'patient{chr(0)}{patient_id}', key)}"


def image_alias(image: str, *, key: bytes) -> str:
    """Return the pseudonym of an image: `FI-` and ten letters or digits, equal in all exports of this installation.

    image  the image's key (`ImageRef.key`), or the path of a screened file or folder
    key    the installation's `pseudonym_key`
    """
    return f"FI-{_letters(f'image{chr(0)}{image}', key)}"


def exam_alias(exam: str, *, key: bytes) -> str:
    """Return the pseudonym of an examination, which all its images share: `FE-` and ten letters or digits.

    exam  key of the examination (`Case.exam_key` of an audit)
    key   the installation's `pseudonym_key`
    """
    return f"FE-{_letters(f'exam{chr(0)}{exam}', key)}"


def uid_alias(uid: str, *, key: bytes) -> str:
    """Return a UID under 2.25 (PS3.5 B.2) that replaces the UID of a study or an image, equal in all exports.

    uid  the UID; "" gives ""
    key  the installation's `pseudonym_key`
    """
    return f"2.25.{uuid.UUID(bytes=_digest(f'uid{chr(0)}{uid}', key)[:16], version=5).int}" if uid else ""


def hide_names_in_reason(why: Reason, path: str, *, alias: str) -> Reason:
    """Return a reason in which a pseudonym replaces every value that contains a part of the image's path.

    path   the path of the image that the reason is about
    alias  the pseudonym of the image
    """
    parts = {part.casefold() for part in _BETWEEN.split(path) if len(part) > _SHORT}
    values = {
        name: alias if any(part in value.casefold() for part in parts) else value for name, value in why.parameters
    }
    return reason(why.code, **values)


def _letters(who: str, key: bytes) -> str:
    return base64.b32encode(_digest(who, key)).decode()[:_LETTERS]


def _digest(who: str, key: bytes) -> bytes:
    return hmac.new(key, who.encode("utf-8", "backslashreplace"), hashlib.sha256).digest()


def pseudonym_key(folder: Path) -> bytes:
    """Return the key from which this installation makes pseudonyms.

    The first call creates the key. Raises StorageProblem.

    folder  folder of the key file
    """
    path = folder / _KEY_NAME
    try:
        if key := _read_key(path):
            return key
        with exclusive_write_access(path):
            key = _read_key(path) or secrets.token_bytes(_KEY_BYTES)
            write_atomically(path, key)
    except OSError as error:
        raise storage_problem(error, path) from error
    return key


def _read_key(path: Path) -> bytes:
    """Read the pseudonym key from a file; empty if there is no file. Raises OSError, StorageProblem (not_plain)."""
    require_regular_file(path)
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return b""
    return key if len(key) == _KEY_BYTES else b""
