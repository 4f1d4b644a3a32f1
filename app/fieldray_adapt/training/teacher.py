"""Soften noisy labels with a teacher: a frozen EfficientNet-Lite0 [1]_, and a logistic regression on its features.

The regression that scores an image was fitted to other patients. The training target of the image becomes the mean of
label and score [2]_. So a label that contradicts the other patients counts less.

References
----------
.. [1] Tan M. and Le Q., EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019,
   arXiv:1905.11946; the variant without squeeze and excitation, with ReLU6, is TensorFlow's EfficientNet-Lite.
.. [2] Hinton G. et al., Distilling the Knowledge in a Neural Network, 2015, arXiv:1503.02531.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.files import file_sha256, open_arrays, save_arrays
from fieldray_adapt.networks.architectures import convolution, depthwise_convolution
from fieldray_adapt.networks.specification import INPUT_NAME, Layer, Specification, Weights, weight_shapes
from fieldray_adapt.run import Progress
from fieldray_adapt.training.classifier import Samples
from fieldray_adapt.training.engine_interface import Batch
from fieldray_adapt.training.keras_engine import layer_output_function

TEACHER_IMAGE_SIDE_PIXELS: Final = 224
"""The width and height of the teacher's input images, in pixels."""
# For each stage: number of blocks, kernel side, stride of the first block, output channels. All stages but the first
# expand their channels sixfold inside a block.
_STAGES: Final = (
    *((1, 3, 1, 16), (2, 3, 2, 24), (2, 5, 2, 40), (3, 3, 2, 80)),
    *((3, 5, 1, 112), (4, 5, 2, 192), (1, 3, 1, 320)),
)
_READ: Final = ("block11", "block15", "head")
_FOLDS: Final = 4
_BATCH: Final = 16
_PENALTY: Final = 3e-4
"""Inverse strength of the logistic regression's penalty: the parameter C of scikit-learn."""
_CERTAIN: Final = 0.99
_PARTS: Final = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}


def efficientnet_lite0() -> Specification:
    """Return the specification of EfficientNet-Lite0 without the classifier.

    The input is a colour image of `TEACHER_IMAGE_SIDE_PIXELS` x `TEACHER_IMAGE_SIDE_PIXELS` pixels in -1..1. The output
    is 1,280 feature maps.
    """
    layers = [convolution("stem", INPUT_NAME, "stem", kernel=3, stride=2, activation="relu6")]
    channels, last, number, width = {"stem": 32}, "stem", 0, 32
    for stage, (count, kernel, first_stride, out) in enumerate(_STAGES):
        channels[f"stage{stage}"] = out
        for repeat in range(count):
            name, source = f"block{number}", last
            if stage:
                channels[f"{name}_expand"] = 6 * width
                layers.append(convolution(f"{name}_expand", last, f"{name}_expand", activation="relu6"))
                last = f"{name}_expand"
            stride = 1 if repeat else first_stride
            depthwise = depthwise_convolution(f"{name}_depthwise", last, stride=stride, activation="relu6")
            layers.append(replace(depthwise, kernel=kernel))
            last = f"{name}_project" if repeat else name
            layers.append(convolution(last, f"{name}_depthwise", f"stage{stage}", activation="none"))
            if repeat:
                layers.append(Layer(name=name, kind="add", inputs=(source, last)))
                last = name
            number, width = number + 1, out
    layers.append(convolution("head", last, "head", activation="relu6"))
    return Specification(
        name="efficientnet-lite0",
        height=TEACHER_IMAGE_SIDE_PIXELS,
        width=TEACHER_IMAGE_SIDE_PIXELS,
        input_channels=3,
        layers=tuple(layers),
        channels={**channels, "head": 1280},
        outputs={"features": "head"},
    )


def read_teacher_weights(path: Path) -> Weights:
    """Read the weights of `efficientnet_lite0` from an .npz file with PyTorch's names and layout of arrays.

    Raises UsageProblem: data_unreadable if the file cannot be read, teacher_unfit if the arrays do not fit.
    """
    found = Weights()
    try:
        with open_arrays(path) as arrays:
            for key, shape in weight_shapes(efficientnet_lite0()).items():
                array = np.asarray(arrays[_name_in_file(key)], np.float32)
                if key.endswith("/kernel"):
                    array = array.transpose((2, 3, 0, 1) if shape[-1] == 1 else (2, 3, 1, 0))
                if array.shape != shape:
                    raise UsageProblem(reason("teacher_unfit", path=path))
                found[key] = array
    except OSError as problem:
        raise UsageProblem(reason("data_unreadable", path=path, detail=problem.strerror)) from problem
    except StorageProblem as problem:
        raise UsageProblem(reason("teacher_unfit", path=path)) from problem
    return found


