"""How the program is laid out for mutants, and how their fate is read."""

from __future__ import annotations

from mutation import MATCHING, ROOT, results_of, undecorated

SOURCE = '''
import functools
from typing import overload


@functools.lru_cache(maxsize=3)
@functools.wraps(len)
def cached(value):
    return value + 1


class Box:
    @property
    def side(self):
        """How long."""
        return 2

    @side.setter
    def side(self, value):
        pass

    @property
    def area(self):
        if self.side:
            return self.side**2
        return 0

    @classmethod
    def made(cls):
        return cls()


@overload
def either(value): ...
def either(value):
    return value
'''


def test_decorators_become_what_they_stand_for() -> None:
    changed = undecorated(SOURCE)
    assert "cached = functools.lru_cache(maxsize=3)(functools.wraps(len)(cached))" in changed
    assert "    area = property(area)" in changed
    assert changed.count("@") == 2  # of what more than one definition makes up
    spaces: list[dict[str, object]] = [{}, {}]
    for source, space in zip((SOURCE, changed), spaces, strict=True):
        exec(source, space)  # noqa: S102  # the source is above
        assert space["cached"](1) == space["cached"](1) == 2  # type: ignore[operator]
        assert space["cached"].cache_info().hits == 1  # type: ignore[attr-defined]
        assert space["Box"].made().area == 4  # type: ignore[attr-defined]


def test_the_fate_of_mutants_by_module() -> None:
    text = """
    fieldray.packs.trust.x_trust__mutmut_1: killed
    fieldray.packs.trust.x_trust__mutmut_2: survived
    fieldray.packs.trust.x_trust__mutmut_3: timeout
    fieldray.packs.trust.x_trust__mutmut_4: not checked
    fieldray.packs.trusted.x_trust__mutmut_1: survived
    fieldray.packs.naming.x_name__mutmut_1: no tests
    """
    trust, naming = results_of(text, ["packs/trust.py", "packs/naming.py"])
    assert trust.row == ("packs/trust.py", "4", "3", "2", "1", "0")
    assert trust.survivors == ["fieldray.packs.trust.x_trust__mutmut_2"]
    assert trust.open == [*trust.survivors, "fieldray.packs.trust.x_trust__mutmut_4"]
    assert naming.row == ("packs/naming.py", "1", "1", "0", "0", "1")


def test_what_is_asked_is_there() -> None:
    for name, room in MATCHING.items():
        paths = [*(f"app/fieldray/{name}/{module}" for module in room.modules), *room.tests]
        assert [path for path in paths if not (ROOT / path.partition("::")[0]).exists()] == []
