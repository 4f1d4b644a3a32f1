"""Operations on past runs, for the command line and the window: list, open, compare and delete runs."""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from fieldray.domain.finding import WORK_LIST_ORDER, Category
from fieldray.domain.history import (
    DeletionPlan,
    DeletionResult,
    ImageTally,
    MonthlyCounts,
    ResultBrief,
    ResultFilter,
    ResultOrder,
    ResultPair,
    RunComparison,
    RunFilter,
    RunSummary,
    WorkListRows,
    compare_runs,
)
from fieldray.domain.metrics import wilson_share
from fieldray.domain.model import Manifest, Model
from fieldray.domain.run import VERDICT_KINDS, PackOfRun, Run, pack_of_run
from fieldray.errors import UsageProblem
from fieldray.formatting import (
    category_label,
    date_and_time_text,
    format_count,
    format_date,
    format_percent,
    pack_label,
    research_only_notice,
)
from fieldray.paths import SCRATCH_FOLDER_NAME
from fieldray.persistence import remove_unfinished_files
from fieldray.pipeline.export import find_manifest, find_used_pack
from fieldray.pipeline.run_warnings import warnings_of_run
from fieldray.reasons import Reason, merge_by_code, reason
from fieldray.reports.content import format_printed_score, format_printed_threshold
from fieldray.reports.document import Block, BulletList, Paragraph, Table
from fieldray.store.deletion import delete_patient, delete_runs, plan_deletion, plan_patient_deletion
from fieldray.store.work_list import HistoryQuery
from fieldray.translation import Translator

if TYPE_CHECKING:
    from fieldray.pipeline.constancy import ConstancyRecords

T = TypeVar("T")


# A run, and its packs by position. A pack that is not available is None; its results then have no heat maps.
RunWithPacks = tuple[Run, tuple[Model | None, ...]]


class History:
    """Lists, opens, compares and deletes past runs, and reads their work lists.

    Thread-safe. All methods except `interrupt` wait for the disk and raise StorageProblem.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._reading: HistoryQuery | None = None

    def run_query(self, query_function: Callable[[HistoryQuery], T]) -> T:
        """Call `query_function` with a query object that reads the results database. Returns the function's result."""
        with HistoryQuery(self._database) as query:
            return query_function(query)

    def list_rows(
        self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None = None
    ) -> WorkListRows:
        """Return the rows of a run that match a filter, in the requested order.

        limit  maximum number of rows; None for all

        Raises sqlite3.OperationalError after `interrupt`.
        """
        with HistoryQuery(self._database) as query:
            self._note(query)
            try:
                return query.list_rows(run_id, wanted, order, limit=limit)
            finally:
                self._note(None)

    def interrupt(self) -> None:
        """Stop a `list_rows` that runs in another thread, because its rows are no longer needed."""
        with self._lock:
            if self._reading is not None:
                self._reading.interrupt()

    def _note(self, query: HistoryQuery | None) -> None:
        with self._lock:
            self._reading = query

    def runs(self, wanted: RunFilter = RunFilter()) -> tuple[RunSummary, ...]:  # noqa: B008 - it is frozen
        """Return the runs that match a filter with their counts, the newest run first."""
        return tuple(found for found in self.run_query(HistoryQuery.run_summaries) if wanted.accepts(found))

    def image_quality_by_day(self) -> dict[str, Counter[str]]:
        """Return the number of images with each note on image quality, by day, for the last 31 days.

        The format is that of `HistoryQuery.image_quality_by_day`.
        """
        return self.run_query(lambda query: query.image_quality_by_day(since_s=time.time() - 31 * 86_400))

    def open(self, run_id: int, *, models: Sequence[Model] = ()) -> RunWithPacks:
        """Return a run with its packs, for display of its work list. Raises UsageProblem (history_no_run).

        models  loaded packs, which are searched first for the packs of the run
        """
        run = self.run_query(lambda query: query.run(run_id))
        return run, tuple(find_used_pack(pack, models) for pack in run.spec.packs)

    def warnings(self, run: Run, pack_position: int, model: Model | None) -> tuple[Reason, ...]:
        """Return warnings about a pack's results in a run as a whole. Takes seconds for a million images.

        pack_position  position of the pack in the run
        model          the loaded pack; None if the pack is not available
        """
        return self.run_query(
            lambda query: warnings_of_run(query, run, pack_position, model.manifest if model else None)
        )

    def compare(self, first: PackOfRun, second: PackOfRun) -> RunComparison:
        """Compare the results of two packs image by image. Both packs may belong to one run.

        Raises UsageProblem (history_no_run, history_no_pack, history_same_run).
        """
        if first == second:
            raise UsageProblem(reason("history_same_run"))
        with HistoryQuery(self._database) as query, query.snapshot():
            before, after = query.run(first.run_id), query.run(second.run_id)
            packs = pack_of_run(before, first.position), pack_of_run(after, second.position)
            answers = (query.result_briefs(one.run_id, pack_position=one.position) for one in (first, second))
            found = compare_runs(
                before, next(answers), after, next(answers), pack_positions=(first.position, second.position)
            )
            return replace(found, manifests=(find_manifest(packs[0]), find_manifest(packs[1])))

    def monthly_counts(
        self, first_day: datetime.date, constancy: ConstancyRecords, *, folder: Path | None = None
    ) -> MonthlyCounts:
        """Return the counts for the report on one month.

        first_day  the first day of the month, in local time
        constancy  the constancy tests made on this computer
        folder     folder whose images count; None for all images
        """
        after = (first_day + datetime.timedelta(days=31)).replace(day=1)
        since, until = (datetime.datetime.combine(day, datetime.time()).timestamp() for day in (first_day, after))
        tallies = self.run_query(lambda query: query.image_tallies(since, until, folder=folder))
        specs = {tally.spec.pack_name: tally.spec for tally in tallies}
        manifests = {name: find_manifest(spec) for name, spec in specs.items()}
        checks = tuple(one.summary for one in constancy.read().records if since <= one.at_s < until)
        return MonthlyCounts(first_day=first_day, tallies=tallies, manifests=manifests, constancy_results=checks)

    def save_month_report(self, path: Path, month: MonthlyCounts, translator: Translator) -> None:
        """Write the report on a month as PDF. Raises UsageProblem, StorageProblem.

        path   path of the PDF file
        month  the counts of the month
        """
        from fieldray.reports.exporter import is_own_pdf
        from fieldray.reports.outputs import write_output
        from fieldray.reports.pdf_pages import pdf_of_month

        title, blocks = month_report_title(translator, month), month_report_blocks(month, translator)
        write_output(path, is_own_pdf, pdf_of_month(title, blocks, month.first_day, translator))

    def plan_deletion(self, run_ids: Sequence[int]) -> DeletionPlan:
        """Return the plan to delete these runs. Nothing is deleted. Raises UsageProblem (history_no_run)."""
        return plan_deletion(self._database, run_ids)

    def plan_patient_deletion(self, patient_id: str) -> DeletionPlan:
        """Return the plan to delete a patient's images.

        Nothing is deleted. Raises UsageProblem (history_no_patient).
        """
        return plan_patient_deletion(self._database, patient_id)

    def remove_temporary_files(self) -> None:
        """Delete temporary files with images that killed processes left on this computer."""
        remove_unfinished_files(self._database.parent / SCRATCH_FOLDER_NAME)

    def delete(self, plan: DeletionPlan) -> DeletionResult:
        """Delete the runs or the patient of a plan permanently. Returns the numbers of deleted items.

        Raises UsageProblem (history_no_run, history_no_patient, history_in_use, history_grown).
        """
        self.remove_temporary_files()
        if plan.patient_id:
            return delete_patient(self._database, plan.patient_id, confirmed_plan=plan)
        return delete_runs(self._database, plan.run_ids, confirmed_plan=plan)


