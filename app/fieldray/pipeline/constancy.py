"""The constancy test: whether a pack still gives on this computer and device the scores it gave at acceptance.

The test images ship with the program (`imaging.synthetic.constancy_files`) and are screened like the images of a run.
The expected scores of shipped packs are in `assets/constancy.json`, made and signed by `tools/constancy_set.py`. For
any other pack the first answers are stored, and later answers are compared with them. Idea: AAPM Task Group 332,
quality control of an AI in use.
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
from fieldray.domain.finding import Category, Outcome, Screened, decide, why_of
from fieldray.domain.model import BackendName, Manifest, Model
from fieldray.errors import BackendProblem, PackProblem, StorageProblem, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import constancy_files
from fieldray.packs.signing import CONSTANCY_SIGNER, verify
from fieldray.paths import VERSION, asset, scratch_folder
from fieldray.persistence import only_writer, storage_problem, write_atomically
from fieldray.pipeline.session import Session
from fieldray.reasons import Reason, reason
from fieldray.typed_json import decoded

EVERY_DAYS: Final = 30
# Of a calibrated score. With one thread or two, scores were the same to the last digit. With the runtime's other
# kernels (no XNNPACK) they moved by up to 0.050, in the mean by 0.002 to 0.015.
TOLERANCE: Final = 0.06
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer for a test image: its class, the code of the reason if refused or read first, calibrated scores."""

    category: Category
    code: str
    scores: Mapping[str, _Share]

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Take the answer from an outcome."""
        why, findings = why_of(outcome), outcome.findings if isinstance(outcome, Screened) else ()
        return cls(outcome.category, why.code if why else "", {one.label: round(one.score, 6) for one in findings})

    def difference(self, other: Answer) -> float:
        """Return the largest difference over the scores that both answers have."""
        both = self.scores.keys() & other.scores.keys()
        return max((round(abs(self.scores[label] - other.scores[label]), 6) for label in both), default=0.0)

    def is_other(self, found: Answer | None, manifest: Manifest) -> bool:
        """Whether an answer differs from this one: in its reason, in a score beyond `TOLERANCE`, or in a firm class."""
        if found is None or (self.code, self.scores.keys()) != (found.code, found.scores.keys()):
            return True
        points = [(score, manifest.point(label)) for label, score in self.scores.items()]
        is_firm = all(decide(score - TOLERANCE, point) == decide(score + TOLERANCE, point) for score, point in points)
        return self.difference(found) > TOLERANCE or (is_firm and self.category != found.category)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.category, self.code, *(f"{score:.3f}" for score in self.scores.values()))))


Answers = Mapping[str, Answer]  # by image


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A check that was made, `at_s` seconds after 1970 with this version of the program.

    Of `images` so many had a `different` answer than expected, and a score differed by up to `largest`. The answers of
    the first check are those expected from then on.
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
    def due(self) -> datetime.date:
        """Return the day of the next test, or today if another program version is now installed."""
        day = datetime.date.fromtimestamp(self.at_s)
        return day + datetime.timedelta(days=EVERY_DAYS if self.program == VERSION else 0)

    @property
    def summary(self) -> Reason:
        """Return the test's result as a sentence, with the day of the next test."""
        return reason(
            "constancy_failed" if self.different else "constancy_first" if self.is_first else "constancy_passed",
            pack=self.subject.split()[0],
            device=BACKENDS.title(self.device),
            day=datetime.date.fromtimestamp(self.at_s),
            images=self.images,
            different=self.different,
            largest=f"{self.largest:.3f}",
            limit=f"{TOLERANCE:.2f}",
            due=self.due,
        )


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Records kept: expected answers by pack (`subject`), SHA-256 of images that are not drawn, and past checks."""

    answers: Mapping[str, Answers] = {}
    images: Mapping[str, str] = {}
    records: tuple[Record, ...] = ()


class ConstancyRecords:
    """The constancy tests made on this computer, in a file next to the results. Methods raise StorageProblem."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "constancy.json"

    def standing(self, model: Model) -> tuple[Reason, ...]:
        """Return a pack's state in sentences: the last test on each device, and whether the next test is due."""
        try:
            last = {one.device: one for one in self.read().records if one.subject == subject(model)}
        except StorageProblem as problem:
            return (problem.reason,)
        if not last:
            return (reason("constancy_never", pack=model.pack_name),)
        due = min(one.due for one in last.values())
        late = [reason("constancy_due", due=due)] if due <= datetime.date.today() else []
        return (*(one.summary for one in last.values()), *late)

    def add(self, record: Record, answers: Answers) -> None:
        """Keep a check, and its answers where it is the first one."""
        with only_writer(self.path):
            known = self.read()
            first = {**known.answers, record.subject: answers} if record.is_first else known.answers
            kept = Kept(records=(*known.records, record), answers=first)
            write_atomically(self.path, msgspec.json.format(msgspec.json.encode(kept), indent=1))

    def read(self) -> Kept:
        """Read all records."""
        try:
            return decoded(self.path.read_bytes(), Kept)
        except FileNotFoundError:
            return Kept()
        except OSError as error:
            raise storage_problem(error, self.path) from error
        except ValueError as error:  # never taken for an empty one: what was expected would be another thing tomorrow
            raise StorageProblem(reason("constancy_unreadable", path=self.path, detail=error)) from error


