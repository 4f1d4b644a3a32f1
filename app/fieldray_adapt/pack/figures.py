"""The measured figures that the manifest of a classifier's pack contains."""

from __future__ import annotations

from msgspec import Struct

from fieldray.audit.units import CountingRule
from fieldray.domain.metrics import Share
from fieldray.domain.model import Estimate
from fieldray_adapt.evaluation.figures import (
    DataPartFigures,
    EvidenceFigures,
    HeatMapScale,
    ImageCounts,
    Int8Comparison,
    LabelFigures,
    OodCheckFigures,
)


class PackDataPartFigures(ImageCounts, frozen=True, kw_only=True):
    """The figures in a pack's manifest that were measured on one set of images, such as the test images.

    `classes` has the table `PointFigures.classes` of each operating point, by the point's name.
    """

    auc: Estimate
    specificity_at_sensitivity: dict[str, Share]
    calibration_error: float
    classes: dict[str, dict[str, dict[str, Share]]]

    @classmethod
    def from_figures(cls, figures: DataPartFigures) -> PackDataPartFigures:
        """Return the figures that the manifest contains. All other fields of `figures` are on the model card only."""
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
    """The distribution of the scores of the test images, for comparison with the scores at a hospital.

    `scores` has the number of test images in each bin of the score. All bins have equal width.
    """

    scores: tuple[int, ...]


class PackLabelFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of one label in a pack's manifest, on test images and on images of another hospital."""

    test: PackDataPartFigures
    external_test: PackDataPartFigures | None = None
    reference: ReferenceScores
    heat_map: HeatMapScale | None = None
    shortcuts: dict[str, float]
    float_against_int8: Int8Comparison

    @classmethod
    def from_figures(cls, figures: LabelFigures) -> PackLabelFigures:
        """Return the figures of a label that the manifest contains."""
        return cls(
            test=PackDataPartFigures.from_figures(figures.test),
            external_test=PackDataPartFigures.from_figures(figures.external_test) if figures.external_test else None,
            reference=ReferenceScores(scores=figures.test.score_counts),
            heat_map=figures.heat_map,
            shortcuts=figures.shortcuts,
            float_against_int8=figures.float_against_int8,
        )


class PackFigures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All measured figures in the manifest of a classifier's pack.

    Attributes
    ----------
    counted
        The audit rule by which images are counted and referred.
    evidence_inside
        Which share of the heat maps' evidence for the first label lies inside the lungs; None if not measured.
    """

    counted: CountingRule
    labels: dict[str, PackLabelFigures]
    ood_gate: OodCheckFigures
    evidence_inside: EvidenceFigures | None = None
