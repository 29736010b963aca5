"""A Hugging Face folder: config.json, safetensors and tokenizer.json.

Nothing in a folder is ever run: no `auto_map` code, no pickle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dstune.architecture import ModelShape, shape_from_config
from dstune.errors import ModelError
from dstune.model.loading.digest import Digest
from dstune.model.loading.weights import check_tensors
from dstune.model.reason import one_line
from dstune.model.tokenizer import Tokenizer

FLOAT_TYPES = ("F32", "F16", "BF16")
FP8_TYPE = "F8_E4M3"
SCALE_SUFFIX = "_scale_inv"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class FolderWeights:
    """Tensors of one or more safetensors files, mapped into memory and read when taken."""

    def __init__(self, folder: Path, shard_of: Mapping[str, Any], block: tuple[int, int] | None):
        self._folder = folder
        self._shard_of = shard_of
        self._block = block

    def take(self, name: str) -> Tensor:
        """The tensor as stored; fp8 blocks come out as fp32. Raises `ModelError`."""
        stored = self._stored(name)
        if self._block is None or stored.dtype != torch.float8_e4m3fn:
            return stored
        scale = self._stored(name + SCALE_SUFFIX)
        return dequantise_blocks(stored, scale, self._block)

    def has(self, name: str) -> bool:
        """Whether the folder holds that tensor."""
        return name in self._shard_of

    def _stored(self, name: str) -> Tensor:
        if name not in self._shard_of:
            raise ModelError(f"{self._folder}: tensor {name!r} is missing")
        try:
            tensor: Tensor = self._shard_of[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self._folder}: tensor {name!r}: {one_line(error)}") from None
        return tensor


def dequantise_blocks(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """DeepSeek-V3's fp8: every block of the weight times its own fp32 scale.

    weight [rows, columns] and scale [ceil(rows / block), ceil(columns / block)] -> fp32
    """
    rows, columns = weight.shape
    spread = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return weight.float().mul_(spread[:rows, :columns])


def folder_shape(folder: Path, name: str) -> ModelShape:
    """The shape in config.json, with the end tokens that generation_config.json adds."""
    config = read_json(folder / "config.json")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{folder / 'config.json'}: hidden_act {activation!r} is not supported")
    try:
        shape = shape_from_config(config, name)
        if not (folder / "generation_config.json").is_file():
            return shape
        end = read_json(folder / "generation_config.json").get("eos_token_id")
        extra = [] if end is None else end if isinstance(end, list) else [end]
        merged = dict.fromkeys([*shape.eos_token_ids, *map(int, extra)])
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}: the configuration is not usable: {one_line(error)}") from None
    return replace(shape, eos_token_ids=tuple(merged))


def open_folder(folder: Path, shape: ModelShape) -> tuple[FolderWeights, str]:
    """(weights, digest) of a folder; every tensor is checked by the files' headers.

    Raises `ModelError` for missing, truncated or corrupt files, for pickled weights, and for
    tensors that are missing, of a wrong shape or of an unknown type.
    """
    block = _fp8_block(folder)
    shard_of, types, sizes = _read_headers(folder, _shard_names(folder))
    scales = {name: sizes.pop(name) for name in list(sizes) if name.endswith(SCALE_SUFFIX)}
    needed = check_tensors(shape, sizes, str(folder))
    for name in needed:
        if types[name] == FP8_TYPE and block is not None and len(sizes[name]) == 2:
            _check_scale(folder, name, sizes[name], block, scales, types)
        elif types[name] not in FLOAT_TYPES:
            raise ModelError(f"{folder}: tensor {name!r} is of type {types[name]}, not supported")
    return FolderWeights(folder, shard_of, block), _digest(folder)


def folder_tokenizer(folder: Path, shape: ModelShape) -> Tokenizer | None:
    """The folder's tokenizer, or None where it ships none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    extra: dict[str, Any] = {}
    if (folder / "tokenizer_config.json").is_file():
        extra = read_json(folder / "tokenizer_config.json")
    return Tokenizer.from_file(
        path,
        chat_template=_chat_template(folder, extra),
        eos_ids=shape.eos_token_ids,
        bos_id=shape.bos_token_id,
        eos_token=_token_text(extra.get("eos_token")),
        bos_token=_token_text(extra.get("bos_token")),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises `ModelError` that names the file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path.parent}: there is no {path.name}") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or one_line(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: broken JSON: {one_line(error)}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: broken JSON: it holds no object")
    return value


