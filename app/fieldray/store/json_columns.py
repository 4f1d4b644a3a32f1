"""What the columns with JSON say, as types: whatever else stands there is damage, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from fieldray.domain.finding import Decision
from fieldray.domain.image import PixelMap
from fieldray.domain.lungs import LungFields, LungSide, Side
from fieldray.domain.mask import KeptShares
from fieldray.domain.model import OperatingPoint
from fieldray.domain.study import FileKind, ImageHeader

OF_RUN: Final = 1  # in place of an operating point: that of the run for this label

Place = tuple[float, float, float, float]  # the values of a pixel map
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]  # SQLite and NumPy hold no number at will
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Ref(msgspec.Struct, frozen=True, kw_only=True):
    """Where an image is, and what its header says."""

    path: str
    member: str | None
    frame: Count
    kind: FileKind
    header: ImageHeader
    problem: str | None
    problem_is_refusal: bool


class Why(msgspec.Struct, frozen=True, array_like=True):
    """A reason, by its code."""

    code: str
    parameters: tuple[tuple[str, str], ...]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What else is known of a result; what says nothing is left out."""

    kind: FileKind
    rows: Count = 0
    columns: Count = 0
    notes: tuple[str, ...] = ()
    pixel_map: Place | None = None
    problem: Why | None = None
    is_refusal: bool = False
    maps: tuple[Count, Count, Count] | None = None
    extra: Mapping[str, float] = {}
    turn: tuple[Literal[0, 90, 180, 270], bool] = (0, False)


class Found(msgspec.Struct, frozen=True, array_like=True):
    """A finding."""

    label: str
    score: Share
    decision: Decision
    point: OperatingPoint | Literal[1] | None


class Lungs(msgspec.Struct, frozen=True, array_like=True):
    """Lung fields, but for their shares."""

    rows: Count
    columns: Count
    threshold: int
    place: Place
    is_frontal_chest: bool
    found: bool
    left_share: float
    right_share: float
    cut_off: tuple[Side, ...]
    rotation_degrees: int
    is_inverted: bool
    is_mirrored: bool
    evidence_inside: float | None
    latency_ms: float
    unseen: tuple[LungSide, ...] = ()

    def fields(self, shares: bytes) -> LungFields:
        """The lung fields with these shares, as `KeptShares.data`."""
        kept = KeptShares(self.rows, self.columns, self.threshold, shares)
        values = {name: getattr(self, name) for name in LUNG_VALUES}
        return LungFields(**values, kept=kept, pixel_map=PixelMap(*self.place))


_OF_CELLS: Final = ("rows", "columns", "threshold", "place")
# What is kept of lung fields behind that, in this order: all but the shares and their place.
LUNG_VALUES: Final = Lungs.__struct_fields__[len(_OF_CELLS) :]
