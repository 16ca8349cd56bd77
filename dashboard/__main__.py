"""`python -m dashboard --api URL`: the dashboard alone."""

import argparse
import os
import sys
from pathlib import Path

from dashboard.client import DEFAULT_API

OPTIONS = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "minimal",
    "theme.light.primaryColor": "#0072B2",
    "theme.dark.primaryColor": "#56B4E9",
}


def command(host: str, port: int) -> list[str]:
    """The `streamlit run` of this dashboard."""
    app = Path(__file__).with_name("pages") / "run.py"
    options = OPTIONS | {"server.address": host, "server.port": str(port)}
    return [
        sys.executable,
        *("-m", "streamlit", "run", str(app)),
        *(word for name, value in options.items() for word in (f"--{name}", value)),
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m dashboard", description="The Specwatch dashboard.")
    parser.add_argument(
        "--api",
        default=os.environ.get("SPECWATCH_API", DEFAULT_API),
        help="admin address of the sidecar (%(default)s); a token is read from "
        "SPECWATCH_ADMIN_TOKEN, or from SPECWATCH_ADMIN_READ_TOKEN, with which nothing can be switched",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8501, help="port to listen on (%(default)s)")
    asked = parser.parse_args(arguments)
    # In place of this process, so that Ctrl-C and exit status are Streamlit's own.
    os.execve(  # noqa: S606 - an argument list, no shell
        sys.executable,
        command(asked.host, asked.port),
        {**os.environ, "SPECWATCH_API": asked.api.rstrip("/")},
    )


if __name__ == "__main__":
    main()
