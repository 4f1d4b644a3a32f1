"""Analysis of images in a worker process: from the bytes of a file to the scores of its networks.

An image is first read in the detail that the lung-field network needs. If the region of the lungs then has fewer pixels
than the classifier's input, the image is read in finer detail. If the score is close to a threshold, the region is read
finely and classified again. If the second score is close as well, the whole image is read in finer detail.

All readings of an image use one opened file. The parent process is informed when each stage begins. If the image
crashes the worker, the error message names that stage.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import PREVIEW_SIDE, ImageFacts
from fieldray.domain.image import NO_CORRECTION, Box, Image, ImageDetail, NetworkInput, ShownImage
from fieldray.domain.intended_use import header_says_frontal_chest
from fieldray.domain.lungs import LungFields, LungNetworkOutput, find_lungs_in_input
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.pack_setup import PackSetup, scores_by_label_code
from fieldray.errors import BackendProblem, InputProblem, Unreadable, UnsuitableImage
from fieldray.imaging.archive import search_members
from fieldray.imaging.object_identify import identify_server_file
from fieldray.imaging.preprocess import thumbnail, to_network_input, with_default_window
from fieldray.imaging.quality import check_header, check_pixels, incomplete_image_notes, lung_quality_notes
from fieldray.imaging.reading import ImageFile, decode_preview, facts_of_read_image
from fieldray.imaging.reduction import FINE_DETAIL_FACTOR, TargetSize, target_size_for_all, target_size_for_crop
from fieldray.imaging.source import FileStamper
from fieldray.imaging.whole_file import hash_file
from fieldray.inference.backend import NetworkOutput, run_self_test
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray.process_environment import lower_priority
from fieldray.processes.child import make_message_handler
from fieldray.processes.serving import announce_stage
from fieldray.reasons import Reason, reason
from fieldray.workers import calls


def _network(model: Model, file: NDArray[np.uint8]) -> Network:
    """Load a pack's network with one thread, and check the network with the pack's golden vectors.

    Raises BackendProblem.

    file  content of the network file, (n,) uint8
    """
    network = Network(file.tobytes(), NetworkSpec.from_manifest(model.manifest), runtime=load_runtime(), threads=1)
    if model.golden:
        run_self_test(network.run, model.golden)
    return network


@dataclass(eq=False, slots=True)
class _LoadedNetwork:
    """A model with its loaded network.

    run_count  number of images that the network has run
    """

    model: Model
    network: Network
    run_count: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class _LoadedPack:
    """The loaded networks of one pack: the classifier and the lung-field network. Either may be None."""

    classifier: _LoadedNetwork | None
    finder: _LoadedNetwork | None


@dataclass(eq=False, slots=True)
class _Reading:
    """An image that was read at one resolution.

    image    the image in the orientation of the file
    upright  the image turned upright, with its display window set
    read_s   duration of the reading in seconds
    first    facts about the image and the reason for refusal (None without one); None until the first pack needs them
    """

    image: Image
    upright: Image
    read_s: float
    first: tuple[ImageFacts, Reason | None] | None = None


@dataclass(eq=False, slots=True)
class _Shared:
    """Intermediate results of one image, shared by all packs of a request. Sharing never changes a pack's result.

    file            the opened file
    opened_s        duration of opening the file in seconds
    readings        the image as read, by target size
    lungs           the lung fields, by lung-field pack, target size, and whether the header says chest
    network_inputs  the network input, by read image, input specification, and region of the image
    """

    file: ImageFile
    opened_s: float = 0.0
    readings: dict[TargetSize | None, _Reading] = field(default_factory=dict)
    lungs: dict[tuple[int, TargetSize | None, bool], LungFields] = field(default_factory=dict)
    network_inputs: dict[tuple[Image, InputSpec, Box | None], NetworkInput] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _PackAnalysis:
    """The state of the analysis of one image with one pack.

    number    number of the pack's request, from 0
    question  the pack's request
    result    the result so far
    read_s    duration of reading so far, in seconds
    """

    number: int
    question: calls.AnalysisRequest
    pack: _LoadedPack
    shared: _Shared
    result: calls.AnalysisResult
    overruled_reasons: tuple[Reason, ...] = ()
    read_s: float = 0.0
    needed: TargetSize | None = None  # size for reading the whole image in finer detail
    fine: TargetSize | None = None  # size for reading only the lung region finely
    box: Box | None = None

    def refuse(self, why: Reason) -> None:
        """Raise UnsuitableImage with a reason for refusal.

        If a person overruled this reason, add it to `overruled_reasons` instead.
        """
        if not self.question.overrides.will_overrule(why, self.question.ref.correction):
            raise UnsuitableImage(why)
        if why not in self.overruled_reasons:
            self.overruled_reasons += (why,)


class ImageWorker:
    """Analyses images with the networks that were loaded last.

    open_file      function that opens an image file
    open_network   function that loads a pack's network
    run_elsewhere  function that sends a network input to the parent process, which runs the input on a device. The
                   function raises BackendProblem if the device fails
    """

    def __init__(
        self,
        *,
        open_file: Callable[..., ImageFile] = ImageFile,
        open_network: Callable[[Model, NDArray[np.uint8]], Network] = _network,
        run_elsewhere: Callable[[calls.DeviceRunRequest], calls.DeviceRunResult] = calls.RUN_ON_DEVICE.ask_parent,
    ) -> None:
        self._open_file, self._open_network = open_file, open_network
        self._run_elsewhere = run_elsewhere
        self._packs: tuple[_LoadedPack, ...] = ()

    def load(self, question: calls.LoadRequest) -> calls.LoadResult:
        """Load the networks of all packs in a request. Returns name and version of the runtime.

        Raises BackendProblem, with the reason `lungs_unavailable` for a network of a lung-field pack.
        """
        runtime = load_runtime()
        self._packs = ()
        finders: dict[tuple[str, str], _LoadedNetwork] = {}
        packs: list[_LoadedPack] = []
        for networks in question.packs:
            classifier, finder = networks.classifier, networks.lung_finder
            if finder and (key := (finder.pack_name, finder.model_sha256)) not in finders:
                try:
                    finders[key] = self._loaded(finder, question.files)
                except BackendProblem as problem:
                    why = reason("lungs_unavailable", pack=finder.pack_name, detail=problem.reason.text)
                    raise BackendProblem(why) from problem
            model = classifier and replace(classifier, lungs=finder)
            loaded = self._loaded(model, question.files) if model else None
            packs.append(_LoadedPack(loaded, finders[key] if finder else None))
        self._packs = tuple(packs)
        return calls.LoadResult(runtime=runtime.name, version=runtime.version)

    def _loaded(self, model: Model, files: Mapping[str, NDArray[np.uint8]]) -> _LoadedNetwork:
        return _LoadedNetwork(model, self._open_network(model, files[model.model_sha256]))

    def analyse_for_packs(self, questions: Sequence[calls.AnalysisRequest]) -> tuple[calls.AnalysisResult, ...]:
        """Analyse one image, opened once, for several packs.

        Returns a result for each request, in the order of the requests. Never raises for a bad image: the result
        contains the problem.
        """
        first = questions[0]
        stamps = FileStamper(bytes.fromhex(first.file_stamp_key)) if first.file_stamp_key else None
        began_s = time.perf_counter()
        try:
            file = self._open_file(first.ref, stamps=stamps)
        except InputProblem as error:
            unread = calls.AnalysisResult(problem=error.reason, is_refusal=isinstance(error, UnsuitableImage))
            return (unread,) * len(questions)
        shared = _Shared(file, opened_s=time.perf_counter() - began_s)
        return tuple(self._analyse_with_pack(number, question, shared) for number, question in enumerate(questions))

    def _analyse_with_pack(self, number: int, question: calls.AnalysisRequest, shared: _Shared) -> calls.AnalysisResult:
        file, pack = shared.file, self._packs[question.pack_number] if self._packs else _LoadedPack(None, None)
        facts = ImageFacts(content_sha256=file.content_sha256, file_stamp=file.stamp)
        view = _PackAnalysis(number, question, pack, shared, calls.AnalysisResult(facts=facts), read_s=shared.opened_s)
        try:
            self._analyse_view(view)
        except InputProblem as error:
            if isinstance(error, UnsuitableImage) and error.reason.code != "modality":
                self._picture(view)
            view.result = replace(view.result, problem=error.reason, is_refusal=isinstance(error, UnsuitableImage))
        except BackendProblem as error:
            view.result = replace(view.result, problem=reason("lungs_failed", detail=error.reason.text))
        facts = replace(view.result.facts, decode_ms=1000 * view.read_s)
        return replace(view.result, facts=facts, overruled_reasons=view.overruled_reasons)

    def _picture(self, view: _PackAnalysis) -> None:
        """Read an image that was refused because of its header, so that the list can show the image.

        Ignores unreadable files.
        """
        if view.result.facts.thumbnail is None:
            with contextlib.suppress(InputProblem):
                self._read(view, TargetSize(PREVIEW_SIDE, PREVIEW_SIDE, needs_only_longer_side=True))

    def run(self, question: calls.PackInferRequest) -> NetworkOutput:
        """Run a pack's classifier on a network input and return the output. Raises BackendProblem."""
        classifier = self._packs[question.pack_number].classifier if self._packs else None
        if classifier is None:
            raise ValueError("no classifier is loaded")
        announce_stage("inference")
        return classifier.network.run(question.values)

    def _analyse_view(self, view: _PackAnalysis) -> None:
        self._identify(view)
        asked = view.question.detail
        details: tuple[ImageDetail, ...] = ("needed", "finer") if asked == "needed" else (asked,)
        for detail in details:
            view.result = replace(view.result, stage="decode")
            self._prepare(view, detail)
            if view.question.classifier_location == "nowhere" or not self._is_close(view):
                return
            if detail == "needed" and view.fine:
                self._read_crop_finely(view)
                if not self._is_close(view):
                    return

    def _identify(self, view: _PackAnalysis) -> None:
        """Check the header of the image's bytes against the rules of the request. Raises InputProblem."""
        rules = view.question.rules
        if rules is None:
            return
        view.result = replace(view.result, header=view.question.ref.header)  # if the bytes are no longer an image
        ref = view.shared.file.identified_ref()
        view.result = replace(view.result, kind=ref.kind, header=ref.header)
        finds, overruled_codes = view.question.finds_lungs, [one.code for one in view.overruled_reasons]
        while why := check_header(ref.header, rules, finds_lungs=finds, overruled_codes=overruled_codes):
            view.refuse(why)
            overruled_codes.append(why.code)

    def _prepare(self, view: _PackAnalysis, detail: ImageDetail) -> None:
        """Read the image, find its lungs, and make the classifier's input. Raises InputProblem, BackendProblem.

        detail  minimum detail in which the image is read
        """
        question, classifier = view.question, view.pack.classifier
        wanted = question.whole_image_input_spec or (classifier.model.manifest.input if classifier else None)
        finder = view.pack.finder.model.manifest.input if view.pack.finder and question.finds_lungs else None
        crops = wanted is not None and wanted.crop != "none" and finder is not None
        is_whole = (
            detail == "full" or question.ref.correction != NO_CORRECTION
        )  # a reduced image may lack its last rows
        specs = [spec for spec in (finder, None if crops else wanted) if spec is not None]
        finest = target_size_for_all(wanted, factor=FINE_DETAIL_FACTOR) if wanted and detail == "finer" else None
        needed = None if is_whole else view.needed or finest or target_size_for_all(*specs)
        image = self._read(view, needed)
        if finder:
            self._find_lungs(view, image, needed)
        if wanted is None:
            return
        lungs, size = view.result.lungs, {"rows": view.result.facts.rows, "columns": view.result.facts.columns}
        box = lungs.crop_box(**size, margin=wanted.crop_margin, crop=wanted.crop) if crops and lungs else None
        if box and not is_whole and (finer := target_size_for_crop(wanted, box, image, detail)):
            image = self._read(view, finer)
        is_first = detail == "needed" and image.has_approximate_pixels and not is_whole
        view.box, view.fine = box, target_size_for_crop(wanted, box, image, "fine") if box and is_first else None
        view.needed = (
            target_size_for_crop(wanted, box, image, "finer")
            if box
            else target_size_for_all(wanted, factor=FINE_DETAIL_FACTOR)
        )
        tensors, key = view.shared.network_inputs, (image, wanted, box)
        tensor = tensors[key] = tensors[key] if key in tensors else to_network_input(image, wanted, box=box)
        facts = replace(view.result.facts, input_to_image=tensor.input_to_image)
        notes = (*facts.notes, *(() if question.whole_image_input_spec else incomplete_image_notes(image, lungs)))
        facts = replace(facts, notes=(*notes, *["read_twice"] * (detail == "finer")))
        view.result = replace(
            view.result,
            facts=facts,
            stage="inference",
            input_values=tensor.values,
            network_output=None,
            has_approximate_pixels=image.has_approximate_pixels,
            reduction_factor=image.reduction_factor,
        )

    def _read_crop_finely(self, view: _PackAnalysis) -> None:
        """Make the classifier's input again from finer pixels of the lung region.

        This is faster than reading the whole image in finer detail. Raises InputProblem.
        """
        classifier = view.pack.classifier
        assert classifier
        view.result = replace(view.result, stage="decode")
        image = self._read(view, view.fine)
        tensor = to_network_input(
            image, view.question.whole_image_input_spec or classifier.model.manifest.input, box=view.box
        )
        view.result = replace(
            view.result,
            facts=replace(view.result.facts, input_to_image=tensor.input_to_image),
            stage="inference",
            input_values=tensor.values,
            network_output=None,
            has_approximate_pixels=image.has_approximate_pixels,
            reduction_factor=image.reduction_factor,
        )

    def _read(self, view: _PackAnalysis, needed: TargetSize | None) -> Image:
        """Read the image, turned upright and with its display window set. Raises InputProblem.

        needed  size in pixels that the image must have at least; None for full resolution
        """
        began_s, shared, facts = time.perf_counter(), view.shared, view.result.facts
        try:
            reading = shared.readings.get(needed)
            if reading is None:
                if shared.readings:
                    announce_stage("decode")
                image = with_default_window(shared.file.decode_image(needed))
                upright = image.corrected(view.question.ref.correction)
                reading = _Reading(image, upright, time.perf_counter() - began_s)
                shared.readings[needed] = reading
            else:
                view.read_s += reading.read_s
            if facts.thumbnail is not None:
                view.result = replace(view.result, facts=replace(facts, notes=reading.upright.notes))
                return reading.upright
            if reading.first is None:
                image_facts = facts_of_read_image(shared.file, reading.image, reading.upright)
                reading.first = image_facts, check_pixels(reading.image)
            image_facts, why = reading.first
            view.result = replace(view.result, facts=image_facts)
            if why:
                raise UnsuitableImage(why)
            return reading.upright
        finally:
            view.read_s += time.perf_counter() - began_s

    def _find_lungs(self, view: _PackAnalysis, image: Image, needed: TargetSize | None) -> None:
        """Find the lungs, or use the result of another pack with the same lung-field pack.

        Raises UnsuitableImage, BackendProblem.
        """
        finder, classifier, header = view.pack.finder, view.pack.classifier, view.result.header
        assert finder
        view.result = replace(view.result, stage="inference")
        header_says_chest = bool(
            header and classifier and header_says_frontal_chest(header, classifier.model.manifest.accepted)
        )
        known, key = view.shared.lungs, (id(finder), needed, header_says_chest)
        if key not in known:
            lungs = find_lungs_in_image(image, finder.model, finder.network.run, header_says_chest=header_says_chest)
            known[key] = replace(lungs, quality=lung_quality_notes(image, lungs))
        view.result = replace(view.result, lungs=known[key])
        if refusal := known[key].refusal:
            view.refuse(refusal)

    def _is_close(self, view: _PackAnalysis) -> bool:
        """Run the classifier.

        Returns whether the score is so close to a threshold that the image must be read in finer detail.

        If the device failed, the result stays without an answer: the parent process already has the reason.
        """
        classifier, values = view.pack.classifier, view.result.input_values
        if classifier is None or values is None:
            return False
        view.result = replace(view.result, input_values=None)
        announce_stage("inference")
        ran = calls.DeviceRunResult()
        if view.question.classifier_location == "elsewhere":
            try:
                ran = self._run_elsewhere(calls.DeviceRunRequest(request_number=view.number, values=values))
            except BackendProblem:
                return False
        scores, features = ran.scores, ran.features
        if scores is None:
            try:
                network_output = classifier.network.run(values[0])
            except BackendProblem as error:
                view.result = replace(view.result, problem=error.reason)
                return False
            classifier.run_count += 1
            view.result = replace(view.result, network_output=network_output, classifier_run_count=classifier.run_count)
            scores, features = scores_by_label_code(classifier.model, network_output.scores), network_output.features
        setup = PackSetup(model=classifier.model, points=view.question.operating_points)
        return view.result.is_borderline(setup, scores, features)


