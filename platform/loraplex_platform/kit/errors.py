"""Errors of the platform; `loraplex_platform.errors` alone knows what they are in HTTP.

PlatformError
├── InvalidRequest            what the client sent cannot be served as it is
│   ├── UnsupportedParameter
│   ├── ContextLengthExceeded
│   ├── RangeNotSatisfiable
│   └── TooLarge
│       └── HeadersTooLarge
├── InvalidApiKey             no key, an unknown one, or a revoked one: always the same answer
├── InvalidLogin              whatever is wrong with it
├── PermissionDenied
├── NotFound                  also what belongs to another tenant
│   └── ModelNotFound
├── Conflict
│   └── StillRunning          the same idempotency key is at work
├── PreconditionFailed        the object changed since it was read
├── KeyReused                 an idempotency key with another request
├── RateLimited               carries retry_after_s
│   └── QuotaExceeded         waiting does not help
├── Overloaded                carries retry_after_s
├── DeadlineExceeded
└── InternalError             a fault of ours
"""

from collections.abc import Mapping


class PlatformError(Exception):
    """The root; `code` is OpenAI's machine-readable code, `param` the field at fault."""

    code: str | None = None

    def __init__(
        self, message: str | None = None, *, param: str | None = None, code: str | None = None
    ) -> None:
        self.message = message or self.__doc__ or type(self).__name__
        super().__init__(self.message)
        self.param = param
        self.code = code or type(self).code


class InvalidRequest(PlatformError):
    """The request is not valid."""


class UnsupportedParameter(InvalidRequest):
    """The request has a parameter that is not supported here."""

    code = "unsupported_parameter"

    def __init__(self, param: str) -> None:
        super().__init__(f"Unsupported parameter: '{param}'.", param=param)


class ContextLengthExceeded(InvalidRequest):
    """Prompt and requested output are longer than the model's context."""

    code = "context_length_exceeded"


class TooLarge(InvalidRequest):
    """The request's body is larger than this route accepts."""

    code = "request_too_large"


class RangeNotSatisfiable(InvalidRequest):
    """The range lies outside of the file."""

    code = "range_not_satisfiable"

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"The file has {num_bytes} bytes.", param="range")
        self.num_bytes = num_bytes


class HeadersTooLarge(TooLarge):
    """The request's headers are too many or too large."""


class InvalidApiKey(PlatformError):
    """Incorrect API key provided."""

    code = "invalid_api_key"


class InvalidLogin(PlatformError):
    """E-mail address or password is wrong."""

    code = "invalid_login"


class PermissionDenied(PlatformError):
    """The key may not do this."""

    code = "insufficient_permissions"


class NotFound(PlatformError):
    """There is no such object."""


class ModelNotFound(NotFound):
    """The model does not exist or you do not have access to it."""

    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model '{model}' does not exist or you do not have access to it.", param="model"
        )
        self.model = model


class Conflict(PlatformError):
    """The object's state does not allow this."""


class StillRunning(Conflict):
    """A request with this Idempotency-Key is still running."""

    code = "idempotency_in_flight"
    retry_after_s = 1.0


class PreconditionFailed(PlatformError):
    """The object changed since you read it: read it again and repeat your change."""

    code = "precondition_failed"


class KeyReused(PlatformError):
    """This Idempotency-Key was used with another request."""

    code = "idempotency_key_reused"


class RateLimited(PlatformError):
    """A rate limit is reached; nothing was consumed."""

    code = "rate_limit_exceeded"
    may_retry = True  # whether the same request may pass soon

    def __init__(
        self,
        message: str | None = None,
        *,
        retry_after_s: float | None = None,
        dimension: str = "requests",
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s  # None: waiting does not help
        self.dimension = dimension
        self.headers = dict(headers or {})  # how full the limits are


class QuotaExceeded(RateLimited):
    """A budget is used up; waiting does not help."""

    code = "insufficient_quota"
    may_retry = False

    def __init__(
        self,
        message: str | None = None,
        *,
        retry_after_s: float | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            message,
            retry_after_s=retry_after_s,
            dimension="insufficient_quota",
            code=code,
            headers=headers,
        )


class QuotaHeld(QuotaExceeded):
    """What is left of a budget is held by requests at work, and may come back when they end."""

    may_retry = True


class Overloaded(PlatformError):
    """The server cannot take this request at the moment."""

    code = "server_is_overloaded"

    def __init__(self, message: str | None = None, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(PlatformError):
    """The request's deadline passed."""

    code = "timeout"


class InternalError(PlatformError):
    """The server had an error while processing the request."""