def _name_in_file(key: str) -> str:
    """Return the name of the weight `key` in PyTorch's file, such as "_blocks.0._expand_conv.weight"."""
    layer, _, part = key.rpartition("/")
    block, _, step = layer.removeprefix("block").partition("_")
    if layer in ("stem", "head"):
        kernel, norm = f"_conv_{layer}", "_bn0" if layer == "stem" else "_bn1"
    else:
        step = step or "project"
        number = ("expand", "depthwise", "project").index(step)
        kernel, norm = f"_blocks.{block}._{step}_conv", f"_blocks.{block}._bn{number}"
    return f"{kernel}.weight" if part == "kernel" else f"{norm}.{_PARTS[part]}"


def with_teacher_targets(
    samples: Samples, teacher: Path, *, teacher_share: float, cache: Path, progress: Progress
) -> Samples:
    """Return a copy of `samples` in which each target is a mean of the label and the teacher's score, 0..1.

    Unknown targets are not changed.

    Parameters
    ----------
    teacher
        The file of the teacher's weights.
    teacher_share
        The weight of the teacher's score in the mean, 0..1. The label has the rest.
    cache
        The file in which the teacher's features of the images are stored for later calls.

    Raises
    ------
    UsageProblem
        As `read_teacher_weights`.
    StorageProblem
    """
    seen = _features(samples.images, teacher, cache, progress)
    folds = np.array([int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % _FOLDS for name in samples.patients])
    targets = samples.targets.copy()
    for label in range(targets.shape[1]):
        scores = _answers(seen, samples.targets[:, label], folds)
        targets[:, label] = (1 - teacher_share) * targets[:, label] + teacher_share * scores
    return replace(samples, targets=targets)


def _answers(seen: NDArray[np.float32], truth: NDArray[np.float32], folds: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the score (0.01..0.99) of each image by a logistic regression that was fitted to other patients.

    If all images of the other patients are of one class, no regression is possible, and the score is the label.

    Parameters
    ----------
    seen
        The features (n, f) of the images.
    truth
        The label (n,) of each image: 0, 1, or nan if unknown.
    folds
        The number (n,) of the fold of each image. All images of a patient are in one fold.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    answers, is_known = truth.copy(), ~np.isnan(truth)
    for fold in range(_FOLDS):
        others, own = is_known & (folds != fold), is_known & (folds == fold)
        if own.any() and len(np.unique(truth[others])) > 1:
            head = LogisticRegression(C=_PENALTY, class_weight="balanced", max_iter=1000)
            model = make_pipeline(StandardScaler(), head).fit(seen[others], truth[others] > 0.5)
            answers[own] = model.predict_proba(seen[own])[:, 1]
    return answers.clip(1 - _CERTAIN, _CERTAIN)  # the mean with the label then stays on the label's side of 0.5


def _features(images: NDArray[np.uint8], teacher: Path, cache: Path, progress: Progress) -> NDArray[np.float32]:
    """Return the teacher's features (n, f) of images, from the file `cache` if stored there.

    Features are the mean and the maximum of each feature map, averaged over the image and its mirror image.
    """
    key, names = file_sha256(teacher), [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
    known = dict[str, NDArray[np.float16]]()
    if cache.is_file():
        with open_arrays(cache) as arrays:
            if str(arrays["teacher"]) == key:
                known = dict(zip(arrays["names"].tolist(), arrays["features"], strict=True))
    missing = [index for index, name in enumerate(names) if name not in known]
    if missing:
        read = layer_output_function(efficientnet_lite0(), read_teacher_weights(teacher), _READ)
        for start in range(0, len(missing), _BATCH):
            chosen = missing[start : start + _BATCH]
            known |= zip([names[index] for index in chosen], _teacher_features(read, images[chosen]), strict=True)
            progress("teacher", start + len(chosen), len(missing))
        save_arrays(cache, {"teacher": key, "names": list(known), "features": np.stack(list(known.values()))})
    return np.stack([known[name] for name in names]).astype(np.float32)


def _teacher_features(read: Callable[[Batch], dict[str, Batch]], images: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Compute the teacher's features (n, f) of images. `read` runs the teacher on a batch of images."""
    grey = [
        np.asarray(
            Image.fromarray(image[..., 0]).resize(
                (TEACHER_IMAGE_SIDE_PIXELS, TEACHER_IMAGE_SIDE_PIXELS), Image.Resampling.BILINEAR
            )
        )
        for image in images
    ]
    batch = np.repeat(np.stack(grey)[..., None].astype(np.float32) / np.float32(127.5) - 1, 3, axis=3)
    sides = []
    for view in (batch, batch[:, :, ::-1]):
        planes = read(view)
        sides.append(np.concatenate([part for name in _READ for part in _pooled(planes[name])], axis=1))
    return np.asarray((sides[0] + sides[1]) / 2, np.float16)


def _pooled(planes: Batch) -> tuple[Batch, Batch]:
    return planes.mean((1, 2)), planes.max((1, 2))
