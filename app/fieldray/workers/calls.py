"""The calls of a worker process: requests and answers, used by both sides of the pipe.

The child's side is `image_worker`, the program's is `pool`. The child imports every decoder and the networks' runtime,
which the program itself does not import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fieldray.domain.finding import PREVIEW_SIDE, THUMBNAIL_SIDE, ReadFacts, Stage
from fieldray.domain.image import Detail, FileKind, Image, ImageHeader, ImageRef, ShownImage
from fieldray.domain.lungs import LungFields
from fieldray.domain.model import HeaderRules, InputSpec, Model, OperatingPoint
from fieldray.domain.pack_setup import PackSetup
from fieldray.domain.run import Overrides
from fieldray.imaging.archive import FoundMembers, MemberSearch
from fieldray.imaging.beginning import ObjectBeginning, ObjectContent
from fieldray.inference.backend import NetworkOutput
from fieldray.inference.worker import InferRequest
from fieldray.processes.child import Call
from fieldray.reasons import Reason

_LARGEST_PREVIEW: Final = 2**16

RunsWhere = Literal["nowhere", "here", "elsewhere"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackNetworks:
    """What a worker needs to run one pack: its classifier and its lung-field pack, each as a `Model`.

    classifier  the classifier; None if only the lungs are searched for
    finder      the lung-field pack, or None
    """

    classifier: Model | None
    finder: Model | None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LoadRequest:
    """A request to load the networks of these packs; `files` are the network files by SHA-256."""

    packs: tuple[PackNetworks, ...]
    files: Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The answer to `LoadRequest`: name and version of the runtime that runs the loaded networks."""

    runtime: str
    version: str


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AnalyseRequest:
    """A request to analyse an image in some or all steps: read it, find its lungs, run the classifier.

    rules      rules for the header of the bytes that are decoded; None for no rules
    frame      specification of an input to make of the whole image instead of the classifier's input; None for the
               classifier's
    finds      whether the lungs are searched for
    points     operating points in force, by label; a result close to one is analysed again in finer detail
    overrides  refusals that a person overrules for this image
    detail     how finely the image is read at least: "needed" for the networks' inputs, "fine", "finer", or "full"
    runs       where the classifier runs: in this process ("here"), or on a device of the program ("elsewhere"). With
               "nowhere", the classifier's input is returned
    stamp_key  key of the file's stamp; empty for no stamp
    pack       number of the pack among those loaded, from 0
    """

    ref: ImageRef
    rules: HeaderRules | None = None
    frame: InputSpec | None = None
    finds: bool = False
    points: Mapping[str, OperatingPoint | None] = field(default_factory=dict)
    overrides: Overrides = Overrides()  # noqa: RUF009 - it is frozen
    detail: Detail = "needed"
    runs: RunsWhere = "nowhere"
    stamp_key: str = ""
    pack: int = 0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AnalysisResult:
    """The result of analysing an image, up to the step reached. The constructor raises ValueError for invalid values.

    facts           facts found while reading the image
    kind, header    kind and header of the bytes read; "unknown" and None if no bytes were read, or if not requested
    lungs           the lung fields; None if no lung-field pack ran
    problem         the reason why the analysis stopped: a refusal, or a failure at `stage`; None without a problem
    overruled       the reasons for refusal that a person overruled
    values          (1, height, width, channels) uint8, the input of the network, if no network was to run
    answer          the classifier's output for the image; None if the classifier ran elsewhere or not at all
    sequence        how many images the classifier of this worker has run since it was loaded, this one included
    is_approximate  whether a codec reduced the resolution, so that pixels differ a little from averages
    step            pixels of the file per pixel read, along each axis
    """

    facts: ReadFacts = field(default_factory=ReadFacts)
    kind: FileKind = "unknown"
    header: ImageHeader | None = None
    lungs: LungFields | None = None
    problem: Reason | None = None
    is_refusal: bool = False
    stage: Stage = "decode"
    overruled: tuple[Reason, ...] = ()
    values: NDArray[np.uint8] | None = None
    answer: NetworkOutput | None = None
    sequence: int = 0
    is_approximate: bool = False
    step: Annotated[int, Meta(ge=1, lt=2**31)] = 1

    def __post_init__(self) -> None:
        facts = self.facts
        if not 0 <= min(facts.rows, facts.columns) <= max(facts.rows, facts.columns) < 2**31:
            raise ValueError(f"no image has {facts.rows} x {facts.columns} pixels")
        if facts.thumbnail is not None:
            _require_grey(facts.thumbnail, longest=THUMBNAIL_SIDE)
        if len(facts.preview) > _LARGEST_PREVIEW:
            raise ValueError("a preview of this size")
        if self.values is not None and self.values.ndim != 4:
            raise ValueError(f"no input: {self.values.shape}")
        if self.lungs is not None and self.lungs.shares.ndim != 2:
            raise ValueError("no mask")

    def is_borderline(
        self, setup: PackSetup, scores: Mapping[str, float], features: NDArray[np.float32] | None
    ) -> bool:
        """Return whether the image must be read in finer detail, because its result could then be another one.

        Only an image with `is_approximate` can need this.

        setup     the pack, with the operating points in force
        scores    the network's uncalibrated scores for the image, 0..1, by label code
        features  (n,) float32 pooled features of the network; None without such an output
        """
        if not self.is_approximate or self.facts.pixel_map is None:
            return False
        return setup.is_borderline(scores, features, oversampling=self.facts.pixel_map.min_scale / self.step)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackInferRequest(InferRequest):
    """A request to run a pack's classifier on an input. `pack` is the number of the pack among those loaded, from 0."""

    pack: int = 0


