"""The assertion that something is refused for a reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fieldray.errors import FieldrayError


@contextmanager
def raises(kind: type[FieldrayError], code: str, *, says: str = "") -> Iterator[None]:
    """Require that the block raises an error of this kind, whose reason has this code and this text."""
    with pytest.raises(kind) as caught:
        yield
    assert caught.value.reason.code == code
    assert says in caught.value.reason.text
