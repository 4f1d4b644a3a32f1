"""Values that often reveal faults, and JSON documents broken at a few places."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

INTEGERS: Final = (
    0, 1, 2, -1, -2, 7, 127, 128, 255, 256, 999, 2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 2,
    2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**15) - 1, -(2**31), -(2**31) - 1, -(2**63) - 1, 10**10,
    10**18, 10**40, 10**310, 10**4000,
)  # fmt: skip
FLOATS: Final = (
    0.0, -0.0, 0.5, 1.5, -1.0, 1e-320, 1e30, 1e38, 1e308, -1e308, float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
TEXTS: Final = (
    "", " ", "\0", "\n", "a\nb", "\t", "a" * 70, "a" * 300, "x" * 20_000, "\ud800", "\udcff", "𝒳", "\u202eabc", "é",
    "..", "../../x", "/etc/passwd", "C:\\x", "CON", "a/b", "a\\b", "٣٤", "1", "1e5", "nan", "true", "null", "0.1.0",
    "{}", "%s", "{x}", "=1+1", "2024-13-45", "\x1b[2J", "\ufeff", "\uffff",
)  # fmt: skip
_MOST_PLACES: Final = 4_000
_DEPTHS: Final = (1, 2, 5, 31, 32, 40, 200, 900)


def nested(depth: int, chance: random.Random, core: Any = 0) -> Any:
    """Return nested lists, or nested objects."""
    for _ in range(depth):
        core = [core] if chance.random() < 0.5 else {"a": core}
    return core


def strange(chance: random.Random) -> Any:
    """Draw a value of any JSON type, or NaN."""
    kind = chance.randrange(9)
    if kind <= 4:
        return chance.choice((INTEGERS, FLOATS, TEXTS, TEXTS, (None, True, False))[kind])
    if kind == 5:
        return chance.choice(([], {}, [None], {"": 0}, [[]], [{}], [0] * 40, ["a", "a"]))
    if kind == 6:
        return nested(chance.choice(_DEPTHS), chance)
    return [strange(chance) for _ in range(chance.randrange(4))] if kind == 7 else chance.randrange(-300, 300)


def broken(document: Any, chance: random.Random, *, places: int) -> Any:
    """Return a copy of a document, changed at `places` places in type, size, number or depth."""
    holder = [_copied(document)]
    for _ in range(places):
        found = list(_places(holder))
        _break(*chance.choice(found), chance, copies=_MOST_PLACES // len(found))
    return holder[0]


def _copied(document: Any) -> Any:
    """Return a copy of a document of any depth."""
    holder = [document]
    for inside, key in _places(holder):
        value = inside[key]
        if isinstance(value, list | dict):
            inside[key] = value.copy()
    return holder[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return every place of a document as its container and the key or index in it, outer places first."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        for key in range(len(holder)) if isinstance(holder, list) else list(holder):
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


def _break(holder: Any, key: Any, chance: random.Random, *, copies: int) -> None:
    value, way = holder[key], chance.randrange(12)
    if way == 0:
        holder[key] = nested(chance.choice(_DEPTHS), chance, value)
    elif way == 1 and not (isinstance(holder, list) and len(holder) == 1):
        del holder[key]
    elif way == 2 and isinstance(holder, dict):
        holder[chance.choice(TEXTS)] = value
    elif way == 2 and isinstance(holder, list):
        holder += [_copied(value) for _ in range(min(chance.choice((1, 2, 20, 100)), copies))]
    elif way == 3 and isinstance(value, bool | int | float | str):
        holder[key] = _nearby(value, chance)
    elif way == 4 and isinstance(value, list | dict):
        value.clear()
    elif way == 5 and not isinstance(value, dict | list):
        holder[key] = str(value)[:100]
    elif way == 6:
        holder[key] = [value]
    else:
        holder[key] = strange(chance)


def _nearby(value: float | str, chance: random.Random) -> Any:
    """Draw a value of the same type that differs a little or a lot."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 2**16, 2**32)) if chance.random() < 0.7 else chance.choice(INTEGERS)
    if isinstance(value, float):
        return value * chance.choice((-1, 0, 2, 1e10)) if chance.random() < 0.7 else chance.choice(FLOATS)
    at = chance.randrange(len(value) + 1)
    longer = value[:at] + chance.choice(TEXTS)[:50] + value[at:]
    return chance.choice((value * chance.choice((2, 10, 200)), value[:at], value.swapcase(), longer, longer))


def json_bytes(value: Any, chance: random.Random, *, places: int = 0) -> bytes:
    """Return a document as JSON whose text is broken at up to `places` places."""
    is_plain = chance.random() < 0.8
    try:
        text = json.dumps(value, ensure_ascii=is_plain, separators=chance.choice((None, (",", ":"))))
    except RecursionError:
        text = "[" * 3_000
    for _ in range(places):
        text = _broken_text(text, chance)
    encoding = "utf-8" if places == 0 else chance.choice(("utf-8",) * 8 + ("utf-16", "utf-8-sig"))
    return text.encode(encoding, "surrogatepass")


_JSON_PARTS: Final = (
    "[" * 2_000 + "]" * 2_000, "9" * 5_000, "1e999999", "-", "NaN", "Infinity", "01", "0x1", "1.", "[" * 500,
    "[" * 30_000, '{"a":' * 990, "]", '"', "\\", "\\u", "\\ud800", ",", ",,", ":", "{}", "[]", "/*x*/", "\0", "\x1f",
    "\ufeff", "é", '"a":1,"a":2,',
)  # fmt: skip


def _broken_text(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    way = chance.randrange(4)
    if way == 0:
        return text[:at]
    if way == 1:
        return text[:at] + text[at + chance.choice((1, 1, 2, 10)) :]
    return text[:at] + chance.choice(_JSON_PARTS) + text[at:]