def subject(model: Model) -> str:
    """The key of a pack in the records: its name, its signer, and SHA-256 of its networks' files."""
    lungs = model.lungs.model_sha256 if model.lungs else "-"
    return f"{model.pack_name} {model.fingerprint or '-'} {model.model_sha256} {lungs}"


def shipped_set(path: Path | None = None) -> Kept:
    """The test set shipped with the program. Raises StorageProblem (constancy_set) if it is not the signed one."""
    path = path or asset("constancy.json")
    try:
        content, signature = path.read_bytes(), path.with_suffix(".sig").read_bytes()
        if verify(content, signature=signature) != CONSTANCY_SIGNER:
            raise ValueError("another key")
        found = decoded(content, Kept)
        for name, image in constancy_files():
            if found.images.get(name, digest := hashlib.sha256(image).hexdigest()) != digest:
                raise ValueError(name)
    except (OSError, ValueError, LookupError, PackProblem) as error:
        raise StorageProblem(reason("constancy_set", detail=error)) from error
    return found


def check(session: Session, records: ConstancyRecords) -> tuple[Reason, ...]:
    """Check the pack in use on each device that it has a file for, the CPU first, and keep the results. Blocks.

    Returns the results, and the reasons why devices could not be checked. Raises PackProblem (no_pack),
    UsageProblem (constancy_busy) where a run is under way, StorageProblem.
    """
    if (model := session.model) is None:
        raise PackProblem(reason("no_pack"))
    known, results = {**records.read().answers, **shipped_set().answers}, list[Reason]()
    try:
        for device in [entry for entry in reversed(list(BACKENDS)) if not model.files.keys().isdisjoint(entry.roles)]:
            session.choose_devices(device.name)
            try:
                answers = screened(session, model)
            except BackendProblem as problem:
                results.append(reason("constancy_not_run", device=device.title, detail=problem.reason.text))
                continue
            is_first = (of := subject(model)) not in known
            wanted = known.setdefault(of, answers)
            other = [name for name in sorted(wanted) if wanted[name].is_other(answers.get(name), model.manifest)]
            largest = max(wanted[name].difference(answers[name]) for name in wanted.keys() & answers.keys())
            record = Record(of, device.name, time.time(), VERSION, len(wanted), len(other), largest, is_first)
            records.add(record, answers)
            said = ({"image": name, "expected": wanted[name], "found": answers.get(name, "-")} for name in other)
            results += [record.summary, *(reason("constancy_image", **one) for one in said)]
    finally:
        session.choose_devices()
    return tuple(results)


def screened(session: Session, model: Model) -> Answers:
    """Screen all test images. Raises as `check` does, and BackendProblem."""
    answers = dict[str, Answer]()
    with scratch_folder() as folder:
        for name, content in constancy_files():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
        for ref in discover([folder]):
            outcome = session.screen_one(ref)
            if outcome is None or session.model is not model:
                raise UsageProblem(reason("constancy_busy"))
            answers[ref.path.relative_to(folder).as_posix()] = Answer.of(outcome)
    return answers
