"""The report of `networks`: equal outputs first, then times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.network_cases import classifier_case, lung_case
from benchmarks.networks import ENGINES, FRAMEWORK, TOLERANCE, Effort, Measured, Notify, measure, times_as_fast
from fieldray.bench.benchmark_case import Points, Report, Table

MODELS: Final = Path(__file__).resolve().parent.parent / "models"

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
    blocks.append(Points("What took part", tuple(_details(measured, effort))))
    return Report(
        kind="networks",
        title="Fieldray: engines on the networks of the packs",
        blocks=tuple(blocks),
        data={
            "measured": [{**asdict(one), "engine": one.engine.key} for one in measured],
            "rounds": effort.rounds,
            "seconds": effort.seconds,
        },
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


def _ratio_text(ratio: float | None) -> str:
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
                _ratio_text(_ratio(rows, one.engine.key, FRAMEWORK)),
                _ratio_text(_ratio(rows, one.engine.key, "litert")),
            )
        )
    columns = ("engine", "ms/image", "lowest-highest", "images/s", "against eager PyTorch", "against LiteRT float32")
    return Table(_title(key), columns, tuple(cells))


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
