"""The requests to a worker process and its answers, as dataclasses that both processes use.

`image_worker` answers the requests in the child process. `pool` sends them from the parent process. The child imports
every decoder and the runtime of the networks. The parent process imports none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fieldray.domain.finding import PREVIEW_SIDE, THUMBNAIL_SIDE, ImageFacts, Stage
from fieldray.domain.image import FileKind, Image, ImageDetail, ImageHeader, ImageRef, ShownImage
from fieldray.domain.lungs import LungFields
from fieldray.domain.model import HeaderRules, InputSpec, Model, OperatingPoint
from fieldray.domain.pack_setup import PackSetup
from fieldray.domain.run import RefusalOverrides
from fieldray.imaging.archive import FoundMembers, MemberSearch
from fieldray.imaging.object_identify import ServerFileContent, ServerFileHead
from fieldray.inference.backend import NetworkOutput
from fieldray.inference.worker import InferRequest
from fieldray.processes.child import ChildFunction
from fieldray.reasons import Reason

_LARGEST_PREVIEW: Final = 2**16

ClassifierLocation = Literal["nowhere", "here", "elsewhere"]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackNetworks:
    """The models that a worker needs to run one pack.

    classifier   the pack's classifier; None for a lung-field pack, which has no classifier
    lung_finder  the lung-field pack, which finds the lungs; None without one
    """

    classifier: Model | None
    lung_finder: Model | None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LoadRequest:
    """A request to load the networks of one or more packs.

    packs  the models of each pack, without the content of their files
    files  the content of the network files, (n,) uint8, by the SHA-256 of the file
    """

    packs: tuple[PackNetworks, ...]
    files: Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The answer to `LoadRequest`: name and version of the runtime that runs the loaded networks, such as LiteRT."""

    runtime: str
    version: str


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AnalysisRequest:
    """A request to analyse one image: read the file, find the lungs, run the classifier. Some steps can be left out.

    ref                     the image
    rules                   rules that the header of the decoded bytes must meet; None for no rules
    whole_image_input_spec  specification of a network input that is made of the whole image, in place of the
                            classifier's input; None for the classifier's input
    finds_lungs             whether the lungs are searched for
    operating_points        operating points in use, by label. An image with a score close to a threshold is read again
    overrides               reasons for refusal that a person overrules for this image
    detail                  minimum detail of reading: "needed" for the networks' inputs, "fine", "finer", or "full"
    classifier_location     where the classifier runs: "here" in the worker, "elsewhere" on a device of the parent
                            process, or "nowhere": the answer then contains the classifier's input
    file_stamp_key          hexadecimal key with which a stamp of the file is made, to recognise the unchanged file
                            later; "" for no stamp
    pack_number             number of the pack among the loaded packs, from 0
    """

    ref: ImageRef
    rules: HeaderRules | None = None
    whole_image_input_spec: InputSpec | None = None
    finds_lungs: bool = False
    operating_points: Mapping[str, OperatingPoint | None] = field(default_factory=dict)
    overrides: RefusalOverrides = RefusalOverrides()  # noqa: RUF009 - it is frozen
    detail: ImageDetail = "needed"
    classifier_location: ClassifierLocation = "nowhere"
    file_stamp_key: str = ""
    pack_number: int = 0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AnalysisResult:
    """The result of analysing one image, up to the last step reached.

    The constructor raises ValueError for invalid values.

    facts                   facts found while reading the image
    kind, header            kind and header of the bytes read; "unknown" and None if no bytes were read, or if not
                            requested
    lungs                   the lung fields; None if no lung-field pack ran
    problem                 the reason why the analysis stopped: a refusal of the image, or a failure; None without a
                            problem
    is_refusal              whether `problem` is a refusal of the image
    stage                   the stage at which the analysis stopped
    overruled_reasons       the reasons for refusal that a person overruled
    input_values            (1, height, width, channels) uint8, the input of the network, if the request was to run no
                            classifier; else None
    network_output          the classifier's output for the image; None if the classifier ran elsewhere or not at all
    classifier_run_count    number of images that the worker's classifier has run since it was loaded, this image
                            included
    has_approximate_pixels  whether a codec reduced the resolution, so that pixels differ a little from the true
                            averages
    reduction_factor        pixels of the file per pixel read, along each axis
    """

    facts: ImageFacts = field(default_factory=ImageFacts)
    kind: FileKind = "unknown"
    header: ImageHeader | None = None
    lungs: LungFields | None = None
    problem: Reason | None = None
    is_refusal: bool = False
    stage: Stage = "decode"
    overruled_reasons: tuple[Reason, ...] = ()
    input_values: NDArray[np.uint8] | None = None
    network_output: NetworkOutput | None = None
    classifier_run_count: int = 0
    has_approximate_pixels: bool = False
    reduction_factor: Annotated[int, Meta(ge=1, lt=2**31)] = 1

    def __post_init__(self) -> None:
        facts = self.facts
        if not 0 <= min(facts.rows, facts.columns) <= max(facts.rows, facts.columns) < 2**31:
            raise ValueError(f"no image has {facts.rows} x {facts.columns} pixels")
        if facts.thumbnail is not None:
            _require_grey(facts.thumbnail, longest=THUMBNAIL_SIDE)
        if len(facts.preview) > _LARGEST_PREVIEW:
            raise ValueError("a preview of this size")
        if self.input_values is not None and self.input_values.ndim != 4:
            raise ValueError(f"no input: {self.input_values.shape}")
        if self.lungs is not None and self.lungs.lung_shares.ndim != 2:
            raise ValueError("no mask")

    def is_borderline(
        self, setup: PackSetup, scores: Mapping[str, float], features: NDArray[np.float32] | None
    ) -> bool:
        """Return whether the image must be read again in finer detail, because finer pixels could change the decision.

        False unless the image was read at a reduced resolution (`is_approximate`).

        setup     the pack, with the operating points in use
        scores    the network's uncalibrated scores for the image, 0..1, by label code
        features  (n,) float32 pooled features of the network; None for a network without this output
        """
        if not self.has_approximate_pixels or self.facts.input_to_image is None:
            return False
        return setup.is_borderline(
            scores, features, oversampling=self.facts.input_to_image.min_scale / self.reduction_factor
        )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackInferRequest(InferRequest):
    """A request to run a pack's classifier on a network input.

    pack_number  number of the pack among the loaded packs, from 0
    """

    pack_number: int = 0


