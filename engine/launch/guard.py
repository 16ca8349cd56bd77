"""Ends a process group when the supervisor is gone, however it went; run by path, standard library only.

The supervisor starts this process as leader of a new group, puts the engine into that group, and
keeps the other end of standard input open. End of file there means the supervisor no longer
exists, even after SIGKILL: the group gets SIGTERM, and SIGKILL `argv[1]` seconds later.
As leader it also keeps the group's number from being used again.
"""

import os
import signal
import sys
import time


def main() -> None:
    """Wait for the supervisor's end; does not return normally."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.write(1, b"1")
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(float(sys.argv[1]))
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
