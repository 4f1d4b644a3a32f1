"""Measure images per second from an S3 server, compared with local files, for networks of different speed.

A process loads images one after another, and runs a network with random weights (224 x 224, three channels) on each.
The server (moto) is a process on this computer. Its objects (files) are downloaded ahead, as in a worker of an archive,
through a cache that is empty at the start of each round. Rounds with server and rounds with files alternate. The report
has medians, and the share of time in which the network waited for an object.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import fsspec
import fsspec.config
import keras
import numpy as np
from PIL import Image

from fieldray.bench.benchmark_case import BulletList, Report, Table
from fieldray.domain.image import ImageRef
from fieldray.offline import allow_networks
from fieldray_adapt.networks.architectures import resnet34, resnet50, squeezenet, vgg16
from fieldray_adapt.training.keras_engine import build_network
from fieldray_cluster.object_server import ObjectServer, address_to_path
from fieldray_cluster.objects import ObjectCache, ReadAhead

GOAL: Final = 0.9  # of the local rate
_SIDE: Final = 224
_SHAPE: Final = {"height": _SIDE, "width": _SIDE, "input_channels": 3, "labels": 1}
_START_S: Final = 60.0

Notify = Callable[[str], None]


def report(folder: Path, *, most: int, rounds: int, notify: Notify) -> Report:
    """Measure loading alone, and loading with each network, and return the report.

    `folder` has the images, of which at most `most` are used.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in (".png", ".jpg", ".jpeg"))[:most]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, _served(files) as server:
        listed = [(ImageRef(path=address_to_path(name)), state) for name, state in server.iterate_objects()]
        for name, make in _NETWORKS.items():
            network = make()
            network(np.zeros((1, _SIDE, _SIDE, 3), np.float32))
            found: dict[str, list[float]] = {"local": [], "remote": [], "waited": []}
            for number in range(rounds):
                notify(f"{name}: round {number + 1}")
                began_s = time.perf_counter()
                for path in files:
                    _run(path, network)
                found["local"].append(len(files) / (time.perf_counter() - began_s))
                took_s, waited_s = _remote_s(server, listed, Path(scratch), network)
                found["remote"].append(len(files) / took_s)
                found["waited"].append(waited_s / took_s)
            rows.append({"network": name, **found})
    met = [_ratio(each) >= GOAL for each in rows[1:]]
    size_mb = sum(path.stat().st_size for path in files) / len(files) / 2**20
    columns = ("network", "local, images/s", "remote, images/s", "remote / local", "waited for objects")
    return Report(
        kind="objects",
        title="Images from a server of objects against files",
        blocks=(
            BulletList("What came of it", (f"Within 10 % of local: {sum(met)} of {len(met)} networks.",)),
            Table("Images per second", columns, tuple(map(_cells, rows))),
            BulletList("How", (f"{len(files)} images of {size_mb:.2f} MB on average, {rounds} rounds.",)),
        ),
        data={"images": len(files), "rows": rows},
    )


def _ratio(row: Mapping[str, Any]) -> float:
    return float(statistics.median(row["remote"]) / statistics.median(row["local"]))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    local, remote, waited = (statistics.median(row[key]) for key in ("local", "remote", "waited"))
    return row["network"], f"{local:.1f}", f"{remote:.1f}", f"{remote / local:.2f}", f"{100 * waited:.0f} %"


def _own(specification: Any) -> Any:
    return build_network(specification, outputs=("scores",))


_NETWORKS: Final[Mapping[str, Callable[[], Any]]] = {
    "none (loading alone)": lambda: lambda _image: None,
    "VGG-16": lambda: _own(vgg16(**_SHAPE)),
    "ResNet-101": lambda: _own(resnet50(blocks=(3, 4, 23, 3), **_SHAPE)),
    "DenseNet-121": lambda: keras.applications.DenseNet121(weights=None, input_shape=(_SIDE, _SIDE, 3)),
    "ResNet-18": lambda: _own(resnet34(blocks=(2, 2, 2, 2), **_SHAPE)),
    "SqueezeNet": lambda: _own(squeezenet(**_SHAPE)),
}


@contextlib.contextmanager
def _served(files: Sequence[Path]) -> Iterator[ObjectServer]:
    """Start an S3 server with an object for each file, and yield a connection to the server."""
    allow_networks(("127.0.0.0/8",))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            fsspec.config.conf["s3"] = {"key": "reader", "secret": "secret", "endpoint_url": url}
            until_s = time.monotonic() + _START_S
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until_s:
                time.sleep(0.1)
            store: Any = fsspec.filesystem("s3")
            store.mkdir("box")
            for path in files:
                store.pipe(f"box/in/{path.name}", path.read_bytes())
            yield ObjectServer("s3://box/in")
        finally:
            process.terminate()


def _run(path: Path, network: Any) -> None:
    with Image.open(path) as image:
        network(np.asarray(image.convert("RGB").resize((_SIDE, _SIDE)), np.float32)[np.newaxis] / 255)


def _remote_s(
    server: ObjectServer, listed: Sequence[tuple[ImageRef, str]], folder: Path, network: Any
) -> tuple[float, float]:
    """Load images from a server and run a network on each. Returns all seconds, and seconds of waiting for objects."""
    refs, states = [ref for ref, _ in listed], [state for _, state in listed]
    own = folder / "own"
    own.mkdir()
    began_s, waited_s = time.perf_counter(), 0.0
    with ReadAhead(server, ObjectCache(folder / "cache"), refs, states, own) as ahead:
        for ref in refs:
            asked_s = time.perf_counter()
            with ahead.local_file(ref) as path:
                waited_s += time.perf_counter() - asked_s
                _run(path, network)
    took_s = time.perf_counter() - began_s
    for used in (own, folder / "cache"):
        shutil.rmtree(used)
    return took_s, waited_s
