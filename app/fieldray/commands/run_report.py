"""The console output of a run: one JSON line per image, the progress, and the work list at the end."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from fieldray.commands.console import Console, duration_text, progress_text
from fieldray.domain.finding import Category, ResultCount, can_be_fixed_by_turning, image_count, result_count_of_outcome
from fieldray.domain.history import ResultBrief
from fieldray.domain.intended_use import PatientNoteCounts, intended_patients_sentence
from fieldray.domain.model import Model, OperatingPoint
from fieldray.domain.run import (
    BackendChanged,
    Event,
    ImageDone,
    LineHandler,
    PackOfRun,
    Progress,
    ResultsTakenOver,
    RunChanged,
    RunSpec,
    Speed,
    StoredImage,
    StoredResult,
    StoreRepaired,
    StoreUpdating,
)
from fieldray.errors import FieldrayError, StorageProblem
from fieldray.formatting import format_threshold, pack_headings
from fieldray.packs.reasons import TEMPLATES as PACKS
from fieldray.persistence import create_empty_file, make_folder, remove_unfinished_files, storage_problem
from fieldray.plain_text import console_cell_text
from fieldray.reasons import BACKEND_TEMPLATES, FOLDER_PROBLEM_CODES, FREQUENT_NOTE_CODES, Reason, reason
from fieldray.reports.content import (
    RESEARCH_ONLY_NOTICE,
    class_texts,
    format_printed_score,
    format_printed_threshold,
    image_result_values,
)
from fieldray.reports.exporter import ReportOptions, exporters
from fieldray.reports.outputs import is_stream, open_output, require_writable_output
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.pipeline.batch import Batch
    from fieldray.pipeline.session import Session

CANCELLED_EXIT_CODE: Final = 130
NO_IMAGES_EXIT_CODE: Final = 4


@contextlib.contextmanager
def open_json_lines(
    target: str | None, console: Console, *, inputs: Sequence[Path], watches: bool = False
) -> Iterator[LineHandler | None]:
    """Open the target of `--json` for lines, and yield a function that writes one line.

    target   None (yields None), "-" for standard output, or the path of a file, pipe or device
    inputs   files that must not be overwritten
    watches  whether folders are watched

    The file appears when the run ends, even if the run was cancelled or failed. While folders are watched, the file
    receives each line at once. Raises UsageProblem, StorageProblem.
    """
    if target is None or target == "-":
        yield None if target is None else console.write_machine_readable_line
        return
    path, problem, is_reported = Path(target), None, False
    try:
        with _stream(path, inputs, grows=watches) as opened:

            def emit(line: str) -> None:
                nonlocal is_reported
                try:
                    opened().write(line + "\n")
                    opened().flush()  # flushed, so that a full disk is reported at once
                except OSError as error:
                    is_reported = True
                    raise storage_problem(error, path) from error

            try:
                yield emit
            except FieldrayError as error:  # the file keeps the lines written so far
                problem = error
    except StorageProblem:
        if not is_reported:  # closing the stream fails again on an unwritten line
            raise
    if problem:
        raise problem


@contextlib.contextmanager
def _stream(path: Path, inputs: Sequence[Path], *, grows: bool) -> Iterator[Callable[[], TextIO]]:
    """Open a file, named pipe or device for writing, and yield a function that returns the stream.

    grows  False: the file appears when it is complete. True: the file appears with its first line

    A file that grows is never empty, because an empty file in a watched folder would count as a broken image.
    """
    if grows or is_stream(path):
        try:
            with contextlib.ExitStack() as stack:
                if is_stream(path):
                    stream = stack.enter_context(path.open("w", encoding="ascii", newline="\n"))
                    yield lambda: stream
                else:
                    require_writable_output(path, "lines", inputs=inputs)
                    make_folder(path.parent, is_private=True)
                    path.unlink(missing_ok=True)

                    @functools.cache
                    def begun() -> TextIO:
                        create_empty_file(path)
                        return stack.enter_context(path.open("a", encoding="ascii", newline="\n"))

                    yield begun
        except OSError as error:
            raise storage_problem(error, path) from error
    else:
        remove_unfinished_files(path.parent)
        with open_output(path, "lines", encoding="ascii", inputs=inputs) as whole:
            yield lambda: whole


class PackSummary:
    """One pack of a run on the console, with the counts of the pack's results.

    heading      name that distinguishes the pack from the other packs of the run
    line_prefix  beginning of each line about the pack if the run has several packs, else ""
    folders      number of unreadable folders
    resumed      number of results from an earlier run
    read_first   number of images to be read first whose class is *abnormal* or *normal*; 0 except for an unsigned model
    """

    def __init__(self, model: Model, heading: str, *, is_one_of_several: bool = False) -> None:
        self.model, self.texts = model, class_texts(model.manifest)
        self.heading = console_cell_text(heading)
        self.line_prefix = f"{self.heading}: " if is_one_of_several else ""
        self.counts: Counter[Category] = Counter()
        self.patients = PatientNoteCounts()
        self.folders = self.resumed = self.read_first = 0
        self.last_notes: Sequence[Reason] = ()

    def add_counts(self, result_counts: Iterable[ResultCount]) -> None:
        """Add results to the counts of the pack. Each item is a class and the number of its results."""
        for kind in result_counts:
            self.counts[kind.category] += kind.result_count
            self.patients.add(kind)
            self.folders += kind.result_count * (not FOLDER_PROBLEM_CODES.isdisjoint(kind.reason_and_note_codes))
            self.read_first += kind.legacy_model_read_first_count

    def set_counts(self, result_counts: Iterable[ResultCount]) -> None:
        """Replace the pack's counts by the counts `result_counts`, which were read from the database after the run.

        The replacement is needed for watched folders, where an image may be screened again or be moved.
        """
        self.counts, self.patients, self.folders, self.read_first = Counter(), PatientNoteCounts(), 0, 0
        self.add_counts(result_counts)

    def summary_lines(self) -> Iterator[str]:
        """Yield lines for the console: the number of images in each class, and the notes on the pack's results."""
        is_bare = self.model.manifest.is_bare
        shown = {category: text for category, text in self.texts.items() if not (is_bare and category == "read_first")}
        yield self.line_prefix + "  ".join(f"{text} {self.counts[category]}" for category, text in shown.items())
        if is_bare:
            yield reason("unsigned_operating_point_unknown").text
        beside = [reason("read_first_images", count=self.read_first)] if self.read_first else []
        notes = (*beside, *self.patients.notes(self.model.manifest.accepted), *self.last_notes)
        yield from (self.line_prefix + note.text for note in dict.fromkeys(notes))

    def drift_sentences(self, database: Path, pack_in_run: PackOfRun) -> Iterator[str]:
        """Yield a sentence for each drift of this run's images that exceeds the limit.

        The images are compared with the pack's reference images and with images of earlier runs. Drift of the quantity
        "evidence" is left out, because the notes at the end of the run already mention this drift.

        pack_in_run  the run, and the position of the pack in the run
        """
        from fieldray.pipeline.run_warnings import drifts_of
        from fieldray.store.work_list import HistoryQuery

        with HistoryQuery(database) as query:
            found = drifts_of(query, query.run(pack_in_run.run_id), pack_in_run.position, self.model.manifest)
        for drift in found:
            if (
                drift.exceeds_limit and drift.quantity != "evidence"
            ):  # already printed with the notes at the end of the run
                yield self.line_prefix + drift.summary.text


