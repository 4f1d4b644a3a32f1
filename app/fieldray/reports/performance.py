"""The performance of a class: how many of 100 images with the finding, and of 100 without, a pack puts into the class.

Figures measured at another hospital come first, because performance at a pack's own hospital promises little elsewhere.
Window, start cards and documents show one sentence and two bars.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fieldray.domain.finding import Category
from fieldray.domain.intended_use import ClassDistribution, class_distributions, counts_per_hundred
from fieldray.domain.model import Manifest, OperatingPoint
from fieldray.formatting import class_performance_lines, short_category_label
from fieldray.translation import Translator


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar: one class, with its name and the number of images, of 100, in the class."""

    category: Category
    images_per_hundred: int
    class_name: str


@dataclass(frozen=True, slots=True)
class PerformanceBar:
    """A bar that shows 100 images. The numbers of its parts add up to 100."""

    title: str
    parts: tuple[BarPart, ...]

    @property
    def alt_text(self) -> str:
        """The content of the bar in words, for screen readers."""
        return f"{self.title}: " + ", ".join(f"{part.class_name} {part.images_per_hundred}" for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPerformance:
    """The measured performance of a class, or of a pack as a whole.

    sentence            the most important figures, those of another hospital first; or a sentence that nothing was
                        measured
    title               title of the bars, which names the hospital of their images
    bars                a bar of images with the finding, and a bar of images without the finding
    detailed_sentences  sentences with all figures and 95 % confidence intervals, from every hospital with figures
    """

    sentence: str
    title: str
    bars: tuple[PerformanceBar, ...]
    detailed_sentences: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """All measured figures as sentences: the most important sentence, and then the content of each bar in words."""
        return self.sentence, *(bar.alt_text for bar in self.bars)


def class_performance(
    translator: Translator, manifest: Manifest | None, point: OperatingPoint | None, category: Category | None = None
) -> MeasuredPerformance | None:
    """Return the performance of a class at a pack's operating point.

    manifest  the manifest of the pack, or None
    point     the operating point, or None
    category  the class that the sentence is about; None for the pack as a whole

    Returns None if there is no manifest or no operating point, if the manifest has no counts of the classes, or if the
    threshold was chosen on this site's images.
    """
    measured = {classes.is_from_other_hospital: classes for classes in class_distributions(manifest, point)}
    if not measured:
        return None
    shown = measured.get(True) or measured[False]
    at = (
        translator.text("At another hospital")
        if shown.is_from_other_hospital
        else translator.text("At the hospital of the training images")
    )
    return MeasuredPerformance(
        sentence=_sentence(translator, measured, category),
        title=at,
        bars=tuple(_bar(translator, shown, truth, manifest) for truth in (True, False)),
        detailed_sentences=tuple(class_performance_lines(translator, manifest, point)),
    )


def _bar(translator: Translator, classes: ClassDistribution, truth: bool, manifest: Manifest | None) -> PerformanceBar:
    shares, text = classes.shares_by_truth[truth], translator.text
    count = next(iter(shares.values())).of
    title = (
        text("Results per 100 images with the finding (measured on {count} images)", count=count)
        if truth
        else text("Results per 100 images without the finding (measured on {count} images)", count=count)
    )
    numbers = counts_per_hundred(shares)
    parts = (
        BarPart(category, numbers[category], short_category_label(translator, category, manifest))
        for category in shares
        if category not in ("refused", "failed") or numbers[category]
    )
    return PerformanceBar(title, tuple(parts))


def _sentence(translator: Translator, measured: Mapping[bool, ClassDistribution], category: Category | None) -> str:
    """Return the sentence on how often a result of a class is wrong or uncertain.

    measured  counts of the classes. Key True: at another hospital. Key False: at the hospital of the training images
    category  the class; None for a sentence on all classes
    """
    values = _figures(measured, category)
    if True in measured:
        return _elsewhere(translator, values, category)
    return " ".join(
        [translator.text("The pack was not fully tested at another hospital."), _own_text(translator, values, category)]
    )


def _elsewhere(translator: Translator, values: Mapping[str, str], category: Category | None) -> str:
    text = translator.text
    if category is None:
        return text(
            "At another hospital the pack detects {found} of 100 images with the finding, misses {missed} and is "
            "uncertain about {unclear}. Of 100 images without the finding, the pack falsely flags {false} and is "
            "uncertain about {also_unclear}.",
            **values,
        )
    if category == "normal":
        return text(
            "Of 100 images with the finding, {figure} are not flagged at another hospital, and {own} at the "
            "hospital of the training images.",
            **values,
        )
    if category == "unsure":
        return text(
            "The pack is uncertain about {figure} of 100 images at another hospital, and about {own} of 100 images "
            "at the hospital of the training images.",
            **values,
        )
    return text(
        "Of 100 images without the finding, {figure} are flagged at another hospital, and {own} at the hospital of "
        "the training images.",
        **values,
    )


def _own_text(translator: Translator, values: Mapping[str, str], category: Category | None) -> str:
    text = translator.text
    if category is None:
        return text(
            "At the hospital of the training images, the pack detects {found} of 100 images with the finding, "
            "misses {missed} and is uncertain about {unclear}. Of 100 images without the finding, the pack falsely "
            "flags {false} and is uncertain about {also_unclear}.",
            **values,
        )
    if category == "normal":
        return text(
            "At the hospital of the training images, the pack does not flag {own} of 100 images with the finding.",
            **values,
        )
    if category == "unsure":
        return text(
            "At the hospital of the training images, the pack is uncertain about {own} of 100 images.", **values
        )
    return text(
        "At the hospital of the training images, the pack flags {own} of 100 images without the finding.", **values
    )


def _figures(measured: Mapping[bool, ClassDistribution], category: Category | None) -> dict[str, str]:
    """Return the figures of a sentence by name; "–" for a hospital without counts.

    measured  counts of the classes. Key True: at another hospital. Key False: at the hospital of the training images
    category  the class of the sentence; None for all classes
    """
    if category is None:
        shown = measured.get(True) or measured[False]
        ill, well = (counts_per_hundred(shown.shares_by_truth[truth]) for truth in (True, False))
        numbers = {"found": _flagged(ill), "missed": ill["normal"], "unclear": ill["unsure"]}
        numbers |= {"false": _flagged(well), "also_unclear": well["unsure"]}
        return {name: str(number) for name, number in numbers.items()}
    figures = {name: measured.get(is_elsewhere) for name, is_elsewhere in (("figure", True), ("own", False))}
    return {name: _misleads(classes, category) if classes else "–" for name, classes in figures.items()}


def _misleads(classes: ClassDistribution, category: Category) -> str:
    """Return how many of 100 images are missed, falsely flagged, or in the uncertain zone, depending on the class."""
    if category == "unsure":
        count, of = classes.unsure_and_total_count
        return str(round(100 * count / of))
    numbers = counts_per_hundred(classes.shares_by_truth[category == "normal"])
    return str(numbers["normal"] if category == "normal" else _flagged(numbers))


def _flagged(numbers: Mapping[Category, int]) -> int:
    """Return the number of flagged images, including the images to be read first."""
    return numbers.get("abnormal", 0) + numbers.get("read_first", 0)


def performance_of_pack(translator: Translator, manifest: Manifest) -> tuple[MeasuredPerformance, ...]:
    """Return the measured performance of a pack: for each of its labels, at the label's first operating point."""
    points = (manifest.point(label.code) for label in manifest.labels)
    found = (class_performance(translator, manifest, point) for point in points)
    return tuple(one for one in found if one is not None)
