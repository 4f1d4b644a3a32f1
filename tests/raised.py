"""How a test says why something is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fieldray.errors import FieldrayError


@contextmanager
def raises(kind: type[FieldrayError], code: str, *, says: str = "") -> Iterator[None]:
    """What is done within ends in an error of this kind, whose reason has this code and says this."""
    with pytest.raises(kind) as caught:
        yield
    assert caught.value.reason.code == code
    assert says in caught.value.reason.text
