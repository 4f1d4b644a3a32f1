"""The texts about two compared images, in a person's language."""

from __future__ import annotations

from fieldray.domain.comparison import FRAME_SIDE, ChangeRegion
from fieldray.domain.image import ImageHeader
from fieldray.domain.prior_image import TimeGap, TimeOrder, gap_between, time_order
from fieldray.formatting import format_number
from fieldray.reasons import reason
from fieldray.translation import Translator


def study_interval_text(translator: Translator, between: TimeGap, order: TimeOrder) -> str:
    """Return a text on how much earlier or later one study is than another, such as "2 years 3 months earlier".

    between  the time between the two studies
    order    whether the study is "earlier" or "later"; for "same" and "unknown" the text is "the same day"
    """
    if between.minutes is not None and between.minutes >= 60:
        length = translator.text("{hours} h {minutes} min", hours=between.minutes // 60, minutes=between.minutes % 60)
    elif between.minutes is not None:
        length = translator.text("{minutes} min", minutes=between.minutes)
    else:
        parts = (
            between.years and translator.plural("{count} year", "{count} years", between.years),
            between.months and translator.plural("{count} month", "{count} months", between.months),
            between.days and translator.plural("{count} day", "{count} days", between.days),
        )
        length = " ".join([part for part in parts if part][:2])
    if not length or order in ("same", "unknown"):
        return translator.text("the same day")
    if order == "earlier":
        return translator.text("{length} earlier", length=length)
    return translator.text("{length} later", length=length)


def image_interval_text(translator: Translator, image: ImageHeader, current: ImageHeader) -> str:
    """Return a text such as "2 years earlier", or "time between the images not known" if a study date is missing."""
    between = gap_between(image, current)
    if between is None:
        return translator.text("time between the images not known")
    return study_interval_text(translator, between, time_order(image, current))


def comparison_notice(translator: Translator) -> str:
    """Return the notice on every comparison: research use only, and what a comparison cannot show."""
    research = translator.text("Research use only.")
    return f"{research} {translator.reason(reason('compare_notice'))}"


def region_count_text(translator: Translator, count: int) -> str:
    """Return a text with the number of regions that differ between two images."""
    return translator.plural(
        "In {count} region, the images differ by more than the noise.",
        "In {count} regions, the images differ by more than the noise.",
        count,
    )


def region_sentence(translator: Translator, region: ChangeRegion, number: int) -> str:
    """Return a sentence about one region that differs between two images.

    number  number of the region, from 1
    """
    values = {
        "number": number,
        "strength": format_number(translator, abs(region.strength), digits=1),
        "area": format_number(translator, 100 * region.area_px / FRAME_SIDE**2, digits=1),
    }
    if region.is_denser:
        return translator.text(
            "{number}. Denser in the current image: difference {strength} times the noise, area {area} % of the image",
            **values,
        )
    return translator.text(
        "{number}. Less dense in the current image: difference {strength} times the noise, area {area} % of the image",
        **values,
    )
