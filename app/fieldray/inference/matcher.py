"""Features of images by a matcher pack, in a process of its own: what a comparison asks for.

with Matcher(model) as matcher:
    prior, current = matcher.describe(prior_image), matcher.describe(current_image)
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import locally_normalised
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem
from fieldray.inference.backend import Backend
from fieldray.inference.cpu import cpu_kind
from fieldray.reasons import reason


def _one_core() -> Backend:
    return cpu_kind(threads=1).open()


class Matcher:
    """A matcher pack, running from `with` on. Not for two threads at once, but for `abort`.

    Parameters
    ----------
    model
        A pack of the kind matcher, from `PackLibrary.load_matcher`.
    open_backend
        What runs it: one core in a child process.
    """

    def __init__(self, model: Model, *, open_backend: Callable[[], Backend] = _one_core) -> None:
        rules = model.manifest.matcher_rules
        if rules is None:
            raise ValueError(f"{model.pack_name} is no matcher")
        self._model, self._rules, self._backend = model, rules, open_backend()

    def __enter__(self) -> Matcher:
        """Start the process. Raises BackendProblem."""
        try:
            self._backend.start(self._model)
        except BackendProblem:
            self._backend.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._backend.close()

    @property
    def side(self) -> int:
        """Rows and columns of the images that it describes, 512 for the pack that ships."""
        return self._model.manifest.input.height

    def describe(self, image: NDArray[Any]) -> NDArray[np.float32]:
        """Features of every place of an image: (side, side, channels) float32 in -1..1.

        Parameters
        ----------
        image
            (side, side) grey levels 0..255, as `imaging.preprocess.to_tensor` makes them for the pack's input.

        Raises
        ------
        BackendProblem
            When the process did not run it; it is then of no more use.
        ValueError
            For an image of another size.
        """
        if image.shape != (self.side, self.side):
            raise ValueError(f"the matcher describes images of {self.side} x {self.side}, not {image.shape}")
        answer = self._backend.run(locally_normalised(image, radius_px=self._rules.local_radius_px)[..., None])
        if answer.planes is None:
            raise BackendProblem(reason("wrong_answer"))
        return answer.planes

    def abort(self) -> None:
        """End at once, from any thread; a `describe` under way then raises BackendProblem."""
        self._backend.abort()
