"""The child's side of looking at images: from the bytes of a file to what its networks say, in one process.

An image is read as far as the lung fields need, and again, finer, where its crop needs more, or where its result is
close to a threshold. What had to be decoded in full is kept until the image is done, so nothing of it is approximate.
The program is told of each stage as it begins: that is what it says of an image that ends this process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.assessment import Assessment, scores_of
from fieldray.domain.finding import ReadFacts, can_be_overruled, can_be_turned
from fieldray.domain.image import UPRIGHT, Box, Detail, Image, ShownImage
from fieldray.domain.lungs import look_for_lungs
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.purpose import says_frontal_chest
from fieldray.errors import BackendProblem, InputProblem, Unreadable, Unusable
from fieldray.imaging.preprocess import thumbnail, to_tensor, with_window
from fieldray.imaging.quality import check_header, check_pixels
from fieldray.imaging.reading import ImageFile, facts_of, size_for_all, size_for_crop, unpacked
from fieldray.imaging.reduction import REFINEMENT, TargetSize
from fieldray.imaging.source import Stamps, content_hash
from fieldray.imaging.zip_members import search
from fieldray.inference.backend import Answer, check_golden
from fieldray.inference.calls import RUN, Run
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray.processes.priority import step_back
from fieldray.processes.rpc import served
from fieldray.processes.serving import announce
from fieldray.reasons import Reason, reason
from fieldray.workers import calls


class _Refusal(Exception):
    """The image is not looked at any further."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why)
        self.why = why


def _network(model: Model, file: NDArray[np.uint8]) -> Network:
    """A pack's network with one thread, which has passed its golden vectors. Raises BackendProblem."""
    network = Network(file.tobytes(), NetworkSpec.of(model.manifest), runtime=load_runtime(), threads=1)
    if model.golden:
        check_golden(network.run, model.golden)
    return network


@dataclass(frozen=True, eq=False, slots=True)
class _Loaded:
    """A pack and its network in this process."""

    model: Model
    network: Network


@dataclass(eq=False, slots=True)
class _View:
    """How far one image was looked at."""

    question: calls.Look
    file: ImageFile
    seen: calls.Seen
    overruled: tuple[Reason, ...] = ()
    read_s: float = 0.0
    needed: TargetSize | None = None  # for a finer look

    def refuse(self, why: Reason) -> None:
        """Raise _Refusal, unless a person asked for the image all the same, which is noted. Turning comes first."""
        wishes = self.question.wishes
        will_be_turned = wishes.turns and can_be_turned(why) and self.question.ref.turn == UPRIGHT
        if not wishes.overrules or not can_be_overruled(why) or will_be_turned:
            raise _Refusal(why)
        if why not in self.overruled:
            self.overruled += (why,)