def _require_grey(pixels: NDArray[Any], *, longest: int) -> None:
    if pixels.ndim != 2 or not 0 < max(pixels.shape) <= longest:
        raise ValueError(f"no grey levels: {pixels.shape}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayRequest:
    """A request to read an image for display to a person.

    ref             the image
    content_sha256  SHA-256 that the file must have, in hexadecimal; "" for any content
    longer_side_px  length of the longer side in pixels; 0 for full resolution
    """

    ref: ImageRef
    content_sha256: str = ""
    longer_side_px: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class PreviewResult:
    """The grey levels (height, width) uint8 of a stored preview image."""

    pixels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        _require_grey(self.pixels, longest=PREVIEW_SIDE)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DeviceRunRequest:
    """A worker's request to its parent process to run the classifier on a device, instead of in the worker.

    request_number  number of the `AnalysisRequest` in the current call, from 0
    values          (1, height, width, channels) uint8, the input of the network
    """

    request_number: int
    values: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class DeviceRunResult:
    """The answer to `DeviceRunRequest`: the output of a classifier for one image.

    scores    uncalibrated scores, 0..1, by label code; None if the worker must run the network itself
    features  (n,) float32 pooled features; None for a model without this output
    """

    scores: Mapping[str, float] | None = None
    features: NDArray[np.float32] | None = None


LOAD_NETWORKS: Final = ChildFunction("load", LoadRequest, LoadResult)
# One image, read once, with a request for each pack; the results are in the order of the requests.
ANALYSE_IMAGE: Final = ChildFunction("look", tuple[AnalysisRequest, ...], tuple[AnalysisResult, ...])
RUN_CLASSIFIER: Final = ChildFunction("run", PackInferRequest, NetworkOutput)
# Sent by a worker to its parent process during the analysis of an image.
RUN_ON_DEVICE: Final = ChildFunction("elsewhere", DeviceRunRequest, DeviceRunResult)
READ_IMAGE: Final = ChildFunction("image", DisplayRequest, Image)
READ_SHOWN_IMAGE: Final = ChildFunction("shown", DisplayRequest, ShownImage)
DECODE_PREVIEW: Final = ChildFunction("preview", bytes, PreviewResult)
HASH_FILE: Final = ChildFunction("hash", DisplayRequest, str)
SEARCH_ZIP_MEMBERS: Final = ChildFunction("members", MemberSearch, FoundMembers)
IDENTIFY_SERVER_FILE: Final = ChildFunction("identify", ServerFileHead, ServerFileContent)


def lung_finder_of(model: Model) -> Model | None:
    """Return the lung-field pack that a model uses; the model itself if it is a lung-field pack; or None."""
    return model if model.manifest.lung_rules else model.lungs


def load_request(*models: Model) -> LoadRequest:
    """Return the request to load models in a worker.

    Of each model, the request has only the parts that the worker needs to run the model's networks.
    """
    pairs = [(None if model.manifest.lung_rules else model, lung_finder_of(model)) for model in models]
    files = {
        part.model_sha256: np.frombuffer(part.files["litert"], np.uint8) for pair in pairs for part in pair if part
    }
    packs = (PackNetworks(classifier=_without_files(one), lung_finder=_without_files(finder)) for one, finder in pairs)
    return LoadRequest(packs=tuple(packs), files=files)


def _without_files(model: Model | None) -> Model | None:
    if model is None:
        return None
    manifest = replace(model.manifest, metrics={}, provenance={})
    return replace(model, manifest=manifest, files={}, card="", lungs=None)
