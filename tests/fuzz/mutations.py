"""Ways to damage a file. Each function takes the bytes and a random generator, and returns damaged bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

Mutation = Callable[[bytearray, random.Random], bytes]

_HEADER: Final = 1024
_EXTREMES: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
# DICOM elements of 16 bits that describe the pixels: rows, columns, samples, planes, bits, representation.
_SHORTS: Final = (0x0010, 0x0011, 0x0002, 0x0006, 0x0100, 0x0101, 0x0102, 0x0103)


def _block(data: bytearray, chance: random.Random) -> slice:
    """Choose a part of the file. Its length is drawn on a logarithmic scale."""
    start = chance.randrange(len(data))
    return slice(start, start + max(1, int(len(data) ** chance.random())))


def bits(data: bytearray, chance: random.Random) -> bytes:
    """Up to eight bits are flipped"""
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def noise(data: bytearray, chance: random.Random) -> bytes:
    """Up to 64 bytes are replaced by others"""
    for _ in range(chance.randint(1, 64)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def header(data: bytearray, chance: random.Random) -> bytes:
    """Up to 16 bytes of the first kilobyte are replaced by others"""
    for _ in range(chance.randint(1, 16)):
        data[chance.randrange(min(_HEADER, len(data)))] = chance.randrange(256)
    return bytes(data)


def cut(data: bytearray, chance: random.Random) -> bytes:
    """The end is missing"""
    return bytes(data[: chance.randrange(len(data))])


def zeros(data: bytearray, chance: random.Random) -> bytes:
    """A part is zeros, as where a disk failed"""
    place = _block(data, chance)
    data[place] = bytes(len(data[place]))
    return bytes(data)


def removed(data: bytearray, chance: random.Random) -> bytes:
    """A part is missing"""
    del data[_block(data, chance)]
    return bytes(data)


def repeated(data: bytearray, chance: random.Random) -> bytes:
    """A part is repeated several times"""
    place = _block(data, chance)
    data[place.start : place.start] = data[place] * chance.randint(1, 8)
    return bytes(data)


def moved(data: bytearray, chance: random.Random) -> bytes:
    """Two parts are swapped"""
    first, second = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return bytes(data[second:] + data[first:second] + data[:first])


def extremes(data: bytearray, chance: random.Random) -> bytes:
    """Up to four numbers of 16 or 32 bits, mostly in the header, become the smallest or largest possible"""
    for _ in range(chance.randint(1, 4)):
        width = chance.choice([2, 4])
        value = chance.choice(_EXTREMES) & (256**width - 1)
        end = min(_HEADER, len(data)) if chance.random() < 0.7 else len(data)
        at = chance.randrange(end)
        data[at : at + width] = value.to_bytes(width, chance.choice(["little", "big"]))
    return bytes(data)


def geometry(data: bytearray, chance: random.Random) -> bytes:
    """DICOM elements that describe the pixels get other numbers; a file without them is damaged by `extremes`"""
    heads = (b"\x28\x00" + short.to_bytes(2, "little") + b"US\x02\x00" for short in _SHORTS)
    places = [at for at in map(data.find, heads) if at >= 0]
    if not places:
        return extremes(data, chance)
    for at in chance.sample(places, chance.randint(1, len(places))):
        value = chance.choice([chance.randrange(2**16), chance.randrange(33), *(each & 0xFFFF for each in _EXTREMES)])
        data[at + 8 : at + 10] = value.to_bytes(2, "little")
    return bytes(data)


def tail(data: bytearray, chance: random.Random) -> bytes:
    """Other bytes follow the end"""
    return bytes(data) + chance.randbytes(chance.randint(1, 4096))


def empty(data: bytearray, chance: random.Random) -> bytes:
    """Only the first bytes are kept, the rest is random"""
    kept = chance.randrange(min(256, len(data)))
    return bytes(data[:kept]) + chance.randbytes(chance.randint(0, 8192))


MUTATIONS: Final[Mapping[str, Mutation]] = {
    each.__name__: each
    for each in (bits, noise, header, cut, zeros, removed, repeated, moved, extremes, geometry, tail, empty)
}


def mutated(data: bytes, kind: str, *, seed: int, number: int) -> bytes:
    """Return the bytes with this kind of damage. Equal seeds and numbers give equal damage."""
    return MUTATIONS[kind](bytearray(data), random.Random(f"{seed} {kind} {number}"))
