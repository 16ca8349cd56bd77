"""Whether a model that an option names is there, told before vLLM has looked for it for twenty seconds."""

from __future__ import annotations

import os
from pathlib import Path

from .stand import StandError

#: Files that tell vLLM what a folder holds; the second is Mistral's own.
_CONFIGS = ("config.json", "params.json")
#: For the hub's answer, s.
_ASK_S = 5.0


def there(option: str, model: str) -> str:
    """A folder or file as it is found from elsewhere, a name of the Hugging Face hub as it is. `option` is what named
    it.

    Raises StandError where it is neither here nor at the hub, or the hub cannot be reached.
    """
    path = Path(model).expanduser()
    if path.is_dir() and not any((path / name).is_file() for name in _CONFIGS):
        raise StandError(f"{option}: {path} has no {_CONFIGS[0]}: name the folder that holds the model's files")
    if path.exists():
        return str(path.resolve())
    if "://" in model or "VLLM_USE_MODELSCOPE" in os.environ:
        return model  # addresses, and another hub's names, vLLM finds in ways of its own
    # Behind a colon stands a quantisation.
    name = model.partition(":")[0]
    if _cached(name):
        return model
    parts = path.parts
    # `models/target` could be a name; a folder `models` tells what was meant.
    if model[:1] in "./~" or len(parts) > 2 or (len(parts) == 2 and Path(parts[0]).is_dir()):
        raise StandError(f"{option}: there is no {model!r}: correct the path, or name a model of the Hugging Face hub")
    _ask_the_hub(option, name)
    return model


def _cached(model: str) -> bool:
    """Whether the cache of the hub has any of its files: which of them vLLM needs differs by format."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(model, local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError):
        return False
    return any(Path(folder).iterdir())


def _ask_the_hub(option: str, model: str) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    neither = f"{option}: {model} is neither a folder here nor in the local cache of the Hugging Face hub, and "
    fetch = "correct it, name a folder, or fetch the model where there is a network (hf download NAME)"
    try:
        # Not a download, which is tried again for as long as vLLM tries it.
        HfApi().model_info(model, timeout=_ASK_S)
    except RepositoryNotFoundError:
        private = "or log in, where it is private (hf auth login)"
        raise StandError(f"{neither}the hub has no such model: correct the name, {private}") from None
    except HFValidationError:
        raise StandError(f"{neither}it is no name that the hub could have: correct it, or name a folder") from None
    except OfflineModeIsEnabled:
        raise StandError(f"{neither}HF_HUB_OFFLINE keeps the hub from being asked: {fetch}") from None
    except HfHubHTTPError:
        return  # what the hub has against it, vLLM's log tells
    except Exception as error:  # of the library's HTTP client, whichever it has
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise StandError(f"{neither}the hub cannot be reached ({why}): {fetch}") from None
