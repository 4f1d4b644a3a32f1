"""Power cuts at every moment of an act. Each possible content of the disk is written and then checked."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final

from powercut.acts import ACTS, Act
from powercut.disk import MODELS, SECTORS, Change, Disk, Luck, Model, State
from powercut.figures import Figures
from powercut.place import Lost, Place, log_of
from powercut.stage import Fault, Stage

_INDEX: Final = "-shm"  # SQLite's index of its log is a memory map: after a power cut it may have any content

Names = Mapping[tuple[str, ...], object]  # content by path


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A power cut after `changes` changes under a model. `share` is the chance that an unsynced sector is kept."""

    changes: int
    model: Model
    share: float
    sector: int
    seed: int

    def state(self, disk: Disk) -> State:
        """Return the content of the disk after the power cut."""
        chance = random.Random(self.seed)
        found = disk.state(Luck(chance=chance, share=self.share, sector=self.sector))
        return dict(_with_any_index(found, chance) if 0 < self.share < 1 else found)


def cut(
    stage: Stage,
    name: str,
    *,
    seed: int,
    lucks: int,
    most: int | None = None,
    fault: Fault | None = None,
    figures: Figures | None = None,
) -> Figures:
    """Perform an act once, and check it after a power cut at every change.

    fault    a failure of the disk during the act
    lucks    number of random disks for each change and model, besides the two that kept everything or nothing
    most     maximum number of disks, drawn from all of them
    figures  earlier figures, to which these are added
    """
    act, place, figures = ACTS[name], stage.place, figures or Figures()
    act.prepare(place)
    disks = {model: Disk(place.root, model) for model in MODELS}
    watched = Disk(place.root, "ordered")
    before = place.log_path.read_bytes()
    done = stage.perform(name, fault=fault)
    if done.crash or (done.problem and not fault):
        raise AssertionError(f"{name} was not performed: {done.problem} {done.crash}")
    changes = stage.changes
    logged = [before, *(change.data for change in changes if change.kind == "told")]
    figures.counts["changes"] += len(changes)
    versions = _versions(watched, changes, act)
    _require_recorded(watched.now(), place)
    moments = _moments(len(changes), random.Random(f"{seed} {name}"), lucks=lucks, most=most)
    seen: set[int] = set()
    for moment, count, state in _cuts(disks, changes, moments):
        if (known := hash((count, frozenset(state.items())))) in seen:
            continue
        seen.add(known)
        figures.counts[moment.model] += 1
        with figures.judging(moment, under=f"{moment.model}: "):
            place.write(state)
            # after a failed change any earlier version may be there; `check` finds a wrong one
            _require_versions(act, state, [names for told in versions for names in told] if fault else versions[count])
            act.check(place, log_of(b"".join(logged[: count + 1])), "power")
    return figures


def _moments(changes: int, chance: random.Random, *, lucks: int, most: int | None) -> Sequence[Moment]:
    found = []
    for number in range(changes + 1):
        for model in MODELS:
            shares = [0.0, 1.0, *(chance.choice((0.1, 0.5, 0.9, chance.random())) for _ in range(lucks))]
            found += [Moment(number, model, share, chance.choice(SECTORS), chance.getrandbits(32)) for share in shares]
    return sorted(chance.sample(found, most)) if most is not None and most < len(found) else found


def _cuts(
    disks: Mapping[Model, Disk], changes: Sequence[Change], moments: Sequence[Moment]
) -> Iterator[tuple[Moment, int, State]]:
    """Yield each moment with the number of reports before it and the content of the disk."""
    done, count = 0, 0
    for moment in moments:
        while done < moment.changes:
            count += changes[done].kind == "told"
            for disk in disks.values():
                disk.apply(changes[done])
            done += 1
        yield moment, count, moment.state(disks[moment.model])


def _with_any_index(state: State, chance: random.Random) -> Iterator[tuple[tuple[str, ...], bytes | None]]:
    for path, data in state.items():
        if not path[-1].endswith(_INDEX) or (fate := chance.randrange(4)) == 0:
            yield path, data
        elif fate > 1:
            yield path, chance.randbytes(chance.choice((3, 512, 32768)))


def _require_recorded(recorded: State, place: Place) -> None:
    """Require that the recorded changes give the content of the real folder. Raises AssertionError."""
    found = place.read()
    wrong = [
        path
        for path in found.keys() | recorded.keys()
        if path != ("told",) and not path[-1].endswith(_INDEX) and found.get(path, 0) != recorded.get(path, 0)
    ]
    assert not wrong, f"not recorded: {wrong}"


# ---- files and folders that must be completely old or completely new


def _versions(disk: Disk, changes: Sequence[Change], act: Act) -> list[list[Names]]:
    """Return, for each time between two reports, all versions of `changes_whole` that a power cut may leave."""
    found = [[_names(disk.now(), act)]]
    for change in changes:
        disk.apply(change)
        if change.kind != "told" and not change.other:
            continue
        names = _names(disk.now(), act)
        if change.kind == "told":
            found[-1].append(names)
            found.append([names])
        elif change.other in names:  # a temporary file is no version yet
            found[-1].append({**found[-1][-1], change.other: names[change.other]})
    found[-1].append(_names(disk.now(), act))
    return found


def _names(state: State, act: Act) -> Names:
    found: dict[tuple[str, ...], object] = {}
    for pattern in act.changes_whole:
        parts = pattern.split("/")
        for path in state:
            if len(path) == len(parts) and all(map(fnmatch, path, parts)) and not path[-1].startswith("."):
                found[path] = frozenset(one for one in state.items() if one[0][: len(path)] == path)
    return found


def _require_versions(act: Act, state: State, versions: Sequence[Names]) -> None:
    found = _names(state, act)
    for name in found.keys() | {name for names in versions for name in names}:
        if found.get(name) not in [names.get(name) for names in versions]:
            what = "gone" if name not in found else "neither the old one nor the new one"
            raise Lost(f"{'/'.join(name)} is {what}")