def find_lungs_in_image(
    image: Image, finder: Model, run: Callable[[NDArray[np.uint8]], NetworkOutput], *, header_says_chest: bool
) -> LungFields:
    """Return the lung fields of an image, in pixels of the image's file. Raises BackendProblem.

    finder             the lung-field pack
    run                function that runs the network of the lung-field pack on an input
    header_says_chest  whether the file's header says that this is a frontal chest image
    """
    spec, rules, (rows, columns) = finder.manifest.input, finder.manifest.lung_rules, image.size
    assert rules
    tensor = to_network_input(image, spec)
    announce_stage("lungs")

    def ask(values: NDArray[np.uint8]) -> LungNetworkOutput:
        found = run(values[0])
        if found.mask is None:
            raise ValueError("a lung-field pack without a mask")
        return LungNetworkOutput(
            lung_shares=found.mask,
            scores=scores_by_label_code(finder, found.scores),
            cells_to_image=tensor.input_to_image.for_cells(found.mask.shape, input_size=(spec.height, spec.width)),
            image_rows=rows,
            image_columns=columns,
            latency_ms=found.latency_ms,
            region_shares=found.region_shares,
        )

    return find_lungs_in_input(tensor.values, ask, rules, header_says_chest=header_says_chest)


# ---- images for a person


