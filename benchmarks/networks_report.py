"""The report of `networks`: equal outputs first, then times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.network_cases import classifier_case, lung_case
from benchmarks.networks import ENGINES, FRAMEWORK, TOLERANCE, Effort, Measured, Notify, measure, times_as_fast
from fieldray.bench.report import Points, Report, Table

MODELS: Final = Path(__file__).resolve().parent.parent / "models"
_BACKEND: Final = 1.25
_CLAIM: Final = (3.0, 4.0)

Key = tuple[str, int, int]


def report(
    *,
    threads: Sequence[int],
    batches: Sequence[int],
    rounds: int,
    seconds: float,
    notify: Notify,
) -> Report:
    """Measure and report."""
    effort = Effort(rounds=rounds, seconds=seconds)
    cases = [classifier_case(_pack("adult-normal-abnormal")), lung_case(_pack("lung-fields"))]
    measured = measure(cases, threads=threads, batches=batches, effort=effort, notify=notify)
    groups = _groups(measured)
    blocks: list[Table | Points] = [_equality(measured)]
    blocks += [_times(key, rows) for key, rows in groups.items()]
    blocks.append(Points("What follows", tuple(_findings(groups))))
    blocks.append(Points("What took part", tuple(_details(measured, effort))))
    return Report(
        kind="networks",
        title="Fieldray: engines on the networks of the packs",
        blocks=tuple(blocks),
        data={"measured": [_row(one) for one in measured], "rounds": effort.rounds, "seconds": effort.seconds},
    )


def _pack(name: str) -> Path:
    return sorted(MODELS.glob(f"{name}-*"))[-1]


def _groups(measured: Sequence[Measured]) -> dict[Key, list[Measured]]:
    found: dict[Key, list[Measured]] = {}
    for one in measured:
        found.setdefault((one.case, one.threads, one.images), []).append(one)
    return found


def _title(key: Key) -> str:
    case, threads, images = key
    return f"{case}, {threads} thread{'s' if threads > 1 else ''}, batch of {images}"


def _of(rows: Sequence[Measured], engine: str) -> Measured | None:
    return next((one for one in rows if one.engine.key == engine), None)


def _ratio(rows: Sequence[Measured], engine: str, other: str) -> float | None:
    one, base = _of(rows, engine), _of(rows, other)
    return times_as_fast(one, base) if one and base else None


def _told(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


def _equality(measured: Sequence[Measured]) -> Table:
    cases = list(dict.fromkeys(one.case for one in measured))
    rows = []
    for engine in ENGINES:
        cells = []
        for case in cases:
            of_case = [one for one in measured if one.engine == engine and one.case == case]
            differences = [one.difference for one in of_case if one.difference is not None]
            if not differences:
                cells.append("-")
            else:
                is_other = any(not one.is_equal for one in of_case if one.difference is not None)
                cells.append(f"{max(differences):.1e}" + (" NOT EQUAL" if is_other else ""))
        rows.append((engine.title, *cells))
    title = f"Largest difference of an output (0 to 1) from the first engine; float32 is equal up to {TOLERANCE:g}"
    return Table(title, ("engine", *cases), tuple(rows))


def _times(key: Key, rows: Sequence[Measured]) -> Table:
    cells = []
    for one in rows:
        if not one.batch_ms or one.problem:
            cells.append((one.engine.title, "-", "-", "-", "-", "-"))
            continue
        median, low, high = one.image_ms
        cells.append(
            (
                one.engine.title,
                f"{median:.2f}",
                f"{low:.2f}-{high:.2f}",
                f"{1000 / median:.1f}",
                _told(_ratio(rows, one.engine.key, FRAMEWORK)),
                _told(_ratio(rows, one.engine.key, "litert")),
            )
        )
    columns = ("engine", "ms/image", "lowest-highest", "images/s", "against eager PyTorch", "against LiteRT float32")
    return Table(_title(key), columns, tuple(cells))


def _findings(groups: dict[Key, list[Measured]]) -> Iterator[str]:
    """The claim where it was measured, and only there; and what should become a backend."""
    for key, rows in groups.items():
        for one in rows:
            ratio = _ratio(rows, one.engine.key, FRAMEWORK)
            if one.engine.kind == "float32" and ratio and ratio >= _CLAIM[0]:
                where = "within" if ratio <= _CLAIM[1] else "above"
                yield (
                    f"{_title(key)}: {one.engine.title} is {ratio:.2f} times as fast as eager PyTorch, with equal "
                    f"outputs: {where} the three to four times of PZNet's claim, which is about volumes."
                )
    for key, rows in groups.items():
        for base, kind in (("litert", "float32"), ("litert-int8", "int8")):
            faster = [
                f"{one.engine.title} {ratio:.2f} x"
                for one in rows
                if one.engine.kind == "float32"
                and (ratio := _ratio(rows, one.engine.key, base)) is not None
                and ratio >= _BACKEND
            ]
            said = (
                f"faster by {_BACKEND:g} or more: {', '.join(faster)}"
                if faster
                else f"nobody is {_BACKEND:g} times as fast"
            )
            yield f"{_title(key)}, against LiteRT {kind}: {said}."


def _details(measured: Sequence[Measured], effort: Effort) -> Iterator[str]:
    yield (
        f"{effort.rounds} rounds, {effort.seconds:g} s of calls each after {effort.warm_up_s:g} s of warming up; each "
        "engine in a process of its own, kept on as many cores as it has threads."
    )
    yield "The program's figures contain its pipes and post-processing; it runs the pack's own file."
    for engine in ENGINES:
        of_engine = [one for one in measured if one.engine == engine]
        notes = dict.fromkeys(one.detail for one in of_engine if one.detail)
        problems = dict.fromkeys(f"did not take part: {one.problem}" for one in of_engine if one.problem)
        yield f"{engine.title}: {'; '.join((*notes, *problems)) or 'no details'}"


def _row(one: Measured) -> dict[str, object]:
    return {
        "engine": one.engine.key,
        "case": one.case,
        "threads": one.threads,
        "images": one.images,
        "detail": one.detail,
        "problem": one.problem,
        "batch_ms": one.batch_ms,
        "difference": one.difference,
    }
