"""The figures in the manifest of a classifier."""

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
    """The figures of one part. `classes` has, by operating point, the table of `PointFigures.classes`."""

    auc: Estimate
    specificity_at_sensitivity: dict[str, Share]
    calibration_error: float
    classes: dict[str, dict[str, dict[str, Share]]]

    @classmethod
    def of(cls, found: PartFigures) -> PackPart:
        """Return the figures for the manifest; all others are on the model card only."""
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
    """Numbers of test images in equal bins of the score, with which a site compares its own images."""

    scores: tuple[int, ...]


class PackLabel(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one label, on the test images and at another hospital."""

    test: PackPart
    external_test: PackPart | None = None
    reference: ReferenceScores
    heat_map: HeatMapScale | None = None
    shortcuts: dict[str, float]
    float_against_int8: Int8Comparison

    @classmethod
    def of(cls, found: LabelFigures) -> PackLabel:
        """Return the figures of a label for the manifest."""
        return cls(
            test=PackPart.of(found.test),
            external_test=PackPart.of(found.external_test) if found.external_test else None,
            reference=ReferenceScores(scores=found.test.score_counts),
            heat_map=found.heat_map,
            shortcuts=found.shortcuts,
            float_against_int8=found.float_against_int8,
        )


class PackFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of a classifier.

    Attributes
    ----------
    counted
        The audit rule by which images are counted.
    evidence_inside
        Evidence inside the lungs for the first label.
    """

    counted: Rule
    labels: dict[str, PackLabel]
    ood_gate: GateFigures
    evidence_inside: EvidenceFigures | None = None