class RunReport:
    """The console output of one run, for a person or a program.

    emit              receives the JSON lines; None without `--json`
    models            the packs, in the order of the run
    prints_work_list  whether the work list is printed at the end
    watches           whether folders are watched. If so, and `emit` is None, a line for each result is printed at once
    """

    def __init__(
        self,
        console: Console,
        emit: LineHandler | None,
        *,
        models: Sequence[Model],
        prints_work_list: bool,
        watches: bool = False,
    ) -> None:
        self._console = console
        self._emit = emit
        headings = pack_headings([(model.manifest.names["en"], model.pack_name) for model in models])
        self._packs = [
            PackSummary(*pair, is_one_of_several=len(models) > 1) for pair in zip(models, headings, strict=True)
        ]
        self._has_list, self._watches = prints_work_list and not watches, watches
        self._lock = threading.Lock()
        self._is_nothing_there = False
        self._last_notes: Sequence[Reason] = ()
        self._speed = Speed()
        self._backends: dict[str, str] = {}
        self._problem: Reason | None = None
        self._began_s = time.monotonic()

    def publish(self, event: Event) -> None:
        """Print an event of the run. The method may be called from any thread."""
        with self._lock:
            match event:
                case ImageDone():
                    self._note(event.image)
                case ResultsTakenOver():
                    self._note_taken_over(event)
                case Progress():
                    self._show(event)
                case Speed():
                    self._speed = event
                case BackendChanged(state="ready", is_in_use=True):
                    self._backends[event.backend] = event.detail
                case BackendChanged(state="unavailable", reason=why) if why:  # backends never change silently
                    self._console.print_error(f"{event.backend}: {why.text}")
                case RunChanged():
                    self._note_state(event)
                case StoreRepaired() | StoreUpdating():
                    self._console.print_error(event.reason.text)
                case _:
                    pass

    def begin(self, spec: RunSpec, *, ages_confirmed: bool = False) -> None:
        """Print the packs of the run, the patients each pack is for, and the operating points in use.

        ages_confirmed  whether the user confirmed by `--ages-confirmed` that patients without a known age have the
                        packs' ages
        """
        for pack, of_run in zip(self._packs, spec.packs, strict=True):
            self._introduce(pack, of_run.operating_points, ages_confirmed=ages_confirmed)
        if len(self._packs) > 1 and len(self._packs[0].model.files) > 1:  # there is a network for another device, too
            self._console.print_line("An Edge TPU runs only the first pack. The CPU runs the other packs.")

    def _introduce(self, pack: PackSummary, points: Sequence[OperatingPoint], *, ages_confirmed: bool) -> None:
        model = pack.model
        signer = {
            "builtin": "comes with the program",
            "legacy": "unsigned legacy model, operating point unknown: the larger output decides the class",
        }
        trust = signer.get(model.trust, f"signed with key {model.fingerprint}")
        manifest = model.manifest
        intended = intended_patients_sentence(manifest.accepted).text
        if manifest.accepted.ages_years:
            said = "Confirmed for files that state no age (--ages-confirmed)."
            unsaid = "PNG and JPEG files state no age; --ages-confirmed says that all patients are of these ages."
            intended = f"{intended} {said if ages_confirmed else unsaid}"
        self._console.print_line(f"Pack {model.pack_name} ({trust}). {intended}")
        if model.lungs_pack:
            self._console.print_line(f"Lung fields: {model.lungs_pack}")
        for point in points:
            borders = point.threshold, point.unsure_low, point.unsure_high
            has_band = point.unsure_low < point.unsure_high
            middle, low, high = (format_threshold(Translator(), border, min_digits=3) for border in borders)
            threshold = f"threshold {middle}, " if point.threshold != point.unsure_high else ""
            band = f", uncertain from {low}" if has_band else ""
            flagged = pack.texts["abnormal"]
            self._console.print_line(
                f"Operating point {point.name} ({point.label}): {threshold}{flagged} from {high}{band}"
            )

    def finish(
        self,
        batch: Batch,
        session: Session,
        *,
        out: Path | None,
        formats: Sequence[str] | None,
        options: ReportOptions,
    ) -> int:
        """Print the summary of a run and write the exports. Returns the exit code.

        out               folder for the exports; None for no exports
        formats, options  formats and options of the exports

        Raises UsageProblem, StorageProblem.
        """
        if self._has_list and batch.run_id:
            self._list(batch.run_id, session.database)
        if self._watches and batch.run_id:
            counts_by_pack = result_counts_of_run(session.database, batch.run_id)
            for pack, result_counts in zip(self._packs, counts_by_pack, strict=False):
                pack.set_counts(result_counts)
        self._sum_up()
        if batch.state == "finished":
            for position, pack in enumerate(self._packs):
                self._console.print_lines(pack.drift_sentences(session.database, PackOfRun(batch.run_id, position)))
        is_whole = not (out and batch.run_id) or self._export(session, batch.run_id, out, formats or (), options)
        if self._problem:
            self._console.print_error(self._problem.text)
            return 3 if self._problem.code in {**BACKEND_TEMPLATES, **PACKS} else 1
        if batch.state == "cancelled" and not self._watches:
            self._console.print_error("cancelled; run the same command again to resume, without --fresh")
        # The program that reads the JSON lines has not received all lines.
        if self._console.is_output_for_program and self._console.has_failed_output:
            return 1
        if batch.state == "cancelled":
            return CANCELLED_EXIT_CODE
        if not is_whole or any(pack.counts["failed"] for pack in self._packs):
            return 1
        return NO_IMAGES_EXIT_CODE if self._is_nothing_there or not image_count(self._packs[0].counts) else 0

    def write_map_files(self, session: Session, batch: Batch, folder: Path, *, code: int) -> int:
        """Write the files of `--maps` (heat map, lungs, overlay) for the screened images. Returns the exit code.

        folder  the folder for the files; with several packs, each pack gets a subfolder
        code    exit code of the command so far, which is returned if all files are written

        Raises UsageProblem, StorageProblem.
        """
        if not batch.run_id or code == CANCELLED_EXIT_CODE:
            return code
        for position, pack in enumerate(self._packs):
            own = folder / pack.model.pack_name if pack.line_prefix else folder
            code = self._add_maps(session, PackOfRun(batch.run_id, position), pack, own) or code
        return code

    def _add_maps(self, session: Session, pack_in_run: PackOfRun, pack: PackSummary, folder: Path) -> int:
        total = sum(pack.counts.values())
        number, missing = session.write_heat_maps(
            pack_in_run,
            folder,
            pack=pack.model,
            progress=lambda done: self._console.show_progress_bar(f"Maps {done}/{total}"),
        )
        self._console.print_line(f"Written: {folder} (maps of {number} {'image' if number == 1 else 'images'})")
        if missing:
            self._console.print_error(reason("maps_incomplete", count=missing).text)
        return int(missing > 0)

    def _export(self, session: Session, run_id: int, out: Path, formats: Sequence[str], options: ReportOptions) -> bool:
        """Write the exports of a run. Returns whether the exports include every expected image."""
        left_out = list[Reason]()
        written = session.export(
            run_id,
            out,
            formats,
            options=options,
            progress=lambda done, total: self._console.show_progress_bar(f"Reports {done}/{total}"),
            note=left_out.append,
        )
        self._console.print_lines(f"Written: {path}" for path in written)
        for why in left_out:
            self._console.print_error(why.text)
        for name in formats:
            if not any(path.name.endswith(exporters()[name].suffix) for path in written):
                self._console.print_line(f"Nothing was written as {name}: this format needs screened images.")
        return not left_out

    def _list(self, run_id: int, database: Path) -> None:
        from fieldray.store.work_list import HistoryQuery

        with HistoryQuery(database) as query:
            self._console.print_lines(_work_list(query.result_briefs(run_id), self._packs))

    def _note_state(self, event: RunChanged) -> None:
        self._problem = event.reason
        if event.state == "finished":  # notes are printed below the work list, so that they stay in sight
            self._last_notes = event.notes
            for pack, notes in zip(self._packs, event.pack_notes, strict=True):
                pack.last_notes = notes
        else:
            self._console.print_lines(note.text for note in event.notes)
        self._is_nothing_there |= any(note.code == "no_image_in" for note in event.notes)

    def _note_taken_over(self, event: ResultsTakenOver) -> None:
        for pack, result_counts in zip(self._packs, event.result_counts, strict=True):
            pack.add_counts(result_counts)
            pack.resumed += len(event.row_ids)

    def _note(self, image: StoredImage) -> None:
        for answer in image.results:
            self._note_answer(answer)

    def _note_answer(self, answer: StoredResult) -> None:
        pack, kind = self._packs[answer.pack_position], result_count_of_outcome(answer.outcome)
        pack.add_counts([kind])
        pack.resumed += answer.is_reused
        if self._emit or self._watches:
            model = pack.model
            made = {"pack": model.pack_name, "model_sha256": model.model_sha256, "lungs_pack": model.lungs_pack}
            line = image_result_values(answer.outcome, **made)
            known_by = ("sample" if answer.is_file_recognised_by_sample else "content") if answer.is_reused else None
            images = (
                int(kind.category != "not_an_image")
                if FOLDER_PROBLEM_CODES.isdisjoint(kind.reason_and_note_codes)
                else None
            )
            if self._emit:
                self._emit(json.dumps({**line, "images": images, "taken_over_by": known_by}))
            elif not known_by:
                shown = pack.texts[answer.outcome.category], answer.outcome.ref.key, line["score"], line["reason"]
                self._console.print_line(pack.line_prefix + "  ".join(str(part) for part in shown if part is not None))

    def _show(self, event: Progress) -> None:
        figures = event.done, event.total, event.images_per_s, event.remaining_s
        self._console.show_progress_bar(progress_text(*figures, is_final=event.total_is_final))

    def _sum_up(self) -> None:
        print_line, seconds = self._console.print_line, time.monotonic() - self._began_s
        first = self._packs[0]
        number = image_count(first.counts) - first.folders
        unknown = f", and an unknown number in unreadable folders ({first.folders})" if first.folders else ""
        # With several packs, notes of each pack give this number. In watched folders an image may count twice.
        resumed = first.resumed if len(self._packs) == 1 and not self._watches else 0
        rest = (f", {resumed} from an earlier run" if resumed else "") + unknown
        images = "image" if number == 1 else "images"
        print_line(f"{number} {images} in {duration_text(seconds)} ({number / seconds:.1f}/s){rest}")
        for pack in self._packs:
            self._console.print_lines(pack.summary_lines())
        self._console.print_lines(note.text for note in self._last_notes)
        speed = self._speed
        if speed.fps_min is not None and speed.fps_avg is not None and speed.fps_max is not None:
            print_line(
                "Model, images/s from the third image on (min / avg / max): "
                f"{speed.fps_min:.0f} / {speed.fps_avg:.0f} / {speed.fps_max:.0f}, "
                f"median {speed.p50_ms:.2f} ms, 95th percentile {speed.p95_ms:.2f} ms"
            )
        self._console.print_lines(f"Ran on {backend}: {detail}" for backend, detail in self._backends.items())
        print_line(RESEARCH_ONLY_NOTICE)


