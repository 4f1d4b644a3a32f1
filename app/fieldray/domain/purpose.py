"""For whom a pack is and how good it is, in sentences that every page, list and report shares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fieldray.domain.finding import WORK_LIST_ORDER, Category, Outcome, Refused, ResultKind, notes_of
from fieldray.domain.header_words import body_part_says, view_says
from fieldray.domain.intervals import Share
from fieldray.domain.model import HeaderRules, Manifest, OperatingPoint
from fieldray.domain.study import ImageHeader
from fieldray.reasons import Reason, reason

# Where a pack's metrics hold what was measured on images of its own hospitals, and of another one.
_OWN = "test"
_ELSEWHERE = "external_test"
# The images with the finding and those without it.
TRUTHS: Final[Mapping[bool, str]] = {True: "positive", False: "negative"}
_OTHERS = frozenset({"age", "ages_contradict", "born_too_late", "body_part"})


def says_frontal_chest(header: ImageHeader, accepted: HeaderRules) -> bool:
    """Whether a header names a body part and a view, both of them a pack's: a lateral film is of the chest as well."""
    return body_part_says(header, accepted) == view_says(header, accepted) == "accepted"


def patients(accepted: HeaderRules) -> Reason:
    """Whose images a pack judges."""
    if accepted.ages_years is None:
        return reason("for_any_age")
    youngest, oldest = accepted.ages_years
    return reason("for_ages", youngest=youngest, oldest=oldest)


def performance(manifest: Manifest) -> tuple[Reason, ...]:
    """What was measured on images of the pack's own hospital and of another one; that nothing was is said, too."""
    own = tuple(_measured(manifest, _OWN, "measured_own"))
    return own + (tuple(_measured(manifest, _ELSEWHERE, "measured_elsewhere")) or (reason("not_measured_elsewhere"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """How the images with the finding (True) and those without it divide into the classes that a person sees."""

    is_elsewhere: bool
    shares: Mapping[bool, Mapping[Category, Share]]

    @property
    def unsure(self) -> tuple[int, int]:
        """How many of how many images the pack is not sure about."""
        counted = [of["unsure"] for of in self.shares.values()]
        return sum(share.count for share in counted), sum(share.of for share in counted)


def classes_measured(manifest: Manifest | None, point: OperatingPoint | None) -> tuple[Classes, ...]:
    """What the pack's maker counted at a point: of its own hospitals, then of another one; empty where nobody did."""
    if manifest is None or point is None or point.is_local:
        return ()
    label = _member(_member(manifest.metrics, "labels"), point.label)
    parts = ((part, _member(_member(_member(label, part), "classes"), point.name)) for part in (_OWN, _ELSEWHERE))
    counted = (
        Classes(
            is_elsewhere=part == _ELSEWHERE,
            shares={truth: _shares(_member(found, name)) for truth, name in TRUTHS.items()},
        )
        for part, found in parts
    )
    return tuple(classes for classes in counted if all("unsure" in own for own in classes.shares.values()))


def _shares(found: Mapping[str, object]) -> dict[Category, Share]:
    """By class, in the order of the work list."""
    values = {category: _member(found, category) for category in WORK_LIST_ORDER if category in found}
    return {category: share for category, own in values.items() if (share := _share(own))}


def _share(found: Mapping[str, object]) -> Share | None:
    counts, values = ([found.get(name) for name in names] for names in (("count", "of"), ("value", "low", "high")))
    is_counted = all(type(count) is int and count >= 0 for count in counts) and counts[1] != 0
    is_share = all(type(value) in (int, float) and 0 <= value <= 1 for value in values)  # type: ignore[operator]
    return Share(*counts, *values) if is_counted and is_share else None  # type: ignore[arg-type]


def _measured(manifest: Manifest, part: str, code: str) -> Iterator[Reason]:
    """A pack's metrics are its maker's own words: what is not in the form that the toolchain writes is passed over."""
    for label in manifest.labels:
        found = _member(_member(_member(manifest.metrics, "labels"), label.code), part)
        auc, images = _member(found, "auc"), found.get("images")
        values = [auc.get(name) for name in ("value", "low", "high")]
        if type(images) is int and all(isinstance(value, float) and 0 <= value <= 1 for value in values):
            value, low, high = (f"{value:.2f}" for value in values)
            yield reason(code, auc=value, low=low, high=high, images=images)
            for classes in classes_measured(manifest, manifest.point(label.code)):
                if classes.is_elsewhere == (part == _ELSEWHERE):
                    count, of = classes.unsure
                    yield reason("measured_unsure", percent=round(100 * count / of), count=count, of=of)


def _member(values: object, name: str) -> Mapping[str, object]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def header_notes(header: ImageHeader, accepted: HeaderRules, *, is_confirmed: bool) -> tuple[Reason, ...]:
    """What a result says of what its file states, or does not.

    is_confirmed  whether the person who started the run said that all patients are of the ages that the pack is for
    """
    notes = [_age_note(header, accepted, is_confirmed=is_confirmed)]
    if view_says(header, accepted) == "unknown":
        notes.append(reason("view_unknown", view=header.view))
    if body_part_says(header, accepted) == "unknown":
        notes.append(reason("body_part_unknown", body_part=header.body_part_examined))
    if header.burned_in_annotation.upper().startswith("Y"):
        notes.append(reason("burned_in_annotation"))
    return tuple(note for note in notes if note)


def _age_note(header: ImageHeader, accepted: HeaderRules, *, is_confirmed: bool) -> Reason | None:
    if header.patient_age_years is not None and header.contrary_age_years is not None:
        ages = sorted((header.patient_age_years, header.contrary_age_years))
        return reason("ages_differ", age=int(ages[0]), other=int(ages[1]))
    if accepted.ages_years is None or header.patient_age_years is not None:
        return None
    youngest, oldest = accepted.ages_years
    return reason("age_confirmed" if is_confirmed else "age_not_stated", youngest=youngest, oldest=oldest)


@dataclass(slots=True)
class PatientCount:
    """The images of a run that are not for its pack by what they say, and those of which the age is not known."""

    others: int = 0
    unknown: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self.others += isinstance(outcome, Refused) and outcome.reason.code in _OTHERS
        self.unknown += any(note.code == "age_not_stated" for note in notes_of(outcome))

    def add_kind(self, kind: ResultKind) -> None:
        """Count results of one kind."""
        self.others += kind.number * (kind.category == "refused" and not _OTHERS.isdisjoint(kind.codes))
        self.unknown += kind.number * ("age_not_stated" in kind.codes)

    def notes(self, accepted: HeaderRules) -> tuple[Reason, ...]:
        """What a person should know of the run."""
        counts = {"other_patients": self.others, "ages_not_stated": self.unknown}
        whose = patients(accepted).text
        return tuple(reason(code, count=count, patients=whose) for code, count in counts.items() if count)
