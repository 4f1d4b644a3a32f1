"""Control of comparisons with prior images: the available prior images, the chosen one, and the comparison. No widgets.

While comparing is on, every opened image is compared with its newest prior image. One comparison runs at a time;
opening another image cancels the comparison. The results are kept in memory for the reports of this window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, Signal

from fieldray.desktop.background import BackgroundTasks, Services
from fieldray.desktop.current_image import CurrentImage
from fieldray.desktop.image_painting import ImageOverlays, Point, image_overlays
from fieldray.desktop.worklist_model import WorkListModel
from fieldray.desktop.worklist_rows import WorkListRow
from fieldray.domain.comparison import ImageOfPair, PairComparison
from fieldray.domain.finding import Outcome
from fieldray.domain.patient import match_patients
from fieldray.domain.prior_image import (
    ComparisonRecord,
    PriorImage,
    StoredPriorImages,
    comparison_record,
    prior_from,
    prior_warnings,
    priors_of,
)
from fieldray.domain.run import StoredImage, StoredResult
from fieldray.errors import Cancelled, FieldrayError
from fieldray.reasons import Reason, reason

_SEARCH, _COMPARE, _FILE = "priors", "compare", "prior"
_NO_ROW: Final = -1


class ComparisonController(QObject):
    """Controls the comparison of the current image with a prior image. Call all methods in the window's thread.

    changed           emitted when the prior images, the chosen prior image or the comparison have changed
    question_changed  emitted when a question about an image of another patient was opened or answered
    """

    changed = Signal()
    question_changed = Signal()

    def __init__(
        self, background: BackgroundTasks, rows: WorkListModel, *, image: CurrentImage, second_image: CurrentImage
    ) -> None:
        super().__init__()
        self._background, self._board, self._rows = background, background.notice_board, rows
        self.image, self.second_image = image, second_image
        self._listed: tuple[WorkListRow, ...] = ()
        self._gone, self._before, self._chosen_files = 0, tuple[StoredResult, ...](), tuple[Outcome, ...]()
        self._wanted: object | None = None  # identifies the running comparison
        self._records: dict[tuple[str, int, str, int, str], ComparisonRecord] = {}
        self.question: PriorImage | None = None  # an image of another patient, about which a person is asked
        self.is_on = False
        self.is_searching = False
        self.is_running = False
        self.priors: tuple[PriorImage, ...] = ()
        self.prior: PriorImage | None = None
        self.comparison: PairComparison | None = None
        self.overlays: ImageOverlays | None = None
        self.problem: Reason | None = None
        image.changed.connect(self._image_changed)
        second_image.changed.connect(self._second_image_changed)
        for opened in (image, second_image):
            opened.loaded.connect(self._begin)

    # ---- commands of a person

    def start(self) -> None:
        """Compare the current image, and each image opened later, with its newest prior image."""
        row = self.image.row
        if row is None:
            return
        self.is_on = True
        self._board.withdraw("prior")
        self._search(row)
        self.changed.emit()

    def stop(self) -> None:
        """Stop the comparison, and show the current image alone."""
        self.is_on = False
        self._drop()
        if self.second_image.row is not None:
            self.second_image.show(None)
        self.changed.emit()

    def start_or_stop(self) -> None:
        """Start comparing images, or stop if comparing is on."""
        (self.stop if self.is_on else self.start)()

    def compare_with_prior(self, prior: PriorImage) -> None:
        """Start comparing the current image with a prior image."""
        self.is_on = True
        self._drop()
        self.prior = prior
        self.second_image.show(self._row_of(prior))
        self.changed.emit()

    def compare_with_next_prior(self) -> None:
        """Compare the current image with the next older prior image.

        After the oldest prior image, the newest one follows.
        """
        if self.priors:
            index = self.priors.index(self.prior) + 1 if self.prior in self.priors else 0
            self.compare_with_prior(self.priors[index % len(self.priors)])

    def compare_with_file(self, path: Path) -> None:
        """Compare the current image with the image in a file. If the patients differ, a person is asked first.

        path  path of the file
        """
        row = self.image.row
        if row is None:
            return
        run_id = row.run_id
        self._board.withdraw("prior")
        outcome = row.outcome

        def work(services: Services) -> tuple[Outcome, StoredImage | None]:
            found = services.priors.screen_file(path, outcome)
            stored = services.history.run_query(lambda query: query.find_image(run_id, found.ref)) if run_id else None
            return found, stored

        self._background.run_with_services(
            work, channel=_FILE, newest_only=True, done=lambda found: self._has_read_file(row, *found)
        )

    def answer_other_patient_question(self, question: PriorImage, *, is_confirmed: bool) -> None:
        """Handle a person's answer to the question whether to compare with an image of another patient.

        question      the image of the question
        is_confirmed  whether the person wants the comparison
        """
        if question is self.question:
            self._put(None)
            if is_confirmed:
                self._add_file(question)

    # ---- state for other modules

    @property
    def image_with_problem(self) -> ImageOfPair:
        """The image that prevents the comparison: "prior", "current" or "both"."""
        comparison = self.comparison
        if comparison is not None:
            return comparison.problem.image if comparison.problem else "both"
        if self.second_image.problem is not None:
            return "prior"
        return "current" if self.image.problem is not None else "both"

    @property
    def warnings(self) -> Sequence[Reason]:
        """The warnings to show with the visible comparison."""
        row, note = self.image.row, self.second_image.preview_note
        if row is None or self.prior is None:
            return ()
        return (*prior_warnings(self.prior, row.outcome), *([note] if note else ()))

    @property
    def may_find_prior_soon(self) -> bool:
        """Whether a search for prior images is running, after which a prior image may be shown."""
        return self.is_on and self.is_searching and self.prior is None

    @property
    def no_prior_reason(self) -> Reason | None:
        """The reason why no prior image can be chosen; None if there are prior images, or during the search."""
        row = self.image.row
        if row is None or self.priors or self.is_searching:
            return None
        if match_patients(row.header, row.header) == "unknown":
            return reason("prior_no_number")
        gone = self._gone
        return reason("prior_gone", count=gone) if gone else reason("prior_none")

    def point_mapping(self, *, to_prior: bool) -> Callable[[Point], Point] | None:
        """Return a function that maps a point (x, y) of one image to the other image, in pixels.

        to_prior  True for points of the current image, False for points of the prior image

        Returns None if no comparable images are visible.
        """
        pair = self.comparison
        if pair is None or not pair.is_comparable:
            return None
        lead = pair.position_in_prior if to_prior else pair.position_in_current
        return lambda point: lead(point[1], point[0])[::-1]

    def comparison_records(self) -> tuple[ComparisonRecord, ...]:
        """Return all comparisons made in this window, for reports."""
        return tuple(self._records.values())

    def forget_comparisons(self) -> None:
        """Forget all comparisons made in this window, because results were deleted."""
        self._records.clear()
        self._listed, self._gone, self._before, self._chosen_files = (), 0, (), ()

    # ---- searching

    def _image_changed(self) -> None:
        row = self.image.row
        self._drop()
        self._listed, self._gone, self._before, self._chosen_files, self.is_searching = (), 0, (), (), False
        self._background.discard_channel_tasks(_SEARCH)
        self._background.discard_channel_tasks(_FILE)
        self._board.withdraw("prior")
        if self.question is not None:
            self._put(None)
            self._board.post_reason("prior", reason("prior_question_closed"), level="warning")
        self._find()
        if row is not None:
            self._search(row)
        if self.is_on:
            self._choose_first()
        self.changed.emit()

    def _search(self, row: WorkListRow) -> None:
        """Search for prior images of the patient of a row.

        The result is discarded if another image is opened meanwhile.
        """
        outcome, run_id = row.outcome, row.run_id
        self.is_searching = True
        self._background.run_with_services(
            lambda services: services.priors.stored_priors(outcome, run_id=run_id),
            channel=_SEARCH,
            newest_only=True,
            done=partial(self._has_found, run_id),
            failed=self._not_found,
        )

    def _has_found(self, run_id: int | None, stored: StoredPriorImages) -> None:
        listed = (self._rows.row_of_image(image) for image in stored.images if image.run_id == run_id)
        row = self.image.row
        self._listed = (
            *self._listed,
            *((one.row_of_pack(row.pack_position) if row else None) or one for one in listed),
        )
        model = getattr(row.outcome, "model_sha256", "") if row else ""
        before = (image for image in stored.images if image.run_id != run_id)
        self._before = tuple(image.result_of_model(model) for image in before)
        self._gone, self.is_searching = stored.missing_file_count, False
        self._find()
        if self.is_on and self.prior is None:
            self._choose_first()
        self.changed.emit()

    def _not_found(self, error: FieldrayError) -> None:
        self.is_searching = False
        self._board.post_error("prior", error)
        self.changed.emit()

    def _find(self) -> None:
        """Collect the prior images in the run, in earlier runs, and among the files chosen for this image."""
        row = self.image.row
        if row is None:
            self.priors = ()
            return
        here = (("run", other.outcome) for other in self._listed)
        before = (("history", answer.outcome) for answer in self._before)
        found = priors_of(row.outcome, (*here, *before))  # type: ignore[arg-type]
        chosen = tuple(prior_from(outcome, row.outcome, "file") for outcome in self._chosen_files)
        known = {id(prior.outcome): prior for prior in self.priors}
        self.priors = tuple(known.get(id(prior.outcome), prior) for prior in (*found, *chosen))

    def _choose_first(self) -> None:
        if self.priors:
            self.compare_with_prior(self.priors[0])
        elif self.second_image.row is not None:
            self.second_image.show(None)
        self.changed.emit()

    def _has_read_file(self, row: WorkListRow, found: Outcome, listed: StoredImage | None) -> None:
        known = self._rows.row_of_image(listed) if listed else None
        known = known and (known.row_of_pack(row.pack_position) or known)
        if known is not None:
            self._listed = (*self._listed, known)
        prior = prior_from(known.outcome if known else found, row.outcome, "file")
        if prior.patient_match == "other":
            self._put(prior)
        else:
            self._add_file(prior)

    def _put(self, question: PriorImage | None) -> None:
        """Ask a person whether to compare with an image of another patient.

        question  the image of another patient; None withdraws the question
        """
        self.question = question
        self.question_changed.emit()

    def _add_file(self, prior: PriorImage) -> None:
        self._chosen_files = (*self._chosen_files, prior.outcome)
        self.priors = (*self.priors, prior)
        self.compare_with_prior(prior)

    def _row_of(self, prior: PriorImage) -> WorkListRow:
        """Return the work-list row of a prior image. An image that is not listed gets a new row."""
        listed = next((row for row in self._listed if row.outcome is prior.outcome), None)
        if listed is not None:
            return listed
        row = self.image.row
        stored = next((found for found in self._before if found.outcome is prior.outcome), None)
        models = [getattr(outcome, "model_sha256", "") for outcome in (prior.outcome, row.outcome if row else None)]
        is_same_model = row is not None and models[0] == models[1] != ""
        manifest = row.manifest if row is not None and is_same_model else None
        if stored is None:
            return WorkListRow(_NO_ROW, prior.outcome, manifest)
        return WorkListRow(stored.row_id, prior.outcome, manifest, stored.verdict, result_id=stored.result_id)

    # ---- comparing

    def _second_image_changed(self) -> None:
        """Stop comparing if the prior image was closed or another image was pinned in its place."""
        if self.is_on and self.prior is not None:
            shown = self.second_image.row
            if shown is None or shown.outcome is not self.prior.outcome:
                self.is_on = False
                self._drop()
                self.changed.emit()

    def _drop(self) -> None:
        """Remove the comparison and its overlays at once, and cancel a running comparison."""
        services, self._wanted = self._background.services, None
        if services is not None and self.is_running:
            services.priors.cancel()
        self._background.discard_channel_tasks(_COMPARE)
        self.prior = self.comparison = self.overlays = self.problem = None
        self.is_running = False

    def _begin(self) -> None:
        """Begin the comparison of the current image with its prior image, as soon as both images are loaded."""
        row, prior = self.image.row, self.prior
        if prior is None or row is None or self.is_running or self.comparison or self.problem:
            return
        if self.image.is_loading or self.second_image.is_loading:
            return
        self.problem = self.second_image.problem or self.image.problem
        if self.problem is not None:
            self.changed.emit()
            return
        self.is_running, wanted = True, object()
        self._wanted = wanted
        self.changed.emit()
        pyramid, open_pyramid = self.second_image.pyramid, self.image.pyramid

        def work(services: Services) -> tuple[PairComparison, ImageOverlays | None]:
            try:
                comparison = services.priors.compare(prior, row.outcome, is_wanted=lambda: self._wanted is wanted)
            except Cancelled:
                raise FieldrayError(reason("comparison_stopped")) from None
            if not comparison.is_comparable or pyramid is None or open_pyramid is None:
                return comparison, None
            return comparison, image_overlays(pyramid, comparison, rows=open_pyramid.rows, columns=open_pyramid.columns)

        self._background.run_with_services(
            work,
            channel=_COMPARE,
            newest_only=True,
            done=lambda compared: self._has_compared(prior, row, *compared),
            failed=self._not_compared,
        )

    def _has_compared(
        self, prior: PriorImage, row: WorkListRow, comparison: PairComparison, laid: ImageOverlays | None
    ) -> None:
        self.comparison, self.overlays, self.is_running = comparison, laid, False
        self.problem = comparison.problem.reason if comparison.problem else None
        self._keep(comparison_record(prior, row.outcome, comparison))
        self.changed.emit()

    def _not_compared(self, error: FieldrayError) -> None:
        self.is_running, self.problem = False, error.reason
        self.changed.emit()

    def _keep(self, record: ComparisonRecord) -> None:
        header = record.prior_header
        which = f"{header.sop_instance_uid} {header.study_date} {header.study_time}"
        self._records[record.current_sha256, record.current_frame, which, record.prior_frame, header.patient_id] = (
            record
        )