def comparison_blocks(
    found: RunComparison, translator: Translator, *, pairs: Sequence[ResultPair]
) -> tuple[BulletList, Table, Table]:
    """Return the parts of a report on two runs: a summary, a table of class changes, and a table of image pairs."""
    text, plural, said, columns = translator.text, translator.plural, list[str](), list[str]()
    for run, (of, spec), only in zip(
        (found.first, found.second), found.compared_packs, (found.only_in_first, found.only_in_second), strict=True
    ):
        day, pack = date_and_time_text(translator, run.started_s), pack_label(translator, spec)
        said.append(text("Run {number}, {day}: {pack}", number=of, day=day, pack=pack))
        if only:
            alone = plural(
                "{count} image is only in run {run}.",
                "{count} images are only in run {run}.",
                len(only),
                run=of,
            )
            said.append(alone)
        columns += [text("Run {number}", number=of), text("Score") + f" ({of})"]
    both = plural("{count} image is in both runs.", "{count} images are in both runs.", len(found.pairs))
    changed = plural(
        "Of the images in both runs, {count} has different classes in the two runs.",
        "Of the images in both runs, {count} have different classes in the two runs.",
        found.changed_count,
    )
    said.append(f"{both} {changed}")
    if not found.has_single_label:
        said.append(translator.reason(reason("history_other_label")))
    before, after = (partial(_class, translator, manifest) for manifest in found.manifests)
    score = partial(_score, translator)
    moves = sorted(found.counts_by_classes.items(), key=lambda move: (move[0][0] == move[0][1], -move[1]))
    rows = tuple((before(first), after(second), format_count(images)) for (first, second), images in moves)
    changes = tuple(
        (
            *(before(pair.first.category), score(pair.first)),
            *(after(pair.second.category), score(pair.second)),
            *(
                _change(translator, pair.score_difference),
                translator.name_unless_hidden(pair.first.image_name, row_id=pair.first.row_id),
            ),
        )
        for pair in pairs
    )
    return (
        BulletList(text("Two runs compared"), tuple(said)),
        Table("", (*columns[::2], text("Images")), rows),
        Table("", (*columns, text("Change of score"), text("Image")), changes),
    )


def _class(translator: Translator, manifest: Manifest | None, category: Category) -> str:
    return category_label(translator, category, manifest)


