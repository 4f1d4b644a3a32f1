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
    """The figures of one part of the images in a manifest.

    `classes` has, by operating point, the table of `PointFigures.classes`.
    """

    auc: Estimate
    specificity_at_sensitivity: dict[str, Share]
    calibration_error: float
    classes: dict[str, dict[str, dict[str, Share]]]

    @classmethod
    def from_figures(cls, figures: PartFigures) -> PackPart:
        """Return those figures of a part that go into the manifest; all others are on the model card only."""
        return cls(
            images=figures.images,
            patients=figures.patients,
            positive=figures.positive,
            negative=figures.negative,
            auc=figures.auc,
            specificity_at_sensitivity=figures.specificity_at_sensitivity,
            calibration_error=figures.calibration_error,
            classes={name: point.classes for name, point in figures.points.items()},
        )


class ReferenceScores(Struct, frozen=True, kw_only=True):
    """How the scores of the test images are distributed, for comparison with the scores of a site's own images.

    `scores` has the number of images in each of several equally wide ranges of the score.
    """

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
    def from_figures(cls, figures: LabelFigures) -> PackLabel:
        """Return the figures of a label for the manifest."""
        return cls(
            test=PackPart.from_figures(figures.test),
            external_test=PackPart.from_figures(figures.external_test) if figures.external_test else None,
            reference=ReferenceScores(scores=figures.test.score_counts),
            heat_map=figures.heat_map,
            shortcuts=figures.shortcuts,
            float_against_int8=figures.float_against_int8,
        )


class PackFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of a classifier in its manifest.

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
