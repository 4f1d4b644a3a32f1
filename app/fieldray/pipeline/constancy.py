"""The constancy test: whether a pack on this computer and device still gives the scores expected from an earlier test.

The test images ship with the program (`imaging.synthetic.constancy_test_files`) and are screened like the images of a
run. The expected scores of shipped packs are in `assets/constancy.json`, made and signed by `tools/constancy_set.py`.
For any other pack, the results of the first test are stored, and later results are compared with them. Source of the
idea: AAPM Task Group 332, quality control of an AI in use.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from fieldray.backends import BACKENDS
from fieldray.domain.finding import Category, Outcome, ScreenedOutcome, decide, reason_of
from fieldray.domain.model import BackendName, Manifest, Model
from fieldray.errors import BackendProblem, PackProblem, StorageProblem, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import constancy_test_files
from fieldray.packs.signing import CONSTANCY_TEST_SIGNER, verified_fingerprint
from fieldray.paths import VERSION, asset_path, scratch_folder
from fieldray.persistence import exclusive_write_access, storage_problem, write_atomically
from fieldray.pipeline.session import Session
from fieldray.reasons import Reason, reason
from fieldray.typed_json import parse_json

TEST_INTERVAL_DAYS: Final = 30
# Tolerance of a calibrated score. Scores with one thread and with two were equal to the last digit. With the runtime's
# other kernels (no XNNPACK) they differed by up to 0.050, on average by 0.002 to 0.015.
SCORE_TOLERANCE: Final = 0.06
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ExpectedResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expected or found result of one test image of the constancy test.

    category  class of the image
    code      code of the reason if the image was refused, failed or is to be read first; "" otherwise
    scores    calibrated score, 0..1, by label
    """

    category: Category
    code: str
    scores: Mapping[str, _Share]

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> Self:
        """Make the result of a test image from the image's outcome."""
        why, findings = reason_of(outcome), outcome.findings if isinstance(outcome, ScreenedOutcome) else ()
        return cls(outcome.category, why.code if why else "", {one.label: round(one.score, 6) for one in findings})

    def largest_score_difference(self, other: ExpectedResult) -> float:
        """Return the largest difference (0..1) between two results' scores, over the labels that both results have."""
        both = self.scores.keys() & other.scores.keys()
        return max((round(abs(self.scores[label] - other.scores[label]), 6) for label in both), default=0.0)

    def differs_from(self, found: ExpectedResult | None, manifest: Manifest) -> bool:
        """Return whether a result found in a constancy test differs from this expected result.

        The results differ if their reasons or labels differ, or if a score differs by more than `SCORE_TOLERANCE`.
        Their classes are compared only if every expected score lies more than `SCORE_TOLERANCE` from the ends of the
        uncertain zone. A score nearer to an end may change the class although the pack works as before.

        found     the found result; None counts as different
        manifest  the manifest of the tested pack, whose first operating points decide the classes
        """
        if found is None or (self.code, self.scores.keys()) != (found.code, found.scores.keys()):
            return True
        points = [(score, manifest.point(label)) for label, score in self.scores.items()]
        is_firm = all(
            decide(score - SCORE_TOLERANCE, point) == decide(score + SCORE_TOLERANCE, point) for score, point in points
        )
        return self.largest_score_difference(found) > SCORE_TOLERANCE or (is_firm and self.category != found.category)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.category, self.code, *(f"{score:.3f}" for score in self.scores.values()))))


ExpectedResults = Mapping[str, ExpectedResult]  # by the name of the test image


class ConstancyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record of one constancy test.

    subject    key of the pack (see `pack_key`)
    device     name of the device that ran the pack
    at_s       time of the test, seconds since 1970
    program    version of the program
    images     number of test images
    different  number of images whose result differs from the expected result
    largest    largest difference of a score, 0..1
    is_first   whether this was the pack's first test, whose results later tests expect
    """

    subject: str
    device: BackendName
    at_s: float
    program: str
    images: int
    different: int
    largest: _Share
    is_first: bool = False

    @property
    def due_date(self) -> datetime.date:
        """The day on which the next constancy test of this pack and device is due.

        If the program was updated since this test, the next test is due at once.
        """
        day = datetime.date.fromtimestamp(self.at_s)
        return day + datetime.timedelta(days=TEST_INTERVAL_DAYS if self.program == VERSION else 0)

    @property
    def summary(self) -> Reason:
        """The result of the test as a sentence, with the day of the next test."""
        return reason(
            "constancy_failed" if self.different else "constancy_first" if self.is_first else "constancy_passed",
            pack=self.subject.split()[0],
            device=BACKENDS.title(self.device),
            day=datetime.date.fromtimestamp(self.at_s),
            images=self.images,
            different=self.different,
            largest=f"{self.largest:.3f}",
            limit=f"{SCORE_TOLERANCE:.2f}",
            due=self.due_date,
        )


class ConstancyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of the file of constancy tests.

    answers  expected results by pack (see `pack_key`)
    images   SHA-256 of the test images that are real X-rays, by name
    records  past tests
    """

    answers: Mapping[str, ExpectedResults] = {}
    images: Mapping[str, str] = {}
    records: tuple[ConstancyRecord, ...] = ()