def _work_list(answers: Iterable[ResultBrief], packs: Sequence[PackSummary]) -> Iterator[str]:
    """Yield the lines of the work list.

    The header comes first. Each image then has a line with result, score and threshold of each pack, and the file.
    Reasons and notes follow below the line of the image.

    answers  results in the order of the list; the results of one image are next to each other
    """
    is_first, widths = True, [max(13, *map(len, pack.texts.values())) for pack in packs]
    for _, of_image in itertools.groupby(answers, lambda answer: answer.row_id):
        found = {answer.pack_position: answer for answer in of_image}
        if is_first:
            if len(packs) > 1:
                yield "  ".join(
                    f"{pack.heading:.{width + 17}}".ljust(width + 17) for pack, width in zip(packs, widths, strict=True)
                )
            yield "  ".join(f"{'result':<{width}} {'score':>6} {'threshold':>9}" for width in widths) + "  file"
            is_first = False
        cells = (_cells(found.get(position), pack, widths[position]) for position, pack in enumerate(packs))
        yield "  ".join((*cells, console_cell_text(next(iter(found.values())).image_name)))
        said = {position: list(_reason_and_notes(answer)) for position, answer in found.items()}
        of_all = [text for text in next(iter(said.values())) if all(text in texts for texts in said.values())]
        left = "" if len(packs) > 1 else f"{'':<{max(widths) + 12}}"
        yield from (f"{left}    {text}" for text in of_all)
        for position, texts in said.items():
            yield from (f"    {packs[position].line_prefix}{text}" for text in texts if text not in of_all)


def result_counts_of_run(database: Path, run_id: int) -> tuple[tuple[ResultCount, ...], ...]:
    """Return the counts of a run's results for each pack, in the order of the packs.

    A `ResultCount` is the number of a pack's results that share one class and one set of codes (of reason and notes).
    Every image that the last pass of the run found counts once.
    """
    from fieldray.store.results import ResultQuery

    with ResultQuery(database) as query:
        return query.count_results_of_run(run_id)


def _reason_and_notes(result: ResultBrief) -> Iterator[str]:
    """Yield the reason why an image was not suitable or failed, then the notes on the result."""
    if result.reason:
        yield result.reason.text + (" (--turn)" if can_be_fixed_by_turning(result.reason) else "")
    yield from (note.text for note in result.notes if note.code not in FREQUENT_NOTE_CODES)


def _cells(result: ResultBrief | None, pack: PackSummary, width: int) -> str:
    if result is None:
        return " " * (width + 17)
    name = pack.texts[result.category]
    shown = name.upper() if result.category in ("read_first", "abnormal") else name
    return f"{shown:<{width}} {format_printed_score(result):>6} {format_printed_threshold(result):>9}"
