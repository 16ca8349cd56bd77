"""The environment of processes here."""

from collections.abc import Iterator

from ..facts import Facts, Unseen
from ..findings import Check, NotLooked, Result, fine, note, warning

#: A stream takes two sockets.
_FEW_FILES = 4096


def environment(facts: Facts) -> Iterator[Result]:
    if isinstance(facts.machine, Unseen):
        yield NotLooked("environment", f"the environment: {facts.machine.why}")
        return
    machine = facts.machine
    if machine.proxies and not _is_exempt(machine.no_proxy):
        yield note(
            "proxy-variables",
            f"{', '.join(machine.proxies)} send HTTP through a proxy, loopback too",
            f"no_proxy is {machine.no_proxy or 'not set'}",
            cause="clients and curl here would ask that proxy for 127.0.0.1; the sidecar itself, its commands and the "
            "doctor do not",
            remedy="no_proxy=127.0.0.1,localhost for clients on this machine",
            command="env | grep -i proxy",
        )
    if machine.open_files is not None and 0 < machine.open_files < _FEW_FILES:
        yield warning(
            "open-files",
            f"a process may open {machine.open_files} files here",
            cause="the limit of the service or the shell",
            remedy="raise it (ulimit -Hn, LimitNOFILE): a stream takes two sockets, so that half as many can be open",
            command="ulimit -Hn",
        )
    else:
        yield fine("environment", f"a process may open {machine.open_files} files here")


def _is_exempt(no_proxy: str) -> bool:
    names = {each.strip() for each in no_proxy.split(",")}
    return bool(names & {"*", "127.0.0.1", "localhost", "127.0.0.0/8"})


CHECKS = (Check("environment", environment),)
