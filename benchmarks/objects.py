"""Measure training from an S3 server, compared with local files, for five networks (Hyper's figure 3.5).

A process reads images one after another, and trains a network with random weights (224 x 224, three channels): forward,
backward and update for each batch. The server (moto) is a process on this computer. Its objects (files) are downloaded
ahead, as in a worker of an archive, through a cache that is empty at the start of each round. Rounds with server and
rounds with files alternate. The report has medians, the share of time in which the training waited for an object, and
the CPU time of the server.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import fsspec
import fsspec.config
import keras
import numpy as np
import psutil
from numpy.typing import NDArray
from PIL import Image

from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.domain.image import ImageRef
from fieldray.offline import allow_networks
from fieldray_adapt.networks.architectures import resnet34, resnet50, squeezenet, vgg16
from fieldray_adapt.training.keras_engine import build_network, compile_model
from fieldray_cluster.object_server import ObjectServer, address_to_path
from fieldray_cluster.objects import ObjectCache, PieceDownloads

GOAL_RATIO: Final = 0.9  # images per second from the server, divided by those from local files
_SIDE: Final = 224
_SHAPE: Final = {"height": _SIDE, "width": _SIDE, "input_channels": 3, "labels": 1}
_START_S: Final = 60.0

Notify = Callable[[str], None]
TrainFunction = Callable[[NDArray[np.float32]], object]
"""Performs one training iteration with a batch of images (n, height, width, 3) float32 in 0..1."""
ObjectList = Sequence[tuple[ImageRef, str]]


def run_benchmark(folder: Path, *, max_images: int, batch: int, rounds: int, notify: Notify) -> BenchmarkReport:
    """Measure loading alone, and the training iterations of each network, and return the report.

    `folder` has the images, of which at most `max_images` are used, in batches of `batch`.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in (".png", ".jpg", ".jpeg"))[:max_images]
    files = files[: len(files) // batch * batch]  # a smaller last batch would be compiled again
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, s3_server({f"in/{each.name}": each for each in files}) as process:
        server = ObjectServer("s3://box/in")
        listed = [(ImageRef(path=address_to_path(name)), state) for name, state in server.iterate_objects()]
        for name, make in _NETWORKS.items():
            train = make()
            for _ in range(2):  # the first iteration compiles the network, and is not measured
                train(np.zeros((batch, _SIDE, _SIDE, 3), np.float32))
            found: dict[str, list[float]] = {"local": [], "remote": [], "waited": [], "server": []}
            for number in range(rounds):
                notify(f"{name}: round {number + 1}")
                began_s = time.perf_counter()
                _train_on(map(_read, files), train, batch)
                found["local"].append(len(files) / (time.perf_counter() - began_s))
                computed_s = sum(process.cpu_times()[:2])
                took_s, waited_s = _train_remotely(server, listed, Path(scratch), train, batch)
                found["remote"].append(len(files) / took_s)
                found["waited"].append(waited_s / took_s)
                found["server"].append((sum(process.cpu_times()[:2]) - computed_s) / len(files))
            rows.append({"network": name, **found})
    met = [_ratio(each) >= GOAL_RATIO for each in rows[1:]]
    size_mb = sum(path.stat().st_size for path in files) / len(files) / 2**20
    columns = (
        *("network", "local, images/s", "remote, images/s", "remote / local", "time waiting for objects"),
        "CPU time of the server, ms per image",
    )
    text = f"Training from the server is at most 10 % slower with {sum(met)} of {len(met)} networks."
    how = f"{len(files)} images of {size_mb:.2f} MB on average in batches of {batch}, {rounds} rounds."
    return BenchmarkReport(
        file_stem="objects",
        title="Training from an object server and from local files",
        blocks=(
            BulletList("Results", (text,)),
            Table("Training iterations", columns, tuple(map(_cells, rows))),
            BulletList("How it was measured", (how,)),
        ),
        json_values={"images": len(files), "batch": batch, "rows": rows},
    )


def _ratio(row: Mapping[str, Any]) -> float:
    return float(statistics.median(row["remote"]) / statistics.median(row["local"]))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    local, remote, waited, server = (statistics.median(row[key]) for key in ("local", "remote", "waited", "server"))
    shown = (f"{local:.1f}", f"{remote:.1f}", f"{remote / local:.2f}", f"{100 * waited:.0f} %", f"{1000 * server:.1f}")
    return row["network"], *shown


def _training(model: Any) -> TrainFunction:
    """Return a function that trains a model with one sigmoid output by stochastic gradient descent."""
    compile_model(model, keras.optimizers.SGD(1e-4), loss="binary_crossentropy")
    return lambda images: model.train_on_batch(images, np.arange(len(images), dtype=np.float32)[:, np.newaxis] % 2)


def _own_network(specification: Any) -> TrainFunction:
    return _training(build_network(specification, outputs=("scores",)))


def _densenet() -> TrainFunction:
    options = {"classes": 1, "classifier_activation": "sigmoid"}
    return _training(keras.applications.DenseNet121(weights=None, input_shape=(_SIDE, _SIDE, 3), **options))


_NETWORKS: Final[Mapping[str, Callable[[], TrainFunction]]] = {
    "none (loading alone)": lambda: lambda _images: None,
    "VGG-16": lambda: _own_network(vgg16(**_SHAPE)),
    "ResNet-101": lambda: _own_network(resnet50(blocks=(3, 4, 23, 3), **_SHAPE)),
    "DenseNet-121": _densenet,
    "ResNet-18": lambda: _own_network(resnet34(blocks=(2, 2, 2, 2), **_SHAPE)),
    "SqueezeNet": lambda: _own_network(squeezenet(**_SHAPE)),
}


@contextlib.contextmanager
def s3_server(files: Mapping[str, Path]) -> Iterator[psutil.Process]:
    """Start an S3 server whose bucket `box` has the files as objects, by key. Yields the process of the server.

    This process and its child processes are configured to use the server.
    """
    allow_networks(("127.0.0.0/8",))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    own = {"key": "reader", "secret": "secret", "endpoint_url": f"http://127.0.0.1:{port}"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            fsspec.config.conf["s3"] = own
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")
            os.environ.update(zip(names, own.values(), strict=True))
            until_s = time.monotonic() + _START_S
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until_s:
                time.sleep(0.1)
            store: Any = fsspec.filesystem("s3")
            store.mkdir("box")
            for key, path in files.items():
                store.pipe(f"box/{key}", path.read_bytes())
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def _read(path: Path) -> NDArray[np.float32]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((_SIDE, _SIDE)), np.float32) / np.float32(255)


def _train_on(images: Iterable[NDArray[np.float32]], train: TrainFunction, batch: int) -> None:
    """Perform one training iteration for each `batch` images."""
    left = iter(images)
    while found := list(itertools.islice(left, batch)):
        train(np.stack(found))


def _train_remotely(
    server: ObjectServer, listed: ObjectList, folder: Path, train: TrainFunction, batch: int
) -> tuple[float, float]:
    """Train a network on images of a server. Returns the total seconds, and the seconds of waiting for objects."""
    refs, states = [ref for ref, _ in listed], [state for _, state in listed]
    own, waits_s = folder / "own", list[float]()
    own.mkdir()
    began_s = time.perf_counter()
    with PieceDownloads(server, ObjectCache(folder / "cache"), refs, states, own) as ahead:

        def read(ref: ImageRef) -> NDArray[np.float32]:
            asked_s = time.perf_counter()
            with ahead.local_file(ref) as path:
                waits_s.append(time.perf_counter() - asked_s)
                return _read(path)

        _train_on(map(read, refs), train, batch)
    took_s = time.perf_counter() - began_s
    for used in (own, folder / "cache"):
        shutil.rmtree(used)
    return took_s, sum(waits_s)
