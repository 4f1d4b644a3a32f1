"""The open image, whose pixels are loaded in the background at full resolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QImage

from fieldray.desktop.background import BackgroundTasks
from fieldray.desktop.image_painting import ImagePyramid, make_image_pyramid
from fieldray.desktop.worklist_rows import WorkListRow
from fieldray.domain.finding import FailedOutcome, Outcome, RefusedOutcome, ScreenedOutcome, lungs_of
from fieldray.domain.image import Box, Image, Window
from fieldray.domain.model import InputSpec
from fieldray.domain.run import RefusalOverrides
from fieldray.errors import FieldrayError
from fieldray.imaging.preprocess import to_network_input
from fieldray.reasons import Reason, reason

if TYPE_CHECKING:
    from fieldray.pipeline.session import Session


class CurrentImage(QObject):
    """The image that is open in the window: one result, and the pixels, which are loaded in the background.

    The shown result never changes by itself. If the image gets a newer result, `is_result_replaced` becomes True. Only
    `show` then opens the newer result. If another image is opened during loading, the pixels of the first image are
    dropped.

    is_visible     whether the image is painted, and all keys that were pressed before the painting are handled
    pixels_sha256  SHA-256 of the file content that `pyramid` shows; "" if no pixels are loaded
    """

    changed = Signal()
    loaded = Signal()
    result_replaced = Signal()
    screening_changed = Signal()
    screened_again = Signal(object, object)  # the row with the old result, and the new outcome

    def __init__(self, background: BackgroundTasks, *, channel: str = "image") -> None:
        super().__init__()
        self._background, self._board, self._channel = background, background.notice_board, channel
        self.row: WorkListRow | None = None
        self.packs: tuple[WorkListRow, ...] = ()  # the results of all packs for the image, `row` included
        self.pyramid: ImagePyramid | None = None
        self.network_image: ImagePyramid | None = None
        self.problem: Reason | None = None
        self.preview_note: Reason | None = None
        self.is_loading = self.is_screening = self.is_visible = self.is_result_replaced = False
        self.pixels_sha256 = ""
        self._chosen: tuple[int | None, int] | None = None  # run, and position of the chosen pack in the run
        self._asked_again: WorkListRow | None = None

    def show(self, row: WorkListRow | None) -> None:
        """Open the image of a row. With None, close the current image.

        If the run has several packs, the result of the pack that a person chose last in this run is shown.
        """
        self.packs = row.result_rows if row is not None else ()
        self.is_result_replaced = False
        self._open(
            next((one for one in self.packs if (one.run_id, one.pack_position) == self._chosen), row),
            keeps_pixels=False,
        )

    def show_pack_result(self, row: WorkListRow) -> None:
        """Show another pack's result for the current image, and for images opened later.

        row  the row with the result of the other pack
        """
        assert row in self.packs and self.row is not None
        self._chosen = row.run_id, row.pack_position
        before, after = ((one.outcome.facts.content_sha256, one.outcome.ref.correction) for one in (self.row, row))
        self._open(row, keeps_pixels=before == after)

    def mark_result_replaced(self, row: WorkListRow) -> None:
        """Record that the database has a newer result in place of the shown result.

        The shown result stays visible, but no verdict on it is possible any more.
        """
        if row in self.packs and row is not self._asked_again:
            self.is_result_replaced = True
            self.result_replaced.emit()

    def _open(self, row: WorkListRow | None, *, keeps_pixels: bool) -> None:
        if not keeps_pixels:
            self.pyramid, self.pixels_sha256 = None, ""
        self.row, self.network_image, self.problem = row, None, None
        self.preview_note = None
        self.is_loading, self.is_visible = row is not None, False
        self._background.discard_channel_tasks(self._channel)
        self.changed.emit()
        if row is None:
            return
        if keeps_pixels:
            self._soon_in_sight(row)
        ref, content = row.outcome.ref, row.outcome.facts.content_sha256
        if ref.problem is not None and not ref.problem_is_refusal:
            self._not_read(row, ref.problem)
            return
        seen = _network_input_of(row)
        self._background.run_with_services(
            lambda services: _pyramids(services.session.read_image(ref, content_sha256=content), seen),
            channel=self._channel,
            newest_only=True,
            done=lambda pyramids: self._has_read(row, *pyramids),
            failed=lambda error: self._not_read(row, error.reason),
        )

    def discard_pending_results(self) -> None:
        """Discard the result of the running background task, because the program is closing."""
        self._background.discard_channel_tasks(self._channel)

    def screen_again(self, overrides: RefusalOverrides) -> None:
        """Screen the current image again, unless an image is being screened again already.

        overrides  refusals that a person overrules, and the turn of the image that the person asked for
        """
        row = self.row
        if row is None or self.is_screening:
            return
        judged, self._asked_again = row.outcome, row
        self._board.withdraw("again")
        self._set_screening(True)
        self._background.run_with_services(
            lambda services: services.session.screen_again(row.result_id, judged=judged, overrides=overrides),
            channel="again",
            done=lambda outcome: self._has_screened_again(row, outcome, overrides),
            failed=self._not_screened_again,
        )

    def _has_screened_again(self, row: WorkListRow, outcome: Outcome, overrides: RefusalOverrides) -> None:
        self._asked_again = None
        self._set_screening(False)
        if isinstance(outcome, FailedOutcome) or (
            isinstance(outcome, RefusedOutcome) and overrides != RefusalOverrides()
        ):
            why = reason("again_refused") if isinstance(outcome, RefusedOutcome) else outcome.reason
            self._board.post_reason("again", why, level="warning")
            return
        self.screened_again.emit(row, outcome)

    def _not_screened_again(self, error: FieldrayError) -> None:
        self._asked_again = None
        self._set_screening(False)
        self._board.post_error("again", error)

    def _set_screening(self, is_screening: bool) -> None:
        self.is_screening = is_screening
        self.screening_changed.emit()

    def _has_read(self, row: WorkListRow, pyramid: ImagePyramid, network_image: ImagePyramid | None) -> None:
        if row is self.row:
            self.pyramid, self.network_image = pyramid, network_image
            self._has_loaded(row)

    def _has_loaded(self, row: WorkListRow) -> None:
        """Handle the end of loading an image. The image counts as visible when the window's thread is idle."""
        self.is_loading = False
        self.pixels_sha256 = row.outcome.facts.content_sha256 if self.pyramid is not None else ""
        self.loaded.emit()
        self._soon_in_sight(row)

    def _soon_in_sight(self, row: WorkListRow) -> None:
        QTimer.singleShot(0, self, lambda: self._has_painted(row))

    def _has_painted(self, row: WorkListRow) -> None:
        if row is self.row and (self.pyramid is not None or not self.is_loading):
            self.is_visible = True

    def _not_read(self, row: WorkListRow, why: Reason) -> None:
        """Show the stored preview of an image whose file cannot be read, with a notice.

        why  the reason why the file cannot be read
        """
        facts, path = row.outcome.facts, row.outcome.ref.path
        if row is not self.row:
            return
        if not path.is_absolute():
            why = reason("object_elsewhere", address=path)
        if not facts.content_sha256 or not facts.rows:
            self._show_kept(row, why, None, None)
            return
        self._background.run_with_services(
            lambda services: _stored_picture(services.session, row.outcome),
            channel=self._channel,
            newest_only=True,
            done=lambda kept: self._show_kept(row, why, *kept),
            failed=lambda error: self._show_kept(row, why, None, error.reason),
        )

    def _show_kept(self, row: WorkListRow, why: Reason, pyramid: ImagePyramid | None, note: Reason | None) -> None:
        if row is self.row:
            self.problem, self.pyramid, self.preview_note = why, pyramid, note
            self._has_loaded(row)