def _score(translator: Translator, found: ResultBrief) -> str:
    """Return a result's score with its threshold in brackets, as text."""
    return translator.with_decimal_mark(
        format_printed_score(found) + (f" ({format_printed_threshold(found)})" if found.point else "")
    )


def _change(translator: Translator, difference: float | None) -> str:
    return "-" if difference is None else translator.with_decimal_mark(f"{difference:+.3f}")


def deletion_plan_sentences(plan: DeletionPlan) -> tuple[Reason, ...]:
    """Return the sentences that a person reads before agreeing to a deletion."""
    code = "history_patient_deletes" if plan.patient_id else "history_deletes"
    said = [reason(code, results=plan.result_count)]
    if plan.verdict_count:
        said.append(reason("history_verdicts", count=plan.verdict_count))
    if plan.kept_verdict_count:
        said.append(reason("history_verdicts_kept", count=plan.kept_verdict_count))
    if not plan.verdict_count:
        said.append(reason("history_no_verdicts"))
    return (*said, reason("history_files_stay"))


def deletion_sentences(done: DeletionResult) -> tuple[Reason, ...]:
    """Return the sentences that tell a person what was deleted."""
    said = [reason("history_deleted", count=len(done.plan.run_ids))]
    if done.plan.patient_id:
        said = [reason("history_patient_deleted", results=done.plan.result_count)]
    if (freed_mb := f"{max(0, done.freed_bytes) / 1e6:.1f}") != "0.0":
        said.append(reason("history_freed", freed_mb=freed_mb))
    if done.files_with_possible_copies:
        left = [Path(copy) for copy in done.files_with_possible_copies]
        names = ", ".join(copy.name for copy in left)
        said.append(reason("history_copies_left", folder=left[0].parent, names=names))
    if not done.is_deleted_data_overwritten:
        said.append(reason("history_not_wiped"))
    return tuple(said)


def month_report_title(translator: Translator, month: MonthlyCounts) -> str:
    """Return the title of the report on a month."""
    return translator.text("Report for the month that begins on {date}", date=format_date(translator, month.first_day))


def month_report_blocks(month: MonthlyCounts, translator: Translator) -> tuple[Block, ...]:
    """Return the parts of the report on a month: the results of each pack, and the constancy tests."""
    blocks: list[Block] = [Paragraph(research_only_notice(translator), "notice")]
    for name, manifest in month.manifests.items():
        blocks += _of_pack(name, manifest, [one for one in month.tallies if one.spec.pack_name == name], translator)
    text, checks = translator.text, tuple(map(translator.reason, month.constancy_results))
    blocks += [] if month.tallies else [Paragraph(text("Nothing was screened in this month."))]
    return (*blocks, BulletList(text("Constancy test"), checks or (text("No constancy test was run in this month."),)))


_VERDICTS_WIDTH_MM: Final = 100.0


def _of_pack(
    name: str, manifest: Manifest | None, tallies: Sequence[ImageTally], translator: Translator
) -> Iterator[Block]:
    text, images, whys, answers = translator.text, Counter[str](), Counter[Reason](), Counter[str | None]()
    verdicts = Counter[tuple[str, str | None]]()
    for tally in tallies:
        images[tally.category] += tally.image_count
        verdicts[tally.category, tally.verdict] += tally.image_count
        if tally.category in ("abnormal", "normal"):
            answers[tally.verdict] += tally.image_count
        if tally.reason and tally.category in ("refused", "failed"):
            whys[tally.reason] += tally.image_count
    rows = [
        (
            category_label(translator, category, manifest),
            format_count(images[category]),
            *(format_count(verdicts[category, verdict]) for verdict in VERDICT_KINDS),
        )
        for category in WORK_LIST_ORDER
        if images[category]
    ]
    columns = text("Class"), text("Images"), *(value.column_title(translator) for value in VERDICT_KINDS.values())
    title = f"{translator.pack_text(manifest.names)} · {name}" if manifest else name
    yield Table(
        title,
        columns,
        tuple(rows),
        column_widths_mm=(48.0, 30.0, *[_VERDICTS_WIDTH_MM / len(VERDICT_KINDS)] * len(VERDICT_KINDS)),
    )
    points = [tally.spec.operating_points for tally in tallies if not tally.reason]
    if any(one != points[0] for one in points):
        yield BulletList("", (text("The counts combine results of different operating points."),))
    judged = sum(answers[choice] for choice, value in VERDICT_KINDS.items() if value.confirms_result is not None)
    if judged:
        agreed = sum(answers[choice] for choice, value in VERDICT_KINDS.items() if value.confirms_result)
        share = format_percent(translator, wilson_share(agreed, judged, effective_count=judged).estimate)
        said = text("Readers agreed with {share} of {judged} results that have a verdict.", judged=judged, share=share)
        bias = text(
            "Readers saw the result before the readers gave a verdict, so agreement is overestimated (automation bias)."
        )
        yield BulletList("", (said, bias))
    if whys:
        reasons = tuple(
            (translator.reason(why), format_count(number)) for why, number in merge_by_code(whys).most_common()
        )
        yield Table(
            text("Not screened, by reason"), (text("Reason"), text("Images")), reasons, column_widths_mm=(150.0, 28.0)
        )
