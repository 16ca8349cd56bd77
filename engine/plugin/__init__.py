"""Runs inside vLLM: switches speculation, shows the drafts, swaps the draft model.

vLLM calls `register` through the entry point `vllm.general_plugins`, in the API server, in every engine core
and in every worker. Where this plugin does not know the vLLM, or fails, the engine serves on without it.
"""

import logging

_log = logging.getLogger("vllm.specwatch")


def register() -> None:
    """Put the hooks in place; safe to call again, never raises."""
    try:
        from .compat.install import install

        install()
    except Exception as error:
        _log.warning("Specwatch stands down, the engine serves without it: %s", " ".join(str(error).split()))
