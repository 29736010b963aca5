"""A model as the user named it becomes a `Checkpoint`: shape, weights, tokenizer, digest."""

from __future__ import annotations

import difflib
import importlib.resources
from dataclasses import dataclass, replace
from pathlib import Path

from dstune.architecture import PUBLISHED, ModelShape, published_shape
from dstune.errors import ModelError
from dstune.model.loading.folder import folder_shape, folder_tokenizer, open_folder
from dstune.model.loading.gguf import open_gguf
from dstune.model.loading.hub import HUB_ID, download
from dstune.model.loading.random import RandomWeights, random_digest
from dstune.model.loading.weights import Weights
from dstune.model.reason import one_line
from dstune.model.tokenizer import Tokenizer

BUNDLED = {"tiny-deepseek": "dstune.model.tiny_deepseek"}


@dataclass(frozen=True)
class Checkpoint:
    """A model that is ready to be built; no tensor has been read yet."""

    name: str  # what the user called it
    shape: ModelShape
    weights: Weights
    tokenizer: Tokenizer | None  # None where the model ships none, or only a shape was named
    digest: str  # which weights and configuration these are


def open_checkpoint(model: str, weights: str = "auto") -> Checkpoint:
    """Open a bundled name, a folder, a .gguf file, a published shape, or a hub id.

    `weights="random"` keeps the shape (and the tokenizer, where there is one) and makes the
    weights up; a published shape has no others. Raises `ModelError`, one line, when the model is
    missing, corrupt, or of an unknown architecture.
    """
    if weights not in ("auto", "random"):
        raise ModelError(f"weights are 'auto' or 'random', not {weights!r}")
    is_random = weights == "random"
    if model in PUBLISHED:
        return _open_published(model, is_random)
    if model in BUNDLED:
        return _open_folder(bundled_folder(model), model, is_random)
    try:
        path = Path(model).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"model {model!r}: {one_line(error)}") from None
    if is_folder and model:
        return _open_folder(path, model, is_random)
    if is_file:
        return _open_file(path, model, is_random)
    if HUB_ID.fullmatch(model) and not model.startswith(".") and path.suffix != ".gguf":
        return _open_folder(download(model, has_weights=not is_random), model, is_random)
    raise ModelError(_unknown(model))


def bundled_folder(name: str) -> Path:
    """The folder of a model that ships inside the package; raises `ModelError`."""
    if name not in BUNDLED:
        raise ModelError(f"{name!r} is not bundled; bundled models are {', '.join(BUNDLED)}")
    return Path(str(importlib.resources.files(BUNDLED[name])))


def _open_published(model: str, is_random: bool) -> Checkpoint:
    if not is_random:
        raise ModelError(
            f"'{model}' names a shape without weights: add 'weights: random' to the profile "
            "(or --weights random), or name a folder, a .gguf file or a hub id"
        )
    shape = published_shape(model)
    return Checkpoint(model, shape, RandomWeights(shape), None, random_digest(shape))


def _open_folder(folder: Path, model: str, is_random: bool) -> Checkpoint:
    shape = folder_shape(folder, model)
    opened = None if is_random else open_folder(folder, shape)
    return _checkpoint(model, shape, folder_tokenizer(folder, shape), opened)


def _open_file(path: Path, model: str, is_random: bool) -> Checkpoint:
    if path.suffix != ".gguf":
        raise ModelError(f"{path}: a model is a folder or a .gguf file")
    file = open_gguf(path, model)
    opened = None if is_random else (file.weights, file.digest)
    return _checkpoint(model, file.shape, file.tokenizer, opened)


def _checkpoint(
    model: str,
    shape: ModelShape,
    tokenizer: Tokenizer | None,
    opened: tuple[Weights, str] | None,
) -> Checkpoint:
    """Make shape and tokenizer agree; `opened` is (weights, digest), None for random ones."""
    if tokenizer is not None:
        if tokenizer.vocab_size > shape.vocab_size:
            raise ModelError(
                f"{model}: the tokenizer has {tokenizer.vocab_size} tokens, "
                f"but the model embeds {shape.vocab_size}"
            )
        # a chat model's end token is sometimes named by the tokenizer alone
        shape = replace(shape, eos_token_ids=tokenizer.eos_ids, bos_token_id=tokenizer.bos_id)
    weights, digest = opened or (RandomWeights(shape), random_digest(shape))
    return Checkpoint(model, shape, weights, tokenizer, digest)


def _unknown(model: str) -> str:
    if "/" in model or "\\" in model or model.endswith(".gguf"):
        return f"model {model!r}: no such file or folder"
    known = [*BUNDLED, *PUBLISHED]
    close = difflib.get_close_matches(model, known, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return (
        f"unknown model {model!r}: {hint}known are {', '.join(known)}, "
        "and any folder, .gguf file or hub id (org/name)"
    )
