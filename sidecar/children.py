"""What is started here, and must not outlive this process."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """As `preexec_fn` on Linux: the child gets SIGTERM once this process is gone, also by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