def _file(question: calls.DisplayRequest) -> ImageFile:
    file = ImageFile(question.ref)
    if question.content_sha256 and question.content_sha256 != file.content_sha256:
        raise Unreadable(reason("changed"))  # only the pixels that were screened are shown
    return file


def _shown(question: calls.DisplayRequest) -> ShownImage:
    image = _file(question).read_for_display(question.longer_side_px)
    lower_priority()
    rows, columns = image.size
    pixels = thumbnail(image, min(question.longer_side_px, int(max(image.reduced_size))))
    return ShownImage(pixels=pixels, file_rows=rows, file_columns=columns)


def _is_own_report(head: bytes) -> bool:
    """Return whether a file is a report that this program wrote, judged by the file's first bytes."""
    from fieldray.reports.outputs import is_own_report  # a slow import that only zip files and objects need

    return is_own_report(head)


# Every worker needs the runtime. A worker may start before the names of its networks are known.
with contextlib.suppress(BackendProblem):
    load_runtime()

_worker: Final = ImageWorker()


def _analyse_for_each(questions: Sequence[calls.AnalysisRequest]) -> tuple[calls.AnalysisResult, ...]:
    seen = _worker.analyse_for_packs(questions)
    lower_priority()  # after the first image, a run must not slow down other programs
    return seen


handle: Final = make_message_handler(
    (calls.LOAD_NETWORKS, _worker.load),
    (calls.ANALYSE_IMAGE, _analyse_for_each),
    (calls.RUN_CLASSIFIER, _worker.run),
    (calls.READ_IMAGE, lambda question: _file(question).read_for_display(None)),
    (calls.READ_SHOWN_IMAGE, _shown),
    (calls.DECODE_PREVIEW, lambda question: calls.PreviewResult(decode_preview(question))),
    (calls.HASH_FILE, lambda question: hash_file(question.ref)[0]),
    (calls.SEARCH_ZIP_MEMBERS, functools.partial(search_members, is_own_report=_is_own_report)),
    (calls.IDENTIFY_SERVER_FILE, functools.partial(identify_server_file, is_own_report=_is_own_report)),
)
