"""A month of a site, for who runs a screening programme: how many of each class, why refused, do readers agree."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence

from fieldray.domain.finding import WORK_LIST_ORDER
from fieldray.domain.history import Tally
from fieldray.domain.metrics import share_of
from fieldray.formatting import calendar_date, category_word, count, percent, research_only
from fieldray.reasons import Reason
from fieldray.reports.document import Block, Paragraph, Points, Table
from fieldray.translation import Translator


def month_title(translator: Translator, first: datetime.date) -> str:
    """Of the month that begins on this day."""
    return translator.text("Screening in the month from {date}", date=calendar_date(translator, first))


def month_blocks(tallies: Sequence[Tally], checks: Sequence[Reason], translator: Translator) -> tuple[Block, ...]:
    """What each pack found in the images that it first saw in the month; and what came of its checks of constancy."""
    blocks: list[Block] = [Paragraph(research_only(translator), "notice")]
    for pack in dict.fromkeys(tally.pack for tally in tallies):
        blocks += _of_pack(pack, [tally for tally in tallies if tally.pack == pack], translator)
    text, told = translator.text, tuple(map(translator.reason, checks))
    blocks += [] if tallies else [Paragraph(text("Nothing was screened in this month."))]
    return (*blocks, Points(text("Constancy"), told or (text("No check of constancy was made in this month."),)))


def _of_pack(pack: str, tallies: Sequence[Tally], translator: Translator) -> Iterator[Block]:
    text, images, whys, answers = translator.text, Counter[str](), Counter[str](), Counter[str | None]()
    verdicts = Counter[tuple[str, str | None]]()
    for tally in tallies:
        images[tally.category] += tally.images
        verdicts[tally.category, tally.verdict] += tally.images
        if tally.category in ("abnormal", "normal"):
            answers[tally.verdict] += tally.images
        if tally.why and tally.category in ("refused", "failed"):
            whys[translator.reason(tally.why)] += tally.images
    rows = [
        (
            category_word(translator, category),
            count(images[category]),
            *(count(verdicts[category, verdict]) for verdict in ("agree", "disagree", "unsure")),
        )
        for category in WORK_LIST_ORDER
        if images[category]
    ]
    columns = text("Class"), text("Images"), text("Reader agrees"), text("Reader disagrees"), text("Reader not sure")
    yield Table(pack, columns, tuple(rows), widths=(48.0, 30.0, 30.0, 35.0, 35.0))
    if judged := answers["agree"] + answers["disagree"]:
        share = percent(translator, share_of(answers["agree"], judged, number=judged).estimate)
        said = text("Of {judged} answers that readers judged, they agreed with: {share}", judged=judged, share=share)
        yield Points("", (said, text("A reader who has seen the answer leans towards it.")))
    if whys:
        reasons = tuple((why, count(number)) for why, number in whys.most_common())
        yield Table(text("Not screened, by reason"), (text("Reason"), text("Images")), reasons, widths=(150.0, 28.0))
