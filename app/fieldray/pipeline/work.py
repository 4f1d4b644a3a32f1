"""What a run does, as functions: a batch knows neither decoders nor engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fieldray.domain.finding import Outcome
from fieldray.domain.run import Resuming, RunSpec
from fieldray.domain.study import ImageHeader, ImageRef
from fieldray.imaging.discover import IsKnown
from fieldray.imaging.stamp import Stamps
from fieldray.reasons import Reason


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Work:
    """What a batch is told to do.

    Attributes
    ----------
    discover
        Gives every image once, lazily, but those in files that are known.
    noticed
        What the search met that concerns no single image; asked once it is over.
    doubts
        What the results of a run with this number, all of them stored, say against its pack.
    count
        A quick estimate of how many images there are; gives up when the function passed returns True.
    content_hash
        SHA-256 (hex) of an image's bytes, and the stamp of its file; raises OSError or FieldrayError.
    stamp_with
        Has the files stamped that are read from then on.
    check_header
        Why an image with this header is refused, None if it is not.
    screen
        An image's outcome; raises Cancelled, or a FieldrayError that ends the run.
    keeps_previews
        Whether the store gets small previews of the images.
    resuming
        How results of earlier runs are taken over.
    release
        Ends what `screen` uses, at once, also while it is used; may be called twice.
    """

    spec: RunSpec
    discover: Callable[[IsKnown], Iterator[ImageRef]]
    count: Callable[[Callable[[], bool]], int]
    content_hash: Callable[[ImageRef], tuple[str, bytes]]
    stamp_with: Callable[[Stamps], None]
    check_header: Callable[[ImageHeader], Reason | None]
    screen: Callable[[ImageRef], Outcome]
    release: Callable[[], None]
    noticed: Callable[[], Sequence[Reason]] = tuple
    doubts: Callable[[int], Sequence[Reason]] = lambda _run_id: ()
    keeps_previews: bool = True
    resuming: Resuming = field(default_factory=Resuming)
