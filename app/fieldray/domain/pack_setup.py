"""A pack as a run uses it: the model in memory, with an operating point for each label and a person's confirmations."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import (
    Finding,
    calibrate,
    decide,
    decide_by_larger_output,
    is_borderline,
    score_bounds,
)
from fieldray.domain.intended_use import common_age_range
from fieldray.domain.lungs import min_evidence_inside
from fieldray.domain.model import Model, OperatingPoint
from fieldray.domain.run import RefusalOverrides, RunSpec
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

# Increased by one when a change in reading, preparing or judging images makes stored results invalid.
_RULES_VERSION: Final = 8
_BARE_RULES_VERSION: Final = 1  # for results of bare models of the dissertation
_LUNG_RULES_VERSION: Final = 7  # for results with lung fields: increased when a change makes them invalid
# Fields of `Model` and `Manifest` that do not enter the hash of the settings, each with the reason.
FIELDS_NOT_IN_SETTINGS_HASH: Final = {
    "trust": "whose pack it is decides whether it is loaded",
    "fingerprint": "as `trust`",
    "model_sha256": "among `files`; stored beside this hash, and compared with it",
    "golden": "decides whether a device may run it at all",
    "card": "text",
    "content_sha256": "stands for all files of a pack, texts among them; those that decide are in the hash themselves",
    "names": "text",
    "descriptions": "text",
    "intended_use": "text",
    "limits": "text",
    "class_names": "text",
    "warnings": "text",
    "provenance": "text",
    "operating_points": "those in force are `points`",
    "requires": "the pack that was found is `lungs`",
    "metrics": "of its numbers only `evidence_inside.limit` is read for a result, and stands here as `evidence_limit`",
    "scheme": "text",
    "meaning": "text",
}


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackSetup:
    """A pack as a run uses it: the model, an operating point for each label, and a person's requests and confirmations.

    points          operating point by label code; None for a label without a threshold
    ages_confirmed  whether a person confirmed that patients without a stated age are in the pack's age range
    overrides       requests of a person: to screen an image that the pack refused, or to turn an image
    """

    model: Model
    points: Mapping[str, OperatingPoint | None]
    ages_confirmed: bool = False
    overrides: RefusalOverrides = RefusalOverrides()  # noqa: RUF009 - it is frozen

    def findings(self, scores: Mapping[str, float]) -> tuple[Finding, ...]:
        """Return a finding for each label: the calibrated score, and the decision at the label's operating point.

        scores  the network's uncalibrated scores, 0..1, by label code
        """
        manifest = self.model.manifest
        if manifest.is_bare:
            return decide_by_larger_output({label.code: scores[label.code] for label in manifest.labels})
        found = []
        for label in manifest.labels:
            score = calibrate(scores[label.code], manifest.calibration.get(label.code))
            point = self.points[label.code]
            found.append(Finding(label=label.code, score=score, point=point, decision=decide(score, point)))
        return tuple(found)

    def is_borderline(
        self, scores: Mapping[str, float], features: NDArray[np.float32] | None, *, oversampling: float
    ) -> bool:
        """Return whether the image's outcome could change if the image were read in full resolution.

        scores        the network's uncalibrated scores for the image as it was read, 0..1, by label code
        features      (n,) float32 pooled features of the network for the image as it was read; None if the network has
                      no features
        oversampling  pixels read per pixel of the network's input, on the axis (rows or columns) where this number is
                      smaller

        The distance of the out-of-distribution check counts only for a model without a lung-field pack. For a model
        with a lung-field pack, the check only adds a note to the result.
        """
        gate = None if self.model.lungs else self.model.manifest.ood_gate
        distance = gate.distance(features) if gate and features is not None else None
        moved = score_bounds(scores, oversampling=oversampling)
        return is_borderline(*map(self.findings, (scores, *moved)), gate=gate, distance=distance)

    @property
    def settings_hash(self) -> str:
        """The SHA-256 (hex) of all settings that decide a result. The model file and the image are not included."""
        decisive = {
            "rules": _RULES_VERSION,
            **({"rules_of_bare_models": _BARE_RULES_VERSION} if self.model.manifest.is_bare else {}),
            "lung_rules": _LUNG_RULES_VERSION if self.model.lungs else None,
            "model": _deciding(self.model),
            "points": _deciding([point for point in self.points.values() if point]),
            "evidence_limit": min_evidence_inside(self.model.manifest),
            # Each result says whether the age is stated, or was confirmed by a person.
            "ages_confirmed": self.ages_confirmed if self.model.manifest.accepted.ages_years else None,
            "wishes": _deciding(self.overrides),  # the key of version 0.2.0, kept so that its hashes stay valid
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    @property
    def reusable_settings_hashes(self) -> tuple[str, ...]:
        """The settings hashes of stored results that may be taken over instead of screening an image again.

        The two hashes are `settings_hash`, and the hash with the opposite `ages_confirmed`. Results with either hash
        differ only in the note on a patient whose age is not stated (`intended_use.update_age_notes`).
        """
        other = dataclasses.replace(self, ages_confirmed=not self.ages_confirmed)
        return tuple(dict.fromkeys((self.settings_hash, other.settings_hash)))


def set_up_pack(
    model: Model,
    *,
    operating_point: str | None = None,
    ages_confirmed: bool = False,
    overrides: RefusalOverrides = RefusalOverrides(),  # noqa: B008 - it is frozen
) -> PackSetup:
    """Return a pack set up for a run: with the operating points of one name, or with the first point of each label.

    operating_point  name of the operating point; None for the first point of each label
    ages_confirmed   whether a person confirmed that patients without a stated age are in the pack's age range
    overrides        requests of a person: to screen an image that the pack refused, or to turn an image

    A legacy model (unsigned files of the dissertation) has no operating point: the larger output of its network
    decides. Raises UsageProblem (operating_point) for an unknown name.
    """
    manifest = model.manifest
    known = tuple(dict.fromkeys(point.name for point in manifest.operating_points))
    if operating_point is not None and operating_point not in known:
        raise UsageProblem(reason("operating_point", name=operating_point, known=", ".join(known) or "-"))
    points = {label.code: manifest.point(label.code, operating_point) for label in manifest.labels}
    return PackSetup(model=model, points=points, ages_confirmed=ages_confirmed, overrides=overrides)


def set_up_packs(models: Sequence[Model], point: str | None, set_up: Callable[..., PackSetup]) -> tuple[PackSetup, ...]:
    """Return one setup for each model of a run, made by calling `set_up(model, operating_point=...)`.

    models  the models of the run, in the order of the run
    point   name of the operating point; a model without a point of this name is set up with its first points

    Raises UsageProblem: operating_point if no model has the point, ages_apart if confirmed age ranges do not overlap.
    """
    has = [point in {known.name for known in model.manifest.operating_points} for model in models]
    made = tuple(
        set_up(model, operating_point=point if has_it or not any(has) else None)
        for model, has_it in zip(models, has, strict=True)
    )
    known = common_age_range(one.model.manifest.accepted.ages_years for one in made if one.ages_confirmed)
    if known and known[0] > known[1]:
        raise UsageProblem(reason("ages_apart", packs=", ".join(model.pack_name for model in models)))
    return made


def setup_of_run(spec: RunSpec, position: int, model: Model) -> PackSetup:
    """Return the setup with which a pack gave its results in a stored run.

    spec      the stored request of the run
    position  position of the pack in the run, 0 for the first
    model     the pack's model that is available now

    Raises UsageProblem (again_other_pack) if the model or the settings differ from those of the run.
    """
    pack, labels = spec.packs[position], model.manifest.labels
    points = dict.fromkeys((label.code for label in labels), None) | {one.label: one for one in pack.operating_points}
    asked = [(spec.ages_confirmed, spec.overrides)] if spec.overrides else _ALL_ASKED
    for ages_confirmed, overrides in asked:
        found = PackSetup(model=model, points=points, ages_confirmed=ages_confirmed, overrides=overrides)
        if model.model_sha256 == pack.model_sha256 and found.settings_hash == pack.settings_hash:
            return found
    raise UsageProblem(reason("again_other_pack", pack=pack.pack_name))


# Runs of version 0.2.0 did not store these choices. The combination with the run's hash is found by trying.
_ALL_ASKED: Final = [
    (ages_confirmed, RefusalOverrides(overrules=overrules, turns=turns))
    for overrules, turns, ages_confirmed in itertools.product((False, True), repeat=3)
]


def scores_by_label_code(model: Model, scores: NDArray[np.float32]) -> dict[str, float]:
    """Return a network's scores by label code.

    scores  (labels,) float32, 0..1, in the order of the model's labels
    """
    codes = (label.code for label in model.manifest.labels)
    return dict(zip(codes, map(float, scores), strict=True))


def _deciding(part: Any) -> Any:
    """Return the parts of a value that decide a result, as plain values from which a hash can be made.

    Files and arrays are replaced by their SHA-256.
    """
    if dataclasses.is_dataclass(part):
        names = [field.name for field in dataclasses.fields(part) if field.name not in FIELDS_NOT_IN_SETTINGS_HASH]
        return {name: _deciding(getattr(part, name)) for name in names}
    if isinstance(part, Mapping):
        return {name: _deciding(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_deciding(value) for value in part]
    if isinstance(part, np.ndarray):
        return [part.dtype.str, part.shape, hashlib.sha256(part.tobytes()).hexdigest()]
    return hashlib.sha256(part).hexdigest() if isinstance(part, bytes) else part
