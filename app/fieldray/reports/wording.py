"""The sentences and figures of PDF documents and captures, in the reader's language.

`content` makes the words for programs. This module makes the sentences for people, which all formats share. Texts from
files are made visible (`plain_text`) and cut to a length that fits a page.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from fieldray.domain.finding import (
    WORK_LIST_ORDER,
    Category,
    Outcome,
    ScreenedOutcome,
    leading_finding,
    lungs_of,
    notes_of,
    override_notes,
    reason_of,
)
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.model import OperatingPoint
from fieldray.domain.prior_image import ComparisonRecord, pair_warnings
from fieldray.domain.run import StoredResult, Verdict
from fieldray.formatting import (
    DICOM_DATE_PATTERN,
    advice_text,
    backend_name,
    category_label,
    date_and_time_text,
    describe_signer,
    earlier_image_text,
    file_name,
    format_dicom_date,
    format_number,
    format_person_name,
    format_threshold,
    label_meaning,
    lung_area_and_evidence_sentences,
    operating_point_sentence,
    pack_headings,
    performance_sentence,
    research_only_notice,
    run_state_text,
    score_text,
    sex_label,
    short_category_label,
    unsigned_notice,
    verdict_line,
    verdict_names,
    view_and_laterality_label,
)
from fieldray.plain_text import escape_invisible_characters
from fieldray.reasons import Reason, reason
from fieldray.reports.document import (
    Block,
    Field,
    FieldList,
    ImageText,
    Paragraph,
    Table,
    finding_texts,
    replace_undecoded_letters,
    shorten,
)
from fieldray.reports.exporter import StoredRun, header_for_report, hide_names_in_reason, image_alias, uid_alias
from fieldray.reports.pair_wording import comparison_notice, image_interval_text, region_count_text, region_sentence
from fieldray.reports.performance import class_performance
from fieldray.translation import Translator

_MAX_NOTE_CHARACTERS: Final = 2000
_MAX_REGIONS: Final = 12
_WIDTHS: Final = (10.0, 36.0, 19.0, 38.0, 40.0, 15.0, 20.0)  # widths of the list of all images, in mm
_WIDTHS_WITH_PACKS: Final = (9.0, 30.0, 19.0, 28.0)  # widths of the first columns if columns of several packs follow


class Wording:
    """The texts of one run's reports, in the chosen language."""

    def __init__(self, stored: StoredRun) -> None:
        self._stored = stored
        self._spec, self._pack = stored.run.spec, stored.pack
        self._is_named = stored.options.names_people
        self.translator = Translator(stored.options.language)
        self.notice = research_only_notice(self.translator)
        self.legend = self.translator.text("weak"), self.translator.text("strong")
        self.signature = self.translator.text("Name, signature, date")
        self._of_packs = {stored.pack_position: self}
        for one in stored.split_by_pack() if stored.pack_position == 0 else ():
            if one.pack_position:
                self._of_packs[one.pack_position] = Wording(one)

    def for_result(self, result: StoredResult) -> Wording:
        """Return the texts for the pack that gave a result."""
        return self._of_packs[result.pack_position]

    # ---- the run

    def run_blocks(self) -> tuple[Block, ...]:
        """Return the report on the whole run without the pages of its images.

        Several packs are described one after another.
        """
        headings = self._headings() if len(self._of_packs) > 1 else ("",)
        return (
            Paragraph(self.notice, "notice"),
            FieldList("", (*self.run_fields(), Field(self.translator.text("Folder"), self._folders()))),
            *(
                block
                for one, heading in zip(self._of_packs.values(), headings, strict=True)
                for block in one.results_of_pack(heading)
            ),
        )

    def _headings(self) -> list[str]:
        """Return a heading for each pack, which tells the packs apart."""
        return pack_headings([one.pack_name_and_id() for one in self._of_packs.values()])

    def pack_name_and_id(self) -> tuple[str, str]:
        """Return the name of the pack for a person, and the pack's id with version.

        If the pack is no longer installed, the id with version is also the name.
        """
        manifest, pack_name = self._stored.manifest, self._pack.pack_name
        return (self.translator.pack_text(manifest.names) if manifest else pack_name), pack_name

    def results_of_pack(self, heading: str) -> tuple[Block, ...]:
        """Return the part of a document with a pack's results and its description.

        heading  heading of this part; "" if the run has one pack
        """
        text, counts = self.translator.text, self._stored.counts
        came = (category for category in WORK_LIST_ORDER if counts.get(category))
        return (
            Paragraph(_joined(heading, text("Summary")), "heading"),
            *(Paragraph(f"{self._word(category)}: {counts[category]}", "count", category) for category in came),
            *map(Paragraph, self.run_remarks()),
            FieldList(text("Model pack"), self.pack_fields()),
            *(part for point in self._pack.operating_points for part in self._point_blocks(point)),
            FieldList(text("Program, packs and settings"), self.provenance_fields()),
        )

    def pack_fields(self) -> tuple[Field, ...]:
        """Return the facts about the pack and its intended use, as labels with values."""
        text, manifest = self.translator.text, self._stored.manifest
        name = self.translator.pack_text(manifest.names) if manifest else ""
        signer_text = describe_signer(self.translator, trust=self._pack.trust, fingerprint=self._pack.fingerprint)
        fields = [Field(text("Pack"), _joined(name, self._pack.pack_name)), Field(text("Signer"), signer_text)]
        if manifest is None:
            return (
                *fields,
                Field(
                    text("Note"),
                    text("The pack is not available, so the texts of the pack and the heat maps are missing."),
                ),
            )
        purpose, limits = self.translator.pack_text(manifest.intended_use), self.translator.pack_text(manifest.limits)
        return (*fields, Field(text("What this pack is for"), purpose), Field(text("Limits of this pack"), limits))

    def provenance_fields(self) -> tuple[Field, ...]:
        """Return the exact origin of the results (versions and hashes), as labels with values."""
        text, pack = self.translator.text, self._pack
        return (
            Field(text("Program"), f"Fieldray {self._spec.program_version}"),
            Field(text("Model (SHA-256)"), pack.model_sha256),
            *([Field(text("Lung-field pack"), pack.lungs_pack)] if pack.lungs_pack else []),
            Field(text("Settings (SHA-256)"), pack.settings_hash),
            *([Field(text("Signing key"), pack.fingerprint)] if pack.fingerprint else []),
        )

    def results_table(self) -> Table:
        """Return the list of all images as a table."""
        text = self.translator.text
        headings = (text("#"), text("Patient"), text("Date"), text("Image"), text("Result"), text("Score"))
        title = text("All images")
        if self._pack.trust == "legacy":
            title = f"{title} ({unsigned_notice(self.translator)})"
        if len(self._of_packs) > 1:
            return self._table_of_several(title, headings[:4])
        listed = [(self.table_row(at, one), one.outcome.category) for at, one in enumerate(self._stored.results, 1)]
        return Table(
            title,
            (*headings, text("Verdict of the reader")),
            tuple(row for row, _ in listed),
            column_widths_mm=_WIDTHS,
            cell_categories=tuple((category,) for _, category in listed),
        )

    def _table_of_several(self, title: str, headings: tuple[str, ...]) -> Table:
        """Return the list of all images as a table, with a column for each pack that has class, score and verdict.

        headings  heading of each pack's column
        """
        packs = tuple(self._of_packs.values())
        rows: list[tuple[str, ...]] = []
        categories: list[tuple[Category, ...]] = []
        for _, of_image in itertools.groupby(self._stored.results, lambda result: result.outcome.ref.key):
            results = list(of_image)
            about = self.table_row(len(rows) + 1, results[0])[:4]
            found = {self.for_result(result): result for result in results}
            rows.append((*about, *(one.result_cell(found[one]) if one in found else "" for one in packs)))
            categories.append(tuple(found[one].outcome.category if one in found else "not_assessed" for one in packs))
        widths = (*_WIDTHS_WITH_PACKS, *[(sum(_WIDTHS) - sum(_WIDTHS_WITH_PACKS)) / len(packs)] * len(packs))
        columns = (*headings, *self._headings())
        return Table(title, columns, tuple(rows), column_widths_mm=widths, cell_categories=tuple(categories))

    def result_cell(self, result: StoredResult) -> str:
        """Return the result of a pack for an image as the text of one cell of a table."""
        outcome, (*_, score, verdict) = result.outcome, self.table_row(0, result)
        parts = (_joined(self._word(outcome.category), score, verdict), self._reasons(outcome))
        return ": ".join(part for part in parts if part)

    def table_row(self, number: int, result: StoredResult) -> tuple[str, ...]:
        """Return the row of an image in the table of all images.

        number  number of the image in the table
        """
        outcome, header = result.outcome, result.outcome.ref.header
        finding = leading_finding(outcome)
        score = score_text(self.translator, finding.score, finding.point) if finding else ""
        verdict = verdict_names(self.translator)[result.verdict.choice] if result.verdict else ""
        is_image = outcome.category != "not_an_image"  # any other file belongs to no patient
        who = (is_image and self._person(header_for_report(outcome.ref, self._stored))) or "–"
        word = short_category_label(self.translator, outcome.category, self._stored.manifest)
        if said := self._reasons(outcome):
            word = f"{word}: {said}"
        day = self._day(header.study_date)
        if result.has_newer_image_of_patient:
            day = shorten(earlier_image_text(self.translator, header))
        return (str(number), who, day, self._image_name(outcome.ref), word, score, verdict)

    def _reasons(self, outcome: Outcome) -> str:
        said = (*([why] if (why := reason_of(outcome)) else []), *override_notes(outcome))
        return " ".join(self._reason_text(why, outcome) for why in said)

    def run_fields(self) -> tuple[Field, ...]:
        """Return the number and the time of the run, as labels with values."""
        text, run = self.translator.text, self._stored.run
        state = run_state_text(self.translator, run) + (f": {self.translator.reason(run.reason)}" if run.reason else "")
        return (
            Field(text("Run"), text("Run {number}, {state}", number=run.run_id, state=state)),
            Field(text("Started"), date_and_time_text(self.translator, run.started_s)),
            *([Field(text("Ended"), date_and_time_text(self.translator, run.ended_s))] if run.ended_s else []),
        )

    def _folders(self) -> str:
        """Return the screened folders as text. Unless a person asked for names, pseudonyms replace the folders."""
        key, is_named = self._stored.pseudonym_key, self._is_named
        return ", ".join(
            shorten(escape_invisible_characters(path)) if is_named else image_alias(path, key=key)
            for path in self._spec.paths
        )

    def run_remarks(self) -> tuple[str, ...]:
        """Return the notes on the pack's results in this run.

        For the first pack, notes on the whole run are included.
        """
        absent, superseded = len(self._stored.absent_images), len(self._stored.superseded_verdicts)
        changed = self.translator.plural(
            "{count} verdict was given on a result that has changed since. The verdict is in the JSON export.",
            "{count} verdicts were given on results that have changed since. The verdicts are in the JSON export.",
            superseded,
        )
        is_unsigned, is_first = self._pack.trust == "legacy", self._stored.pack_position == 0
        pseudonyms = self.translator.text(
            "Patients have pseudonyms (FR-…). The patients can be identified again only on this computer."
        )
        return (
            *map(self.translator.reason, self._stored.warnings),
            *([self.translator.reason(reason("unsigned_operating_point_unknown"))] if is_unsigned else ()),
            *([self.translator.reason(reason("not_present", count=absent))] if absent and is_first else ()),
            *([changed] if superseded and is_first else ()),
            *([pseudonyms] if is_first and not self._is_named else ()),
        )

    def _point_blocks(self, point: OperatingPoint) -> Iterator[Block]:
        meaning = label_meaning(self.translator, point.label, self._stored.manifest)
        named = operating_point_sentence(self.translator, point, format_threshold(self.translator, point.threshold))
        yield Paragraph(f"{meaning}. {named}", "lead")
        if performance := class_performance(self.translator, self._stored.manifest, point):
            yield performance
        yield Paragraph(performance_sentence(self.translator, point))

    # ---- an image

    def image_text(self, result: StoredResult, *, problem: Reason | None = None) -> ImageText:
        """Return the texts of one image with its result.

        problem  the reason why the image cannot be displayed, or None
        """
        outcome = result.outcome
        why = reason_of(outcome) if isinstance(outcome, ScreenedOutcome) else None
        header, word = header_for_report(outcome.ref, self._stored), self._word(outcome.category)
        return ImageText(
            title=self._image_name(outcome.ref),
            category=outcome.category,
            class_name=word,
            patient=self._person(header),
            patient_fields=self._about_patient(header),
            image_fields=self._about_image(outcome),
            read_first_reason=self._reason_text(why, outcome) if why else "",
            findings=finding_texts(self.translator, outcome, self._stored.manifest),
            remarks=self._remarks(outcome),
            verdict_fields=self._about_verdict(result.verdict),
            prior_fields=tuple(self._about_priors(outcome)),
            caption=self._caption(outcome, problem),
            alt_text=self.translator.text("Chest X-ray as shown by the program. Result: {word}.", word=word),
        )

    def _reason_text(self, why: Reason, outcome: Outcome) -> str:
        """Return a reason as text. Unless a person asked for names, a pseudonym replaces the path of the image."""
        if not self._is_named:
            key = outcome.ref.key
            why = hide_names_in_reason(why, key, alias=image_alias(key, key=self._stored.pseudonym_key))
        return self.translator.reason(why)

    def _word(self, category: Category) -> str:
        return category_label(self.translator, category, self._stored.manifest)

    def study_title(self, ref: ImageRef) -> str:
        """Return the title of the document about one study."""
        return _joined(self.translator.text("Results of a study"), self._day(ref.header.study_date))

    def study_patient_line(self, ref: ImageRef) -> str:
        """Return the line about the patient at the top of each page of a study's document."""
        return self._person(header_for_report(ref, self._stored))

    def study_patient_and_day(self, ref: ImageRef) -> tuple[str, str]:
        """Return patient and day of a study, from which the name of the study's document is made.

        The days sort in order of time, because the year comes first.
        """
        header = header_for_report(ref, self._stored)
        who = " ".join(
            filter(None, (format_person_name(header.patient_name), header.patient_id if self._is_named else ""))
        )
        who = replace_undecoded_letters(who, self.translator)
        day = found.expand(r"\1-\2-\3") if (found := DICOM_DATE_PATTERN.fullmatch(header.study_date)) else ""
        return who or self._image_name(ref), day

    def _person(self, header: ImageHeader) -> str:
        return shorten(_joined(format_person_name(header.patient_name), header.patient_id if self._is_named else ""))

    def _about_patient(self, header: ImageHeader) -> tuple[Field, ...]:
        text = self.translator.text
        named = [Field(text("Patient"), shorten(format_person_name(header.patient_name)))]
        if self._is_named:
            named += [
                Field(text("Patient ID"), shorten(header.patient_id)),
                Field(text("Date of birth"), self._day(header.patient_birth_date)),
            ]
        years = header.patient_age_years
        age = "" if years is None else self.translator.plural("{count} year", "{count} years", int(years))
        facts = ", ".join(part for part in (sex_label(self.translator, header), age) if part)
        study = Field(text("Study date"), self._day(header.study_date))
        return _filled((*named, Field(text("Sex, age"), facts), study))

    def _about_image(self, outcome: Outcome) -> tuple[Field, ...]:
        text, ref, facts = self.translator.text, outcome.ref, outcome.facts
        size = text("{columns} × {rows} px", columns=facts.columns, rows=facts.rows) if facts.rows else ""
        ran = ""
        if isinstance(outcome, ScreenedOutcome):
            ran = backend_name(self.translator, outcome.backend)
        kind = text("Image file without DICOM data") if ref.kind in ("png", "jpeg") else ""
        return _filled(
            (
                Field(text("Image"), self._image_name(ref)),
                Field(text("File type"), kind),
                Field(text("Projection"), shorten(view_and_laterality_label(ref.header))),
                Field(text("Image size"), size),
                Field(text("Manufacturer"), shorten(ref.header.manufacturer)),
                Field(text("Device"), ran),
                Field(text("File (SHA-256)"), facts.content_sha256),
                Field(text("Image ID in exports"), image_alias(ref.key, key=self._stored.pseudonym_key)),
            )
        )

    def _image_name(self, ref: ImageRef) -> str:
        """Return the name of an image: its file or, unless a person asked for names, a pseudonym."""
        key, uid = self._stored.pseudonym_key, ref.header.sop_instance_uid
        if self._is_named:
            return shorten(file_name(ref))
        if not uid:
            return image_alias(ref.key, key=key)
        return uid_alias(uid, key=key) + (f" #{ref.frame + 1}" if ref.header.number_of_frames > 1 else "")

    def _remarks(self, outcome: Outcome) -> tuple[str, ...]:
        if not isinstance(outcome, ScreenedOutcome):
            return self._reason_text(outcome.reason, outcome), advice_text(self.translator, outcome.category)
        notes = (note for note in notes_of(outcome) if note != reason_of(outcome))
        is_found = outcome.lungs is not None and outcome.lungs.has_lungs
        of_lungs = (
            lung_area_and_evidence_sentences(self.translator, outcome.lungs) if outcome.lungs and is_found else ()
        )
        return (*filter(None, of_lungs), *(self._reason_text(note, outcome) for note in notes))

    def _about_verdict(self, verdict: Verdict | None) -> tuple[Field, ...]:
        text, reader = self.translator.text, shorten(self._stored.options.reader_name)
        given = Field(text("Verdict of the reader"), verdict_line(self.translator, verdict, reader=reader))
        note = shorten(verdict.note, max_letters=_MAX_NOTE_CHARACTERS) if verdict else ""
        return _filled((given, Field(text("Note on the verdict"), note)))

    def _about_priors(self, outcome: Outcome) -> Iterator[Field]:
        """Yield a line for each prior image that a person compared with the image: dates, names and results."""
        text, pairs = self.translator.text, self._stored.options.comparisons_of_current_image(outcome)
        for pair in pairs:
            uid = pair.prior_header.sop_instance_uid
            uid = uid if self._is_named else uid_alias(uid, key=self._stored.pseudonym_key)
            day = self._day(pair.prior_header.study_date) or text("date not known")
            between = image_interval_text(self.translator, pair.prior_header, outcome.ref.header)
            yield Field(text("Prior image"), _joined(day, between, shorten(uid)))
            warnings = (self.translator.reason(doubt) for doubt in pair_warnings(pair))
            yield Field(text("Comparison"), " ".join((*warnings, self._compared(pair))))
        if pairs:
            yield Field(text("Note"), comparison_notice(self.translator))

    def _compared(self, pair: ComparisonRecord) -> str:
        text = self.translator.text
        if pair.not_comparable_reason is not None or pair.similarity is None:
            why = self.translator.reason(pair.not_comparable_reason) if pair.not_comparable_reason else ""
            return " ".join((text("The images are not comparable."), why)).strip()
        likeness = text(
            "Similarity inside the lungs: {value}.", value=format_number(self.translator, pair.similarity, digits=2)
        )
        shown = enumerate(pair.regions[:_MAX_REGIONS], 1)
        regions = (region_sentence(self.translator, region, count) + "." for count, region in shown)
        return " ".join((likeness, region_count_text(self.translator, len(pair.regions)), *regions))

    def _caption(self, outcome: Outcome, problem: Reason | None) -> str:
        text = self.translator.text
        if problem is not None:
            why = self._reason_text(problem, outcome)
            return text("The image could not be read for this report: {reason}", reason=why)
        colours = text(
            "The colours show which parts of the image influenced the score. The colours do not outline a lesion."
        )
        line = text("The line is the outline of the lungs as found by the program.")
        has_map = (
            isinstance(outcome, ScreenedOutcome)
            and outcome.class_maps is not None
            and self._stored.manifest is not None
        )
        overrides = (self._reason_text(note, outcome) for note in override_notes(outcome))  # a capture has no others
        parts = (*overrides, colours if has_map else "", line if lungs_of(outcome) is not None else "")
        return " ".join(part for part in (*parts, text("The display is not calibrated for diagnosis")) if part)

    def _day(self, dicom_date: str) -> str:
        return shorten(format_dicom_date(self.translator, dicom_date))


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _filled(fields: Iterable[Field]) -> tuple[Field, ...]:
    return tuple(field for field in fields if field.text)
