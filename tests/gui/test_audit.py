"""The audit page: its questions, its figures, the image of a disagreement, and consent to a local operating point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk, texts
from fake_rooms import SPEC
from PySide6.QtWidgets import QApplication, QComboBox

from fieldray.audit.report import ScreeningPrices
from fieldray.desktop.audit_page import AuditPage, LocalOperatingPointDialog
from fieldray.domain.run import PackOfRun
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray.store.results import ResultStore


@pytest.fixture
def page(desk: Desk) -> AuditPage:
    """The audit page after a run."""
    desk.screen()
    desk.finish()
    desk.window.actions_by_name["audit"].trigger()
    assert desk.window.pages.currentWidget() is desk.window.audit_page
    return desk.window.audit_page


def show(desk: Desk, page: AuditPage) -> None:
    page.button.click()
    desk.until(lambda: page._result is not None and page._result.isVisible())


def test_the_audit_waits_until_the_run_is_over(desk: Desk) -> None:
    desk.window.actions_by_name["audit"].trigger()
    page = desk.window.audit_page
    assert not page.button.isEnabled()
    assert "An audit needs a finished run." in texts(page)


def test_the_audit_is_requested_as_chosen_and_its_figures_are_shown(desk: Desk, page: AuditPage) -> None:
    page.select_label_table(Path("/labels.csv"))
    page.positive.setText("tb, mass")
    page.prevalence.setText("2,5 %")
    page.sensitivity.setValue(95)
    show(desk, page)
    ((of, request, model),) = desk.rooms.audit.requests
    assert of == PackOfRun(desk.bench.screening.run_id or 0)
    assert model is desk.bench.screening.run_models[0]
    assert (request.label_source, request.positive_classes) == (Path("/labels.csv"), ("tb", "mass"))
    assert (request.prevalence, request.goal.sensitivity) == (pytest.approx(0.025), 0.95)
    assert (request.counted_unit, request.referral_rule) == (None, "above")
    text = texts(page)
    assert "Area under the ROC curve (AUC)" in text
    assert "in the reference (earlier images of this folder)" in text
    assert "Local operating point for a sensitivity of 90.0 %" in text
    desk.until(lambda: all(chart.height() == chart.sizeHint().height() for chart in (page.curve, page.calibration)))
    assert page.curve.grab().toImage() != page.calibration.grab().toImage()


def test_the_audit_requests_a_chosen_threshold_prices_and_a_run_to_compare(desk: Desk, page: AuditPage) -> None:
    own = desk.bench.screening.run_id
    with ResultStore(desk.rooms.database) as store:
        other = store.open_run(SPEC, as_new_run=True)
        store.open_run(replace(SPEC, paths=("/elsewhere",)), as_new_run=True)
    page.hide()
    page.show()
    desk.until(lambda: [page.against.itemData(place) for place in range(page.against.count())] == [None, str(other)])
    page.against.setCurrentIndex(1)
    page.prices[0].setText("2,5")
    show(desk, page)
    plan = desk.bench.auditing.report.threshold_plan
    page.steps.cellActivated.emit(1, 0)
    desk.until(lambda: len(desk.rooms.audit.requests) == 2)
    (_, first, _), (run_id, again, _) = desk.rooms.audit.requests
    assert (run_id, first.goal.threshold, again.goal.threshold) == (
        PackOfRun(own or 0),
        None,
        plan.shown_thresholds[1],
    )
    assert (again.prices, again.compared_pack) == (ScreeningPrices(screening_price=2.5), PackOfRun(other))
    text = texts(page)
    assert "of 1000 patients screened are referred" in text
    assert "The area under the ROC curve does not differ significantly between the packs." in text
    desk.until(lambda: desk.bench.auditing.report is not None)


@pytest.mark.parametrize("hidden_by", ["", "class", "search", "verdict"])
def test_a_disagreement_opens_its_image_though_the_list_hides_it(desk: Desk, page: AuditPage, hidden_by: str) -> None:
    rows, bar = desk.bench.rows, desk.window.work_list.filter_bar
    desk.open_row(1)
    if hidden_by == "class":
        bar._buttons["abnormal"].click()
    elif hidden_by == "search":
        bar.search.setText("person 001")
    elif hidden_by == "verdict":
        bar.verdicts.setCurrentIndex(bar.verdicts.findData("given"))
        bar.verdicts.activated.emit(0)
    desk.until(lambda: not rows.index_of(2).isValid() or not hidden_by)
    show(desk, page)
    assert [page.disagreements.item(row, 0).text() for row in range(2)] == ["Missed", "Falsely referred"]
    page.disagreements.cellActivated.emit(1, 0)
    assert desk.window.pages.currentWidget() is desk.window.images
    desk.until(lambda: desk.bench.image.row is not None and desk.bench.image.row.row_id == 2)
    assert rows.row_id_at(desk.window.work_list.table.currentIndex()) == 2
    assert (bar.search.text(), bar.verdicts.currentData(), bar._buttons[None].isChecked()) == ("", "any", True)
    assert rows.rowCount() == 4


def test_a_problem_is_shown_on_the_page_until_the_next_audit(desk: Desk, page: AuditPage) -> None:
    desk.rooms.audit.problem = UsageProblem(reason("audit_one_class", known="normal"))
    page.button.click()
    desk.until(lambda: "All labels are equal (normal)" in texts(page))
    desk.rooms.audit.problem = None
    show(desk, page)
    assert "All labels are equal" not in texts(page)


def test_a_report_is_saved_in_the_language_of_the_window(desk: Desk, page: AuditPage) -> None:
    show(desk, page)
    desk.bench.auditing.save_report(desk.bench.auditing.report, Path("/out"), language="en")
    desk.until_shown("2 files or folders were saved in /out.")
    assert desk.rooms.audit.saved == [(Path("/out"), "en")]


def test_a_local_point_needs_a_yes_with_two_names_and_is_then_offered(desk: Desk, page: AuditPage) -> None:
    show(desk, page)
    page.take_button.click()
    (dialog,) = (found for found in QApplication.topLevelWidgets() if isinstance(found, LocalOperatingPointDialog))
    assert not dialog.yes_button.isEnabled()
    dialog.name.setText("ours")
    assert not dialog.yes_button.isEnabled()
    dialog.person.setText("A. Physicist")
    dialog.yes_button.click()
    desk.until(lambda: desk.rooms.audit.taken == [("ours", "A. Physicist")])
    packs = desk.bench.packs
    desk.until(lambda: packs.model.manifest.operating_points[-1].name == "local:ours")
    assert packs.operating_point.name != "local:ours"  # the new point is chosen only by a person
    packs.choose_operating_point_by_name("local:ours")
    desk.window.pages.setCurrentWidget(desk.window.packs_page)
    choices = desk.window.packs_page.findChildren(QComboBox)
    assert "Local: ours" in {box.currentText() for box in choices}
    dialog.deleteLater()


def test_damaged_local_points_are_reported_when_a_pack_is_loaded(desk: Desk) -> None:
    desk.rooms.library.lost = reason("site_points_unreadable", path="/home/site_points.json", detail="cut short")
    desk.bench.packs.use_pack(desk.bench.packs.candidates[0])
    desk.until_shown("site_points.json cannot be read")
