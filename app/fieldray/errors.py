"""The exception tree.

FieldrayError                  carries a `Reason`; its text is fit to be shown
    EnvironmentProblem         the machine: disk, driver, missing library; the same input may work elsewhere
        StorageProblem         results, settings or exports cannot be read or written
        BackendProblem         no backend can run the model now
    InputProblem               what we were given; trying again gives the same
        Unusable               read well, but not something to assess (ends as *refused*)
        Unreadable             could not be read (ends as *failed*)
        PackProblem            a model pack is not loaded
            PackNotTrusted     its signing key waits for a person's yes
        UsageProblem           the command line or a recipe asks for something that is not there

Anything else that reaches the top is our bug and is reported as `internal`.
Low-level code raises ValueError and TypeError; the file boundary wraps once, `from e`.
"""

from __future__ import annotations

from fieldray.reasons import Reason, reason


class FieldrayError(Exception):
    """Base of all errors with a reason that can be shown to a person."""

    def __init__(self, why: Reason) -> None:
        super().__init__(why.text)
        self.reason = why


class EnvironmentProblem(FieldrayError):
    """The machine lacks or refuses something."""


class StorageProblem(EnvironmentProblem):
    """Results, settings or exports cannot be read or written."""


class BackendProblem(EnvironmentProblem):
    """A backend cannot start or stopped."""


class InputProblem(FieldrayError):
    """What we were given cannot be used."""


class Unusable(InputProblem):
    """Read well, but not a usable frontal chest film."""


class Unreadable(InputProblem):
    """Could not be read."""


class PackProblem(InputProblem):
    """A model pack is not loaded."""


class PackNotTrusted(PackProblem):
    """The pack is whole, but its key (`fingerprint`) is not trusted yet."""

    def __init__(self, fingerprint: str) -> None:
        super().__init__(reason("pack_unknown_key", fingerprint=fingerprint))
        self.fingerprint = fingerprint


class UsageProblem(InputProblem):
    """The request itself is wrong."""
