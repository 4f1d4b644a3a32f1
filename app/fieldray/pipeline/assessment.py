"""What is applied to every image of a run: a model, and the operating point of each of its labels."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from fieldray.domain.finding import Finding, borderline_scores, calibrate, decide, is_borderline
from fieldray.domain.model import InputSpec, Model, OperatingPoint, OutputRoles, Prediction
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

# Raised by one when reading, preparing or judging changes so that stored results must not be taken over any more.
_RULES_VERSION: Final = 4
_LUNG_RULES_VERSION: Final = 2  # the same for results that lungs were found for


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Assessment:
    """A model and, by label code, the operating point in force (None: not assessed).

    ages_confirmed  a person said that all patients are of the ages the pack is for, where files do not say so
    """

    model: Model
    points: Mapping[str, OperatingPoint | None]
    ages_confirmed: bool = False

    def findings(self, scores: Mapping[str, float]) -> tuple[Finding, ...]:
        """Each label's finding of the network's raw scores in [0, 1] by label code."""
        manifest = self.model.manifest
        found = []
        for label in manifest.labels:
            score = calibrate(scores[label.code], manifest.calibration.get(label.code))
            point = self.points[label.code]
            found.append(Finding(label=label.code, score=score, point=point, decision=decide(score, point)))
        return tuple(found)

    def is_close(self, prediction: Prediction, *, oversampling: float) -> bool:
        """Whether the outcome could be another one if the image had been read in full and not only as far as needed.

        With the lungs found, what the gate says is only noted. `oversampling` as for `borderline_scores`.
        """
        gate, features = None if self.model.lungs else self.model.manifest.ood_gate, prediction.features
        distance = gate.distance(features) if gate and features is not None else None
        scores = (prediction.scores, *borderline_scores(prediction.scores, oversampling=oversampling))
        return is_borderline(*map(self.findings, scores), gate=gate, distance=distance)

    @property
    def settings_hash(self) -> str:
        """SHA-256 (hex) of all that decides a result beside the model file and the image."""
        manifest = self.model.manifest
        gate = manifest.ood_gate
        decisive = {
            "rules": _RULES_VERSION,
            "pack": self.model.pack_name,
            "input": _decisive(
                manifest.input, without=() if manifest.input.crop != "none" else ("crop", "crop_margin")
            ),
            "outputs": _decisive(manifest.outputs, without=("mask", "planes")),
            "labels": [label.code for label in manifest.labels],
            "points": [dataclasses.asdict(point) for point in self.points.values() if point],
            "calibration": {code: dataclasses.asdict(value) for code, value in manifest.calibration.items()},
            "gate": [gate.mean.tobytes().hex(), gate.projection.tobytes().hex(), gate.limit] if gate else None,
            "accepted": dataclasses.asdict(manifest.accepted),
        }
        if manifest.accepted.ages_years:  # each result says whether its patient's age is known, and from whom
            decisive["ages_confirmed"] = self.ages_confirmed
        if lungs := self.model.lungs:
            spec = dataclasses.asdict(lungs.manifest.input)
            decisive["lungs"] = [lungs.pack_name, lungs.model_sha256, spec, _LUNG_RULES_VERSION]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def choose(model: Model, *, operating_point: str | None = None, ages_confirmed: bool = False) -> Assessment:
    """The assessment by the named operating point, or by the first of each label.

    A legacy pack has none, so nothing is assessed. Raises UsageProblem (operating_point) for an unknown name.
    """
    manifest = model.manifest
    known = tuple(dict.fromkeys(point.name for point in manifest.operating_points))
    if operating_point is not None and operating_point not in known:
        raise UsageProblem(reason("operating_point", name=operating_point, known=", ".join(known) or "-"))
    points = {label.code: manifest.point(label.code, operating_point) for label in manifest.labels}
    return Assessment(model=model, points=points, ages_confirmed=ages_confirmed)


def _decisive(part: InputSpec | OutputRoles, *, without: Collection[str]) -> dict[str, object]:
    """The fields of a part of the manifest, without those that an older version did not know and that say nothing here:
    what it screened need not be screened again.
    """
    return {name: value for name, value in dataclasses.asdict(part).items() if name not in without}
