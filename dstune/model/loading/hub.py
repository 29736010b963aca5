"""Models by hub id (`org/name`): downloads safetensors and JSON, never code and never pickles."""

from __future__ import annotations

import re
from pathlib import Path

from dstune.errors import ModelError
from dstune.model.reason import one_line

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
CONFIGURATION = ("*.json", "tokenizer*", "chat_template.jinja")
WEIGHTS = ("*.safetensors",)
# subfolders and consolidated files repeat the weights in other layouts
IGNORED = ("*/*", "consolidated*", "*.py", "*.model")


def download(model: str, has_weights: bool) -> Path:
    """The local folder of a hub model; configuration and tokenizer alone without weights.

    Raises `ModelError` where the `hub` extra is not installed, the id is unknown, or nothing is
    in reach and the cache does not have it.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise ModelError(
            f"'{model}' is no local path, and loading from the hub needs: pip install 'dstune[hub]'"
        ) from None
    patterns = [*CONFIGURATION, *WEIGHTS] if has_weights else [*CONFIGURATION]
    try:
        folder = snapshot_download(model, allow_patterns=patterns, ignore_patterns=[*IGNORED])
    except errors.GatedRepoError:
        why = "the hub has it behind a gate: accept its terms and set HF_TOKEN"
    except errors.RepositoryNotFoundError:
        why = "the hub does not know it (or it is private: set HF_TOKEN)"
    except errors.LocalEntryNotFoundError:
        why = "the hub is out of reach and its cache does not hold the model"
    except Exception as error:  # the rest shares no base class (httpx, OSError, own)
        why = f"the hub says: {one_line(error)}"
    else:
        return Path(folder)
    raise ModelError(f"'{model}' is no local path, and {why}")
