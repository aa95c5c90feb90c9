"""Errors of the engine.

EngineError
├── BadRequest              the request can never be served as it is
│   ├── ContextTooLong
│   └── UnknownAdapter
├── EngineUnavailable       the engine process is away, restarting or draining
├── ProtocolError           the peer does not speak this version of the messages
├── ModelUnavailable        the base model cannot be found, fetched or converted
├── EngineOverloaded        the queue cannot be served in time; carries retry_after_s
├── DeadlineExceeded        the time that the request had is over
├── EngineInternal          a fault of ours; the request did nothing wrong
└── CannotStart             the engine cannot be started as asked
    ├── InvalidConfig       a setting, or two together, make no sense
    └── UnsupportedModel    the model folder holds something this engine does not run
"""


class EngineError(Exception):
    """The root of all errors that the engine raises across its boundary."""

    def __init__(self, message: str | None = None, **data: object) -> None:
        super().__init__(message or self.__doc__)
        self.data = data


class BadRequest(EngineError):
    """The request can never be served by this engine."""


class ContextTooLong(BadRequest):
    """Prompt and requested output exceed what this engine can hold."""


class UnknownAdapter(BadRequest):
    """The adapter version could not be loaded by the engine."""


class EngineUnavailable(EngineError):
    """The engine is not reachable: starting, restarting or draining."""


class ProtocolError(EngineError):
    """The peer on the socket sends what this version does not understand."""


class ModelUnavailable(EngineError):
    """The base model cannot be found, fetched or converted."""


class EngineOverloaded(EngineError):
    """The queue cannot be served in time."""

    def __init__(self, message: str | None = None, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(EngineError):
    """The request's deadline passed before it was complete."""


class EngineInternal(EngineError):
    """The engine met a fault of its own while serving the request."""


class CannotStart(EngineError):
    """The engine cannot be started with this configuration, model or machine."""


class InvalidConfig(CannotStart):
    """A setting is out of range or contradicts another."""


class UnsupportedModel(CannotStart):
    """The model folder holds a model, or a variant of one, that this engine does not run."""