def _fp8_block(folder: Path) -> tuple[int, int] | None:
    """Rows and columns of DeepSeek's fp8 blocks; None for plain weights."""
    quantisation = read_json(folder / "config.json").get("quantization_config")
    if not quantisation:
        return None
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
    if method != "fp8":
        raise ModelError(f"{folder}: weights quantised by {method!r} are not supported (fp8 is)")
    block = quantisation.get("weight_block_size")
    is_pair = isinstance(block, list) and len(block) == 2
    if not is_pair or not all(isinstance(side, int) and side > 0 for side in block):
        raise ModelError(f"{folder}: fp8 weights without a weight_block_size are not supported")
    return block[0], block[1]


def _check_scale(
    folder: Path,
    name: str,
    size: tuple[int, ...],
    block: tuple[int, int],
    scales: Mapping[str, tuple[int, ...]],
    types: Mapping[str, str],
) -> None:
    scale = name + SCALE_SUFFIX
    if scale not in scales:
        raise ModelError(f"{folder}: tensor {scale!r} is missing")
    needed = tuple(-(-extent // side) for extent, side in zip(size, block, strict=True))
    if scales[scale] != needed or types[scale] not in FLOAT_TYPES:
        raise ModelError(
            f"{folder}: tensor {scale!r} is {types[scale]} {list(scales[scale])}, "
            f"expected F32 {list(needed)}"
        )


def _shard_names(folder: Path) -> dict[str, frozenset[str] | None]:
    """safetensors file -> the tensors that the index expects in it (None: all it has)."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise ModelError(f"{folder / INDEX}: it has no weight_map")
        shards: dict[str, set[str]] = {}
        for tensor, shard in index.items():
            # a path out of the folder has no business in an index
            if not isinstance(shard, str) or not re.fullmatch(r"[\w.-]+\.safetensors", shard):
                raise ModelError(f"{folder / INDEX}: {shard!r} is no safetensors file name")
            shards.setdefault(shard, set()).add(tensor)
        return {shard: frozenset(tensors) for shard, tensors in sorted(shards.items())}
    if (folder / "model.safetensors").is_file():
        return {"model.safetensors": None}
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ModelError(
            f"{folder}: {pickles[0]} is refused, because reading a pickle runs the code in it; "
            "convert the weights to safetensors"
        )
    raise ModelError(f"{folder}: there is no model.safetensors and no {INDEX}")


Headers = tuple[dict[str, Any], dict[str, str], dict[str, tuple[int, ...]]]


def _read_headers(folder: Path, shards: Mapping[str, frozenset[str] | None]) -> Headers:
    """(open file, type, shape), each by tensor name."""
    shard_of: dict[str, Any] = {}
    types: dict[str, str] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for shard, listed in shards.items():
        path = folder / shard
        if not path.is_file():
            raise ModelError(f"{folder}: there is no {shard}, which {INDEX} names")
        try:
            file: Any = safe_open(str(path), framework="pt")
            names = set(file.keys())
            for name in sorted(names if listed is None else listed & names):
                part = file.get_slice(name)
                shard_of[name] = file
                types[name], sizes[name] = part.get_dtype(), tuple(part.get_shape())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: not a whole safetensors file: {one_line(error)}") from None
        missing = () if listed is None else listed - names
        if missing:
            raise ModelError(f"{path}: tensor {min(missing)!r} is missing, which {INDEX} names")
    return shard_of, types, sizes


def _digest(folder: Path) -> str:
    digest = Digest()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            digest.add(name, (folder / name).read_bytes())
    for shard in _shard_names(folder):
        path = folder / shard
        with path.open("rb") as file:
            header = file.read(int.from_bytes(file.read(8), "little"))
        digest.add(shard, header)
        digest.add_sampled(path)
    return digest.hexdigest()


def _chat_template(folder: Path, extra: Mapping[str, Any]) -> str | None:
    """The chat template: its own file, or a key of tokenizer_config.json, named `default`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: {one_line(error)}") from None
    template = extra.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{folder / 'tokenizer_config.json'}: chat_template is no text")
    return template


def _token_text(token: object) -> str | None:
    """tokenizer_config.json writes a token as text, or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
