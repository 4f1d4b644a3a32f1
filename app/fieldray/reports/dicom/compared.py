"""An image compared with a prior one, as a measurement group of a structured report (PS3.16 TID 1501).

The prior image is referred to where its file has valid UIDs; its study date is named in any case.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset

from fieldray.domain.comparison import ChangeRegion
from fieldray.domain.prior import PairRecord, doubts_about_pair
from fieldray.domain.study import FileKind, ImageRef
from fieldray.reasons import reason
from fieldray.reports.content import NOTICE
from fieldray.reports.dicom.instance import PROGRAM, Source, Subject, source_of
from fieldray.reports.dicom.items import (
    ONE,
    OWN_SCHEME,
    SOURCE,
    comment,
    container,
    content_item,
    image_item,
    number_item,
    template,
    text_item,
    uid_item,
)
from fieldray.reports.dicom.uids import made_uid

_PRIOR: Final = ("prior", OWN_SCHEME, "Prior image compared")
_STUDY_DATE: Final = ("111060", "DCM", "Study Date")
_DATE: Final = re.compile(r"[0-9]{8}")
_MOST_REGIONS: Final = 50


def pair_groups(subject: Subject) -> list[Dataset]:
    """A group for each prior image that a person compared the image with."""
    return [_group(subject, pair) for pair in subject.pairs]


def prior_source(pair: PairRecord) -> Source | None:
    """How the prior image is referred to, None where its file has no valid UIDs."""
    kind: FileKind = "dicom" if pair.is_dicom else "unknown"
    return source_of(ImageRef(path=Path("prior"), kind=kind, frame=pair.prior_frame, header=pair.prior))


def _group(subject: Subject, pair: PairRecord) -> Dataset:
    prior = prior_source(pair)
    which = prior.sop_instance_uid if prior else (pair.prior.study_date, pair.prior.study_time)
    tracking = made_uid("comparison", subject.uid("sr"), which, pair.prior_frame)
    items = [
        text_item("HAS OBS CONTEXT", ("112039", "DCM", "Tracking Identifier"), f"{PROGRAM} comparison"),
        uid_item("HAS OBS CONTEXT", ("112040", "DCM", "Tracking Unique Identifier"), tracking),
        *([image_item("CONTAINS", SOURCE, subject.source)] if subject.source else []),
        *([image_item("CONTAINS", _PRIOR, prior)] if prior else []),
        *_study_date(pair),
        *_figures(pair),
        *(comment(text) for text in _comments(pair)),
    ]
    group = container("CONTAINS", ("125007", "DCM", "Measurement Group"), items)
    group.ContentTemplateSequence = [template("1501")]
    return group


def _study_date(pair: PairRecord) -> list[Dataset]:
    if not _DATE.fullmatch(pair.prior.study_date):
        return []
    item = content_item("CONTAINS", "DATE", _STUDY_DATE)
    item.Date = pair.prior.study_date
    return [item]


def _figures(pair: PairRecord) -> list[Dataset]:
    if pair.similarity is None:
        return []
    return [
        number_item(("likeness", OWN_SCHEME, "Likeness inside the lungs, aligned"), pair.similarity, ONE),
        number_item(("regions", OWN_SCHEME, "Regions that differ by more than noise"), len(pair.regions), ONE),
    ]


def _comments(pair: PairRecord) -> list[str]:
    date = pair.prior.study_date or "unknown"
    why = [f"Not comparable. {pair.why_not.text}"] if pair.why_not else []
    return [
        f"{NOTICE} {reason('compare_notice').text}",
        f"Compared with an image of study date {date}.",
        *(doubt.text for doubt in doubts_about_pair(pair)),
        *why,
        *(_region(number, region) for number, region in enumerate(pair.regions[:_MOST_REGIONS], 1)),
    ]


def _region(number: int, region: ChangeRegion) -> str:
    box, what = region.box, "denser" if region.is_denser else "less dense"
    place = f"left {box.left:.0f}, top {box.top:.0f}, {box.columns:.0f} x {box.rows:.0f} px"
    return (
        f"Region {number}: {place} of the image fitted into 512 px: {what}, {abs(region.strength):.1f} times the noise."
    )
