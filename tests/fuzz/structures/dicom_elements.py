"""Trees of DICOM data elements (PS3.5, 7), which can get wrong values and are then written in any encoding."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fuzz.structures.values import TEXTS

LONG: Final = frozenset((b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"))
REPRESENTATIONS: Final = (
    *sorted(LONG), b"AE", b"AS", b"AT", b"CS", b"DA", b"DS", b"DT", b"FD", b"FL", b"IS", b"LO", b"LT", b"PN", b"SH",
    b"SL", b"SS", b"ST", b"TM", b"UI", b"UL", b"US",
)  # fmt: skip
UNDEFINED: Final = 0xFFFFFFFF
ITEM, ITEM_END, SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
PIXELS: Final = 0x7FE00010
_BINARY: Final = {
    **{b"US": ("H", 2**16), b"UL": ("I", 2**32), b"SS": ("H", 2**16), b"SL": ("I", 2**32), b"UV": ("Q", 2**64)},
    **{b"SV": ("Q", 2**64)},
}
_STRANGE_TAGS: Final = (
    0, 0x00020010, 0x00020000, 0x00080000, 0x00080005, 0x00041220, 0x00280010, ITEM, ITEM_END, SEQUENCE_END, PIXELS,
    0x7FE00008, 0x7FE00009, 0x7FE00001, 0x7FE00002, 0x00091001, 0x00090010, 0x60003000, 0xFFFCFFFC, 0xFFFFFFFF,
)  # fmt: skip
_STRANGE_NUMBERS: Final = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x8000, 2**31, 2**32 - 1, 2**63)
_STRANGE_LENGTHS: Final = (
    0, 1, 2, 3, 7, 8, 0xFFFF, 0x10000, 2**24, 2**31 - 1, 2**31, 0xFFFFFFFD, 0xFFFFFFFE, UNDEFINED,
)  # fmt: skip
_STRANGE_REPRESENTATIONS: Final = (
    b"??", b"\0\0", b"ss", b"SQ", b"UN", b"OB", b"OW", b"AT", b"PN", b"\xff\xff", b"  ",
)  # fmt: skip
_STRANGE_VALUES: Final = (
    b"", b"\0", b" ", b"\\", b"\\\\\\", b"\xff\xfe", b"-1", b"1e999", b"1E308", b"nan", b"inf", b"-0", b"0x10", b"1.5",
    b"9" * 64, b"9" * 5_000, b"1\\2\\3\\4", b"A\\" * 60, b"1\\" * 3_000, b"\xd9\xa3", b"+7", b"12345678901234567890",
    b"\x1b$B\x1b(B", b"\x1b$)C\x0e", b"\x1b" * 9, b"\xf0\x9f\x98\x80", b"ISO 2022 IR 87\\ISO 2022 IR 149", b"GB18030",
    b"ISO_IR 192", b"ISO_IR 999", b"\\ISO 2022 IR 100", b"UTF-8", b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.3.10",
    b"\0" * 4_096, b"\xfe\xff\x00\xe0\x00\x00\x00\x00", b"\xfe\xff\xdd\xe0\x00\x00\x00\x00", b"\xe0\x7f\x10\x00OW\0\0",
)  # fmt: skip
_DEPTHS: Final = (1, 1, 2, 3, 10, 50, 300, 1_200)
_COPIES: Final = (1, 1, 2, 10, 100, 3_000)


@dataclass(slots=True)
class Item:
    """An item of a sequence, or a fragment of pixel data: its `content` is elements or bytes.

    length  the length that the file states, if it is to be wrong
    """

    content: list[Element] | bytes
    length: int | None = None
    is_undefined: bool = False
    has_end: bool = True


@dataclass(slots=True)
class Element:
    """A data element; `value` is bytes, or the items of a sequence or of encapsulated pixel data."""

    tag: int
    representation: bytes
    value: bytes | list[Item] = b""
    length: int | None = None
    is_undefined: bool = False
    has_end: bool = True
    is_swapped: bool = False


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of elements: little or big endian, with explicit or implicit value representation."""

    is_implicit: bool = False
    is_little: bool = True

    def written(self, elements: Sequence[Element]) -> bytes:
        """Return the elements as bytes. Values other than sequences are padded to an even length."""
        parts: list[bytes] = []
        for element in elements:
            self._add(element, parts)
        return b"".join(parts)

    def head(self, element: Element, length: int) -> bytes:
        """Return the encoded tag, value representation and length."""
        order = "<" if self.is_little != element.is_swapped else ">"
        tag = struct.pack(order + "HH", element.tag >> 16 & 0xFFFF, element.tag & 0xFFFF)
        if self.is_implicit:
            return tag + struct.pack(order + "I", length & 0xFFFFFFFF)
        if element.representation in LONG:
            return tag + element.representation + b"\0\0" + struct.pack(order + "I", length & 0xFFFFFFFF)
        return tag + element.representation + struct.pack(order + "H", length & 0xFFFF)

    def _add(self, element: Element, parts: list[bytes]) -> None:
        value = element.value
        if isinstance(value, list):
            data = b"".join(map(self._item, value))
        else:
            data = value + (b"\0" if element.representation in (b"UI", b"OB", b"UN") else b" ") * (len(value) % 2)
        length = UNDEFINED if element.is_undefined else len(data)
        parts += (self.head(element, length if element.length is None else element.length), data)
        if element.is_undefined and element.has_end:
            parts.append(self._mark(SEQUENCE_END, 0))

    def _item(self, item: Item) -> bytes:
        data = item.content if isinstance(item.content, bytes) else self.written(item.content)
        length = UNDEFINED if item.is_undefined else len(data)
        end = self._mark(ITEM_END, 0) if item.is_undefined and item.has_end else b""
        return self._mark(ITEM, length if item.length is None else item.length) + data + end

    def _mark(self, tag: int, length: int) -> bytes:
        order = "<" if self.is_little else ">"
        return struct.pack(order + "HHI", tag >> 16, tag & 0xFFFF, length & 0xFFFFFFFF)


