"""Why a notification did not arrive: a bounded reason, and words without secrets."""

from enum import StrEnum


class Reason(StrEnum):
    """A metric label, so a closed set."""

    TIMEOUT = "timeout"
    #: No connection, or one that broke; also a certificate that is not trusted.
    UNREACHABLE = "unreachable"
    #: 3xx, which is not followed, and 4xx.
    REJECTED = "rejected"
    SERVER_ERROR = "server_error"
    THROTTLED = "throttled"
    #: It cannot be sent as it is, or what came back makes no sense.
    INVALID = "invalid"
    #: A command ended with another exit status than 0.
    FAILED = "failed"


class NotifyError(Exception):
    """`message` is shown to people, stored and logged. Recoverable: the same notification may arrive later."""

    def __init__(
        self, reason: Reason, message: str, recoverable: bool = True, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.recoverable = recoverable
        #: What the receiver asked for, s.
        self.retry_after_s = retry_after_s