class Worker:
    """Looks at images with the networks that were loaded last.

    open_file, open_network
        Open an image, and a pack's network, which runs images of its input's size.
    """

    def __init__(
        self,
        *,
        open_file: Callable[..., ImageFile] = ImageFile,
        open_network: Callable[[Model, NDArray[np.uint8]], Network] = _network,
    ) -> None:
        self._open_file, self._open_network = open_file, open_network
        self._classifier: _Loaded | None = None
        self._finder: _Loaded | None = None
        self._sequence = 0

    def load(self, question: calls.Load) -> calls.Loaded:
        """Have the networks of a run ready. Raises BackendProblem; of the lung-field pack `lungs_unavailable`."""
        runtime = load_runtime()
        self._classifier = self._finder = None
        self._sequence = 0
        if question.finder:
            try:
                self._finder = self._loaded(question.finder, question.files["finder"])
            except BackendProblem as problem:
                why = reason("lungs_unavailable", pack=question.finder.pack_name, detail=problem.reason.text)
                raise BackendProblem(why) from problem
        if question.classifier:
            model = replace(question.classifier, lungs=question.finder)
            self._classifier = self._loaded(model, question.files["classifier"])
        return calls.Loaded(runtime=runtime.name, version=runtime.version)

    def _loaded(self, model: Model, file: NDArray[np.uint8]) -> _Loaded:
        return _Loaded(model, self._open_network(model, file))

    def look(self, question: calls.Look) -> calls.Seen:
        """What is seen of an image; never raises for the image."""
        stamps = Stamps(bytes.fromhex(question.stamp_key)) if question.stamp_key else None
        began_s = time.perf_counter()
        try:
            file = self._open_file(question.ref, stamps=stamps)
        except InputProblem as error:
            return calls.Seen(problem=error.reason, is_refusal=isinstance(error, Unusable))
        read_s = time.perf_counter() - began_s
        facts = ReadFacts(content_sha256=file.content_sha256, stamp=file.stamp)
        view = _View(question, file, calls.Seen(facts=facts), read_s=read_s)
        try:
            self._look(view)
        except _Refusal as refusal:
            view.seen = replace(view.seen, problem=refusal.why, is_refusal=True)
        except InputProblem as error:
            view.seen = replace(view.seen, problem=error.reason, is_refusal=isinstance(error, Unusable))
        except BackendProblem as error:
            view.seen = replace(view.seen, problem=reason("lungs_failed", detail=error.reason.text))
        facts = replace(view.seen.facts, decode_ms=1000 * view.read_s)
        return replace(view.seen, facts=facts, overruled=view.overruled)

    def run(self, question: Run) -> Answer:
        """What the classifier says of an input that was made before. Raises BackendProblem."""
        if self._classifier is None:
            raise ValueError("no classifier is loaded")
        announce("inference")
        return self._classifier.network.run(question.values)

    def _look(self, view: _View) -> None:
        self._identify(view)
        details: tuple[Detail, ...] = (view.question.detail,)
        if view.question.runs and details == ("needed",):
            details = ("needed", "finer")
        for detail in details:
            view.seen = replace(view.seen, stage="decode")
            self._prepare(view, detail)
            if not (view.question.runs and self._classify(view) and self._is_close(view)):
                return

    def _identify(self, view: _View) -> None:
        """Hold the header of the bytes that will be decoded against the rules."""
        rules = view.question.rules
        if rules is None:
            return
        view.seen = replace(view.seen, header=view.question.ref.header)  # where the bytes are no image any more
        ref = view.file.identified()
        view.seen = replace(view.seen, kind=ref.kind, header=ref.header)
        finds, waives = view.question.finds, [one.code for one in view.overruled]
        while why := check_header(ref.header, rules, finds_lungs=finds, waives=waives):
            view.refuse(why)
            waives.append(why.code)

    def _prepare(self, view: _View, detail: Detail) -> None:
        """Read the image in this detail, find its lungs, and make the input of the network that comes next."""
        question, classifier = view.question, self._classifier
        wanted = question.frame or (classifier.model.manifest.input if classifier else None)
        finder = self._finder.model.manifest.input if self._finder and question.finds else None
        crops = wanted is not None and wanted.crop != "none" and finder is not None
        is_whole = detail == "full" or question.ref.turn != UPRIGHT  # nothing is left over at the wrong end
        specs = [spec for spec in (finder, None if crops else wanted) if spec is not None]
        finest = size_for_all(wanted, times=REFINEMENT) if wanted and detail == "finer" else None
        needed = None if is_whole else view.needed or finest or size_for_all(*specs)
        image = self._read(view, needed)
        if finder:
            self._find_lungs(view, image)
        if wanted is None:
            return
        box = _box(view.seen, wanted) if crops else None
        if box and not is_whole and (finer := size_for_crop(wanted, box, image, detail)):
            image = self._read(view, finer)
        view.needed = size_for_crop(wanted, box, image, "finer") if box else size_for_all(wanted, times=REFINEMENT)
        tensor = to_tensor(image, wanted, box=box)
        facts = replace(view.seen.facts, pixel_map=tensor.pixel_map)
        if detail == "finer":
            facts = replace(facts, notes=(*facts.notes, "read_twice"))
        view.seen = replace(
            view.seen,
            facts=facts,
            stage="inference",
            values=tensor.values,
            answer=None,
            is_approximate=image.is_approximate,
            step=image.step,
        )

    def _read(self, view: _View, needed: TargetSize | None) -> Image:
        """The image, set right and with the window that it is shown by. Raises InputProblem, _Refusal."""
        began_s, is_first = time.perf_counter(), view.seen.facts.thumbnail is None
        if not is_first:
            announce("decode")
        try:
            image = view.file.image(needed)
            why = check_pixels(image) if is_first else None
            image = with_window(image)
            upright = image.turned(view.question.ref.turn)
            facts = facts_of(view.file, image, upright) if is_first else replace(view.seen.facts, notes=upright.notes)
            view.seen = replace(view.seen, facts=facts)
            if why:
                raise _Refusal(why)
            return upright
        finally:
            view.read_s += time.perf_counter() - began_s

    def _find_lungs(self, view: _View, image: Image) -> None:
        """Find the lungs. Raises _Refusal, BackendProblem."""
        finder, facts, header = self._finder, view.seen.facts, view.seen.header
        assert finder
        rules, spec = finder.model.manifest.lung_rules, finder.model.manifest.input
        assert rules
        tensor = to_tensor(image, spec)
        view.seen = replace(view.seen, stage="inference")
        announce("lungs")

        def answer(values: NDArray[np.uint8]) -> tuple[NDArray[np.float32], dict[str, Any]]:
            found = finder.network.run(values[0])
            if found.mask is None:
                raise ValueError("a lung-field pack without a mask")
            cells = tensor.pixel_map.for_cells(found.mask.shape, of=(spec.height, spec.width))
            where = {"pixel_map": cells, "rows": facts.rows, "columns": facts.columns}
            scores = scores_of(finder.model, found.scores)
            return found.mask, {"scores": scores, "latency_ms": found.latency_ms, "region": found.region, **where}

        classifier = self._classifier
        says_chest = bool(header and classifier and says_frontal_chest(header, classifier.model.manifest.accepted))
        lungs = look_for_lungs(tensor.values, answer, rules, says_chest=says_chest)
        view.seen = replace(view.seen, lungs=lungs)
        if lungs.refusal:
            view.refuse(lungs.refusal)

    def _classify(self, view: _View) -> bool:
        """Whether the classifier was run; where it fails, the image goes back with its input, to be tried elsewhere."""
        classifier, values = self._classifier, view.seen.values
        if classifier is None or values is None:
            return False
        announce("inference")
        try:
            answer = classifier.network.run(values[0])
        except BackendProblem:
            return False
        self._sequence += 1
        view.seen = replace(view.seen, answer=answer, values=None, sequence=self._sequence)
        return True

    def _is_close(self, view: _View) -> bool:
        """Whether the image must be looked at in finer detail before it can be judged."""
        seen, classifier = view.seen, self._classifier
        if seen.answer is None or classifier is None:
            return False
        assessment = Assessment(model=classifier.model, points=view.question.points)
        return seen.is_close(assessment, scores_of(classifier.model, seen.answer.scores), seen.answer.features)