def binary(representation: bytes, *numbers: int, is_little: bool = True) -> bytes:
    """Return integers as the value of an element with US, SS, UL, SL, UV or SV."""
    kind, size = _BINARY[representation]
    return struct.pack(f"{'<' if is_little else '>'}{len(numbers)}{kind}", *(number % size for number in numbers))


# ---- breaking


@dataclass(frozen=True, slots=True)
class _Place:
    """An element or item, and the list that holds it."""

    holder: list[Element] | list[Item]
    index: int

    @property
    def node(self) -> Element | Item:
        return self.holder[self.index]


def _places(elements: list[Element], depth: int = 0) -> Iterator[_Place]:
    for index, element in enumerate(elements):
        yield _Place(elements, index)
        if isinstance(element.value, list):
            for number, item in enumerate(element.value):
                yield _Place(element.value, number)
                if isinstance(item.content, list) and depth < 20:
                    yield from _places(item.content, depth + 1)


def break_elements(elements: list[Element], chance: random.Random, *, places: int) -> None:
    """Change the tree at `places` places: lengths, tags, representations, values, nesting, order, repetition."""
    for _ in range(places):
        found = list(_places(elements))
        if not found:
            return
        place = chance.choice(found)
        node = place.node
        if isinstance(node, Element) and chance.random() < 0.7:
            _break_element(node, chance)
        elif isinstance(node, Item) and chance.random() < 0.6:
            _break_item(node, chance)
        else:
            _break_order(place, found, chance)


def _break_element(element: Element, chance: random.Random) -> None:
    way = chance.randrange(10)
    if way <= 1:
        element.length = _length(element.length or _size(element.value), chance)
    elif way == 2:
        element.representation = chance.choice((*_STRANGE_REPRESENTATIONS, *REPRESENTATIONS))
    elif way == 3:
        element.tag = chance.choice((*_STRANGE_TAGS, element.tag ^ 1, element.tag + 1, chance.getrandbits(32)))
    elif way <= 6:
        element.value = _value(element, chance)
    elif way == 7:
        element.is_swapped = True
    elif way == 8:
        element.is_undefined, element.has_end = not element.is_undefined, chance.random() < 0.5
    else:
        _nest(element, chance.choice(_DEPTHS), chance)


def _break_item(item: Item, chance: random.Random) -> None:
    way = chance.randrange(4)
    if way == 0:
        item.length = _length(_size(item.content), chance)
    elif way == 1:
        item.is_undefined, item.has_end = not item.is_undefined, chance.random() < 0.5
    elif way == 2:
        item.content = chance.choice(_STRANGE_VALUES)
    elif isinstance(item.content, bytes):
        item.content = item.content[: chance.randrange(len(item.content) + 1)] + chance.choice(_STRANGE_VALUES)
    else:
        item.content = item.content * chance.choice((0, 2, 30))


def _break_order(place: _Place, found: Sequence[_Place], chance: random.Random) -> None:
    """Remove, repeat, swap or move a node, also an item to a place for elements or the reverse."""
    way, holder, index = chance.randrange(4), place.holder, place.index
    if way == 0:
        del holder[index]
    elif way == 1:
        holder[index:index] = [holder[index]] * min(chance.choice(_COPIES), 3_000 // len(found))  # type: ignore[list-item]
    elif way == 2:
        other = chance.randrange(len(holder))
        holder[index], holder[other] = holder[other], holder[index]  # type: ignore[assignment]
    elif isinstance(place.node, Element):
        targets = [each.node for each in found if isinstance(each.node, Item) and isinstance(each.node.content, list)]
        if targets:
            content = chance.choice(targets).content
            assert isinstance(content, list)
            node = place.node
            content.insert(chance.randrange(len(content) + 1), Element(node.tag, node.representation, b"1"))


def _value(element: Element, chance: random.Random) -> bytes | list[Item]:
    if element.representation in _BINARY and chance.random() < 0.7:
        return binary(element.representation, *chance.choices(_STRANGE_NUMBERS, k=chance.randrange(4)))
    if chance.random() < 0.2:
        return chance.choice(TEXTS).encode("utf-8", "surrogatepass")
    if chance.random() < 0.1:
        return [Item([]) for _ in range(chance.choice(_COPIES))]
    return chance.choice(_STRANGE_VALUES)


def _nest(element: Element, depth: int, chance: random.Random) -> None:
    """Nest sequences in sequences. The innermost are written as bytes, to spare the writer a deep recursion."""
    head = struct.pack("<HH", 0x0040, 0x0275) + b"SQ\0\0" + struct.pack("<I", UNDEFINED)
    data = (head + struct.pack("<HHI", 0xFFFE, 0xE000, UNDEFINED)) * depth
    if chance.random() < 0.5:
        data += (struct.pack("<HHI", 0xFFFE, 0xE00D, 0) + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)) * depth
    element.representation, element.is_undefined, element.value = b"SQ", chance.random() < 0.7, [Item(data)]


def _size(value: bytes | list[Item] | list[Element]) -> int:
    return len(value) if isinstance(value, bytes) else 8 * len(value)


def _length(true: int, chance: random.Random) -> int:
    near = (true + 1, true - 1, true + 2, true * 2, true // 2, true + 8, true - 8)
    return chance.choice((*near, *_STRANGE_LENGTHS)) % 2**32