class ConstancyRecords:
    """Reads and writes the constancy tests made on this computer, in a file next to the results database.

    Methods raise StorageProblem.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "constancy.json"

    def state_sentences(self, model: Model) -> tuple[Reason, ...]:
        """Return sentences about a pack's constancy tests: the last test on each device, and a test that is due."""
        try:
            last = {one.device: one for one in self.read().records if one.subject == pack_key(model)}
        except StorageProblem as problem:
            return (problem.reason,)
        if not last:
            return (reason("constancy_never", pack=model.pack_name),)
        due = min(one.due_date for one in last.values())
        late = [reason("constancy_due", due=due)] if due <= datetime.date.today() else []
        return (*(one.summary for one in last.values()), *late)

    def add(self, record: ConstancyRecord, expected_results: ExpectedResults) -> None:
        """Store the record of a constancy test.

        expected_results  the results of the test, stored only if it is the pack's first test. Later tests then expect
                          these results
        """
        with exclusive_write_access(self.path):
            known = self.read()
            first = {**known.answers, record.subject: expected_results} if record.is_first else known.answers
            kept = ConstancyFile(records=(*known.records, record), answers=first)
            write_atomically(self.path, msgspec.json.format(msgspec.json.encode(kept), indent=1))

    def read(self) -> ConstancyFile:
        """Return the content of the file of constancy tests. The content is empty if there is no file."""
        try:
            return parse_json(self.path.read_bytes(), ConstancyFile)
        except FileNotFoundError:
            return ConstancyFile()
        except OSError as error:
            raise storage_problem(error, self.path) from error
        except ValueError as error:  # a damaged file never counts as empty, because expected results would be lost
            raise StorageProblem(reason("constancy_unreadable", path=self.path, detail=error)) from error


def pack_key(model: Model) -> str:
    """Return the key of a pack in the records: name, signer, and SHA-256 of its network and lung-field network."""
    lungs = model.lungs.model_sha256 if model.lungs else "-"
    return f"{model.pack_name} {model.fingerprint or '-'} {model.model_sha256} {lungs}"


def shipped_expected_results(path: Path | None = None) -> ConstancyFile:
    """Return the expected results that ship with the program.

    path  path of the file; None for the shipped file. The signature is in a file of this name with the suffix `.sig`

    Raises StorageProblem (constancy_set) if the signature is wrong, or if a test image was changed.
    """
    path = path or asset_path("constancy.json")
    try:
        content, signature = path.read_bytes(), path.with_suffix(".sig").read_bytes()
        if verified_fingerprint(content, signature=signature) != CONSTANCY_TEST_SIGNER:
            raise ValueError("another key")
        found = parse_json(content, ConstancyFile)
        for name, image in constancy_test_files():
            if found.images.get(name, digest := hashlib.sha256(image).hexdigest()) != digest:
                raise ValueError(name)
    except (OSError, ValueError, LookupError, PackProblem) as error:
        raise StorageProblem(reason("constancy_set", detail=error)) from error
    return found


def run_constancy_test(session: Session, records: ConstancyRecords) -> tuple[Reason, ...]:
    """Run the constancy test of the pack in use on each device that the pack supports, the CPU first.

    The call lasts until the end of the test.

    Results are stored. Returns sentences: the results, and the reasons why devices could not be tested. Raises
    PackProblem (no_pack), UsageProblem (constancy_busy) during a run, StorageProblem.
    """
    if (model := session.model) is None:
        raise PackProblem(reason("no_pack"))
    known, results = {**records.read().answers, **shipped_expected_results().answers}, list[Reason]()
    try:
        for device in [one for one in reversed(list(BACKENDS)) if not model.files.keys().isdisjoint(one.file_roles)]:
            session.choose_devices(device.name)
            try:
                answers = screen_test_images(session, model)
            except BackendProblem as problem:
                results.append(reason("constancy_not_run", device=device.title, detail=problem.reason.text))
                continue
            is_first = (of := pack_key(model)) not in known
            wanted = known.setdefault(of, answers)
            other = [name for name in sorted(wanted) if wanted[name].differs_from(answers.get(name), model.manifest)]
            largest = max(
                wanted[name].largest_score_difference(answers[name]) for name in wanted.keys() & answers.keys()
            )
            record = ConstancyRecord(of, device.name, time.time(), VERSION, len(wanted), len(other), largest, is_first)
            records.add(record, answers)
            said = ({"image": name, "expected": wanted[name], "found": answers.get(name, "-")} for name in other)
            results += [record.summary, *(reason("constancy_image", **one) for one in said)]
    finally:
        session.choose_devices()
    return tuple(results)


def screen_test_images(session: Session, model: Model) -> ExpectedResults:
    """Screen all images of the constancy test.

    Returns the result of each image by the image's name. Raises BackendProblem, and as `run_constancy_test` does.
    """
    answers = dict[str, ExpectedResult]()
    with scratch_folder() as folder:
        for name, content in constancy_test_files():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        for ref in discover([folder]):
            outcome = session.screen_one(ref)
            if outcome is None or session.model is not model:
                raise UsageProblem(reason("constancy_busy"))
            answers[ref.path.relative_to(folder).as_posix()] = ExpectedResult.from_outcome(outcome)
    return answers