def _network_input_of(row: WorkListRow) -> tuple[InputSpec, Box | None] | None:
    """Return the specification of the network's input, and the region of a row's image that the network saw.

    The region is None for the whole image. Returns None without a pack, or if lungs that the network needs were not
    found.
    """
    if row.manifest is None:
        return None
    spec, facts, lungs = row.manifest.input, row.outcome.facts, lungs_of(row.outcome)
    if spec.crop == "none":
        return spec, None
    if lungs is None or lungs.refusal:
        return (spec, None) if isinstance(row.outcome, ScreenedOutcome) else None
    return spec, lungs.crop_box(rows=facts.rows, columns=facts.columns, margin=spec.crop_margin, crop=spec.crop)


def _pyramids(image: Image, seen: tuple[InputSpec, Box | None] | None) -> tuple[ImagePyramid, ImagePyramid | None]:
    """Return an image at several resolutions, and the network's input made from the image; None without a network.

    seen  specification of the network's input, and the region of the image
    """
    if seen is None:
        return make_image_pyramid(image), None
    tensor = to_network_input(image, seen[0], box=seen[1])
    return make_image_pyramid(image), make_image_pyramid(Image(pixels=tensor.values[0, :, :, 0]))


def _stored_picture(session: Session, outcome: Outcome) -> tuple[ImagePyramid | None, Reason | None]:
    """Return the preview or thumbnail stored with a result, and the notice to show with the picture.

    The picture is None if none is stored.
    """
    facts = outcome.facts
    try:
        pixels = outcome.ref.correction.apply_to_grey(
            session.read_preview(facts.content_sha256, frame=outcome.ref.frame)
        )
        note = reason("preview_shown")
    except FieldrayError as error:
        if facts.thumbnail is None:
            return None, error.reason
        pixels = facts.thumbnail
        note = reason("preview_shown") if error.reason.code == "preview_missing" else error.reason
    return enlarge_preview(pixels, rows=facts.rows, columns=facts.columns), note


# ---- a preview enlarged to the size of the image, so that overlays and measurements have the right positions

_MAX_ENLARGED_PIXELS: Final = 2**26
_AS_IT_IS: Final = Window(127.5, 255.0, "LINEAR_EXACT")  # a preview contains grey levels as displayed


def enlarge_preview(pixels: NDArray[np.uint8], *, rows: int, columns: int) -> ImagePyramid | None:
    """Enlarge grey levels (height, width) uint8 to an image of rows x columns pixels.

    Returns None if the image would have no pixel, or more than 67 million.
    """
    if min(rows, columns) < 1 or rows * columns > _MAX_ENLARGED_PIXELS:
        return None
    grey = np.ascontiguousarray(pixels)
    small = QImage(grey.tobytes(), grey.shape[1], grey.shape[0], grey.shape[1], QImage.Format.Format_Grayscale8)
    large = small.scaled(
        columns, rows, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation
    ).convertToFormat(QImage.Format.Format_Grayscale8)
    lines = np.frombuffer(large.constBits(), np.uint8).reshape(rows, large.bytesPerLine())
    return make_image_pyramid(Image(pixels=lines[:, :columns].copy(), window=_AS_IT_IS, has_approximate_pixels=True))