def _require_grey(pixels: NDArray[Any], *, longest: int) -> None:
    if pixels.ndim != 2 or not 0 < max(pixels.shape) <= longest:
        raise ValueError(f"no grey levels: {pixels.shape}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayRequest:
    """A request to read an image for display to a person.

    content_sha256  SHA-256 that the file must have; "" for any content
    side            length of the longer side in pixels; 0 for full resolution
    """

    ref: ImageRef
    content_sha256: str = ""
    side: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class PreviewResult:
    """The decoded grey levels (h, w) uint8 of a stored preview."""

    pixels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        _require_grey(self.pixels, longest=PREVIEW_SIDE)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DeviceRunRequest:
    """A worker's request to the program: run the classifier for an image on a device instead of in the worker.

    number  number of the question (`AnalyseRequest`) in the current call, from 0
    values  (1, height, width, channels) uint8, the input of the network
    """

    number: int
    values: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DeviceRunResult:
    """The answer to `DeviceRunRequest`: the output of a classifier for one image.

    scores    uncalibrated scores, 0..1, by label code; None if the worker must run the network itself
    features  (n,) float32 pooled features; None if the model has none
    """

    scores: Mapping[str, float] | None = None
    features: NDArray[np.float32] | None = None


LOAD: Final = Call("load", LoadRequest, LoadResult)
# One image as each of several packs wants it, and what each saw, in their order; it is read once.
ANALYSE: Final = Call("look", tuple[AnalyseRequest, ...], tuple[AnalysisResult, ...])
RUN: Final = Call("run", PackInferRequest, NetworkOutput)
# What a worker asks the program while it looks.
ELSEWHERE: Final = Call("elsewhere", DeviceRunRequest, DeviceRunResult)
READ_IMAGE: Final = Call("image", DisplayRequest, Image)
READ_SHOWN_IMAGE: Final = Call("shown", DisplayRequest, ShownImage)
DECODE_PREVIEW: Final = Call("preview", bytes, PreviewResult)
HASH_FILE: Final = Call("hash", DisplayRequest, str)
SEARCH_MEMBERS: Final = Call("members", MemberSearch, FoundMembers)
IDENTIFY_OBJECT: Final = Call("identify", ObjectBeginning, ObjectContent)


def lung_finder_of(model: Model) -> Model | None:
    """Return the lung-field pack of a model; the model itself if it is one."""
    return model if model.manifest.lung_rules else model.lungs


def load_request(*models: Model) -> LoadRequest:
    """Return the request to load models in a worker, with only the parts of the models that their networks need."""
    pairs = [(None if model.manifest.lung_rules else model, lung_finder_of(model)) for model in models]
    files = {
        part.model_sha256: np.frombuffer(part.files["litert"], np.uint8) for pair in pairs for part in pair if part
    }
    packs = (PackNetworks(classifier=_without_files(one), finder=_without_files(finder)) for one, finder in pairs)
    return LoadRequest(packs=tuple(packs), files=files)


def _without_files(model: Model | None) -> Model | None:
    if model is None:
        return None
    manifest = replace(model.manifest, metrics={}, provenance={})
    return replace(model, manifest=manifest, files={}, card="", lungs=None)
