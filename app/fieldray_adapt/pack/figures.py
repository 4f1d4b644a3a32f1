"""The figures in a classifier's manifest."""

from __future__ import annotations

from msgspec import Struct

from fieldray.audit.units import Rule
from fieldray.domain.metrics import Share
from fieldray.domain.model import Estimate
from fieldray_adapt.evaluation.figures import (
    EvidenceFigures,
    GateFigures,
    HeatMapScale,
    ImageCounts,
    Int8Comparison,
    LabelFigures,
    PartFigures,
)


class PackPart(ImageCounts, frozen=True, kw_only=True):
    """The figures of one part in a manifest; `classes` by operating point, then as in `PointFigures`."""

    auc: Estimate
    specificity_at_sensitivity: dict[str, Share]
    calibration_error: float
    classes: dict[str, dict[str, dict[str, Share]]]

    @classmethod
    def of(cls, found: PartFigures) -> PackPart:
        """Select the figures that a clinician may ask for; the others are on the card."""
        return cls(
            images=found.images,
            patients=found.patients,
            positive=found.positive,
            negative=found.negative,
            auc=found.auc,
            specificity_at_sensitivity=found.specificity_at_sensitivity,
            calibration_error=found.calibration_error,
            classes={name: point.classes for name, point in found.points.items()},
        )


class ReferenceScores(Struct, frozen=True, kw_only=True):
    """Numbers of test images by their score, with which a site compares its own images."""

    scores: tuple[int, ...]


class PackLabel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one label in a manifest, on the test images and at another hospital."""

    test: PackPart
    external_test: PackPart | None = None
    reference: ReferenceScores
    heat_map: HeatMapScale | None = None
    shortcuts: dict[str, float]
    float_against_int8: Int8Comparison

    @classmethod
    def of(cls, found: LabelFigures) -> PackLabel:
        """The figures of a label that the manifest holds."""
        return cls(
            test=PackPart.of(found.test),
            external_test=PackPart.of(found.external_test) if found.external_test else None,
            reference=ReferenceScores(scores=found.test.score_counts),
            heat_map=found.heat_map,
            shortcuts=found.shortcuts,
            float_against_int8=found.float_against_int8,
        )


class PackFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metrics of a classifier's manifest; `evidence_inside` is the first label's.

    `counted` is the rule of an audit by which the figures of parts are counted, on images as the program screens them.
    """

    counted: Rule
    labels: dict[str, PackLabel]
    ood_gate: GateFigures
    evidence_inside: EvidenceFigures | None = None