def _box(seen: calls.Seen, wanted: InputSpec) -> Box:
    """What the classifier gets: the lungs, or all of the image where nobody knows where they are."""
    assert seen.lungs
    rows, columns = seen.facts.rows, seen.facts.columns
    if seen.lungs.refusal:  # a person overruled it
        return Box(top=0.0, left=0.0, rows=float(rows), columns=float(columns))
    return seen.lungs.box(rows=rows, columns=columns, margin=wanted.crop_margin, crop=wanted.crop)


# ---- images for a person


def _file(question: calls.Show) -> ImageFile:
    file = ImageFile(question.ref)
    if question.content_sha256 and question.content_sha256 != file.content_sha256:
        raise Unreadable(reason("changed"))  # only the pixels that were screened are shown
    return file


def _shown(question: calls.Show) -> ShownImage:
    image = _file(question).shown(question.side)
    step_back()
    rows, columns = image.full_rows or image.pixels.shape[0], image.full_columns or image.pixels.shape[1]
    pixels = thumbnail(image, min(question.side, int(max(image.extent))))
    return ShownImage(pixels=pixels, rows=rows, columns=columns)


# A process that looks at images needs the runtime in any case, and may be started before it is told which networks.
with contextlib.suppress(BackendProblem):
    load_runtime()

_worker: Final = Worker()


def _look(question: calls.Look) -> calls.Seen:
    seen = _worker.look(question)
    step_back()  # a run must not slow down the computer; its first result and images to be shown may
    return seen


handle: Final = served(
    (calls.LOAD, _worker.load),
    (calls.LOOK, _look),
    (RUN, _worker.run),
    (calls.IMAGE, lambda question: _file(question).shown(None)),
    (calls.SHOWN, _shown),
    (calls.PREVIEW, lambda question: calls.Levels(unpacked(question.data))),
    (calls.HASH, lambda question: content_hash(question.ref)),
    (calls.MEMBERS, search),
)
