"""GGUF files: every accepted type, the order of Q and K rows, RoPE scaling, and broken files."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from models import gguf_tensors, save_gguf

from dstune.architecture import LinearScaling, Llama3Scaling, YarnScaling
from dstune.errors import ModelError
from dstune.model.loading.gguf import unpermute
from dstune.model.loading.open import open_checkpoint
from dstune.model.loading.weights import expected_tensors

ROWS = {"attn_q": 4, "attn_k": 2}  # heads of the tiny Llama
PLACES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
    "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
    "model.layers.1.self_attn.k_proj.weight": "blk.1.attn_k.weight",
    "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
    "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
    "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
    "model.layers.1.mlp.gate_proj.weight": "blk.1.ffn_gate.weight",
    "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
    "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
}


def permute(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What llama.cpp's converter does to Q and K (convert_hf_to_gguf.py, LlamaModel.permute)."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def write(path: Path, kind: str = "F32", is_tied: bool = False, **fields: Any) -> Path:
    """A whole file; keyword `a__b` is the metadata key `a.b`."""
    keys = {key.replace("__", "."): value for key, value in fields.items()}
    save_gguf(path, gguf_tensors(kind, is_tied), keys)
    return path


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_tensors_of_every_type(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "m.gguf", kind)))
    stored = {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    values = gguf_tensors(kind)
    for name, place in PLACES.items():
        truth, its_kind = values[place]
        packed = gguf.quantize(truth, gguf.GGMLQuantizationType[its_kind])
        truth = gguf.dequantize(packed, gguf.GGMLQuantizationType[its_kind])
        for part, heads in ROWS.items():
            if part in place:
                truth = unpermute(torch.from_numpy(truth), heads).numpy()
        tensor = checkpoint.weights.take(name)
        assert tensor.dtype == (torch.float32 if "norm" in name else stored)
        assert np.array_equal(tensor.float().numpy(), truth)
        if "norm" not in name and kind.startswith("Q"):
            worst = {"Q8_0": 0.03, "Q4_0": 0.6, "Q4_1": 0.4}[kind]
            original = values[place][0]
            error = np.abs(gguf.dequantize(packed, gguf.GGMLQuantizationType[kind]) - original)
            assert error.max() < worst


def test_every_expected_tensor_is_there(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "m.gguf", is_tied=True)))
    assert checkpoint.shape.is_tied
    assert not checkpoint.weights.has("lm_head.weight")
    for name, size in expected_tensors(checkpoint.shape):
        assert tuple(checkpoint.weights.take(name).shape) == size
    assert not open_checkpoint(str(write(tmp_path / "n.gguf"))).shape.is_tied


def test_query_rows_come_back_in_published_order(tmp_path: Path) -> None:
    """Rows are numbered, so that a wrong order shows as wrong numbers."""
    numbered = np.arange(64, dtype=np.float32)[:, None].repeat(64, 1)
    tensors = gguf_tensors()
    tensors["blk.0.attn_q.weight"] = (permute(numbered, 4), "F32")
    tensors["blk.0.attn_k.weight"] = (permute(numbered[:32], 2), "F32")
    # head_dim is 16: a head's rows 0, 8, 1, 9, ... in the file
    assert tensors["blk.0.attn_q.weight"][0][:4, 0].tolist() == [0, 8, 1, 9]
    save_gguf(tmp_path / "m.gguf", tensors)
    weights = open_checkpoint(str(tmp_path / "m.gguf")).weights
    for name, rows in (("q", 64), ("k", 32)):
        tensor = weights.take(f"model.layers.0.self_attn.{name}_proj.weight")
        assert tensor[:, 5].tolist() == list(range(rows))


def test_biases_are_unpermuted_too(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    for layer in range(2):
        for name, rows in (("q", 64), ("k", 32), ("v", 32), ("output", 64)):
            numbers = np.arange(rows, dtype=np.float32)
            heads = ROWS.get(f"attn_{name}")
            value = permute(numbers, heads) if heads else numbers
            tensors[f"blk.{layer}.attn_{name}.bias"] = (value, "F32")
    save_gguf(tmp_path / "m.gguf", tensors)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert checkpoint.shape.has_attention_bias
    for name, rows in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
        bias = checkpoint.weights.take(f"model.layers.1.self_attn.{name}_proj.bias")
        assert bias.tolist() == list(range(rows))


SCALINGS: dict[str, tuple[dict[str, Any], object]] = {
    "none": ({}, None),
    "factor without a type": ({"factor": 4.0}, LinearScaling(4.0)),
    "linear": ({"type": "linear", "factor": 2.0}, LinearScaling(2.0)),
    "switched off": ({"type": "none", "factor": 2.0}, None),
    "yarn": (
        {"type": "yarn", "factor": 8.0, "original_context_length": 32},
        YarnScaling(8.0, 32, mscale=0.0),
    ),
}


@pytest.mark.parametrize("case", SCALINGS)
def test_rope_scaling_is_honoured(tmp_path: Path, case: str) -> None:
    keys, expected = SCALINGS[case]
    fields = {f"llama__rope__scaling__{key}": value for key, value in keys.items()}
    shape = open_checkpoint(str(write(tmp_path / "m.gguf", **fields))).shape
    assert shape.rope.scaling == expected
    if isinstance(expected, YarnScaling):
        assert expected.table_multiplier == pytest.approx(1 + 0.1 * np.log(8))


def llama3_divisors(factor: float, theta: float = 10000.0, dim: int = 16) -> np.ndarray[Any, Any]:
    """llama.cpp's converter (LlamaModel.generate_extra_tensors), with Llama 3.1's constants."""
    divisors = []
    for frequency in 1.0 / theta ** (np.arange(0, dim, 2) / dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


def test_llama3_factors_become_its_scaling(tmp_path: Path) -> None:
    path = write_factors(tmp_path, llama3_divisors(8.0, 500000.0), 500000.0)
    scaling = open_checkpoint(str(path)).shape.rope.scaling
    assert scaling == Llama3Scaling(8.0, 8192, 1.0, 4.0)
    path = write_factors(tmp_path, np.ones(8, dtype=np.float32))
    assert open_checkpoint(str(path)).shape.rope.scaling is None
    path = write_factors(tmp_path, np.arange(1, 9, dtype=np.float32))
    assert "not Llama 3's scaling" in refusal(path)


def write_factors(folder: Path, divisors: np.ndarray[Any, Any], theta: float = 10000.0) -> Path:
    tensors = gguf_tensors()
    tensors["rope_freqs.weight"] = (divisors, "F32")
    save_gguf(folder / "f.gguf", tensors, {"llama.rope.freq_base": theta})
    return folder / "f.gguf"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"general__architecture": "gemma"}, "'gemma' is not supported"),
    "longrope": (
        {"llama__rope__scaling__type": "longrope", "llama__rope__scaling__factor": 2.0},
        "'longrope' is not supported",
    ),
    "yarn without a length": (
        {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 2.0},
        "original_context_length",
    ),
    "attn_factor": (
        {
            "llama__rope__scaling__type": "yarn",
            "llama__rope__scaling__factor": 2.0,
            "llama__rope__scaling__attn_factor": 0.5,
        },
        "attn_factor",
    ),
    "partial rotation": ({"llama__rope__dimension_count": 8}, "dimension_count = 8"),
    "experts": ({"llama__expert_count": 8}, "expert_count = 8"),
    "window": ({"llama__attention__sliding_window": 128}, "sliding_window"),
    "parts": ({"split__count": 3}, "one of 3 parts"),
    "no layers": ({"llama__block_count": 0}, "num_layers is 0"),
    "layer too few": ({"llama__block_count": 1}, "has no place"),
    "layer too many": ({"llama__block_count": 3}, "'model.layers.2.input_layernorm.weight'"),
    "endless rotation": ({"llama__rope__freq_base": float("nan")}, "rope theta is nan"),
    "missing key": ({"llama__context_length": None}, "llama.context_length"),
    "heads per layer": ({"llama__attention__head_count": [4, 4]}, "not usable"),
    "sentencepiece": ({"tokenizer__ggml__model": "llama"}, "SentencePiece"),
    "no tokenizer": ({"tokenizer__ggml__model": None}, "is not supported"),
    "pre-tokenizer": ({"tokenizer__ggml__pre": "tekken"}, "'tekken' is not supported"),
    "no merges": ({"tokenizer__ggml__merges": None}, "tokenizer.ggml.merges"),
    "merge of nothing": ({"tokenizer__ggml__merges": ["abc"]}, "'abc' is no pair"),
    "merge unknown": ({"tokenizer__ggml__merges": ["h zz"]}, "not usable"),
    "twice the same": ({"tokenizer__ggml__tokens": ["a"] * 300}, "appears twice"),
    "few types": ({"tokenizer__ggml__token_type": [1, 1]}, "not usable"),
    "end beyond": ({"tokenizer__ggml__eos_token_id": 999}, "token 999 is named"),
    "template": ({"tokenizer__chat_template": "{% if %}"}, "chat template"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_engine_cannot_follow_is_refused(tmp_path: Path, case: str) -> None:
    fields, expected = REFUSED[case]
    assert expected in refusal(write(tmp_path / "m.gguf", **fields))


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "m.gguf", "Q5_0"))
    assert "'token_embd.weight' is of type Q5_0" in message
    assert "Q4_1" in message


def test_missing_and_odd_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = gguf_tensors()
    del tensors["blk.1.ffn_up.weight"]
    save_gguf(path, tensors)
    assert "'model.layers.1.mlp.up_proj.weight' is missing" in refusal(path)
    tensors = gguf_tensors()
    tensors["blk.1.attn_sinks.weight"] = (np.ones(4, dtype=np.float32), "F32")
    save_gguf(path, tensors)
    assert "'blk.1.attn_sinks.weight' has no place" in refusal(path)


def test_random_weights_of_a_gguf_keep_its_tokenizer(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(tmp_path / "m.gguf")), "random")
    assert checkpoint.tokenizer is not None
    assert checkpoint.weights.take("lm_head.weight").dtype == torch.bfloat16


def test_digest_changes_with_a_tensor(tmp_path: Path) -> None:
    first = open_checkpoint(str(write(tmp_path / "m.gguf"))).digest
    assert open_checkpoint(str(write(tmp_path / "n.gguf"))).digest == first
    save_gguf(tmp_path / "o.gguf", gguf_tensors(seed=1))
    assert open_checkpoint(str(tmp_path / "o.gguf")).digest != first


@pytest.mark.parametrize("kept", [0, 1, 4, 7, 8, 23, 24, 100, 5000, 0.3, 0.6, 0.99, -1])
def test_truncated_files(tmp_path: Path, kept: float) -> None:
    path = write(tmp_path / "m.gguf")
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else int(kept)])
    refusal(path)


@pytest.mark.parametrize("start", [b"", b"GGUF", b"GGML", b"PK\x03\x04"])
def test_files_of_random_bytes(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(start + random.Random(1).randbytes(5000))
    refusal(path)


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_other_versions(tmp_path: Path, version: int) -> None:
    path = write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 4, version)
    path.write_bytes(data)
    assert f"version {version} is not supported" in refusal(path)


@pytest.mark.parametrize("place", [8, 16])
def test_absurd_counts_end_at_once(tmp_path: Path, place: int) -> None:
    path = write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, place, 2**62)
    path.write_bytes(data)
    began = time.perf_counter()
    assert "more than the file can hold" in refusal(path)
    assert time.perf_counter() - began < 1


def test_damaged_headers_never_escape_as_another_error(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    whole = path.read_bytes()
    header = whole.index(b"output.weight") + 50
    source = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            damaged[source.randrange(header)] = source.choice([0, 1, 255, source.randrange(256)])
        path.write_bytes(damaged)
        try:
            open_checkpoint(str(path))
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 1000
    assert refused > 50


def test_a_folder_named_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").mkdir()
    with pytest.raises(ModelError, match=r"there is no config\.json"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_smollm2_has_its_published_shape(smollm2_gguf: Path) -> None:
    began = time.perf_counter()
    checkpoint = open_checkpoint(str(smollm2_gguf))
    assert time.perf_counter() - began < 3  # 0.5 s on two idle cores
    shape = checkpoint.shape
    assert (shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads) == (
        30, 576, 9, 3,
    )  # fmt: skip
    assert (shape.vocab_size, shape.rope.theta, shape.is_tied) == (49152, 1e5, True)
    assert shape.num_parameters() == 134_515_008


def test_smollm2_tensors_are_dequantised_and_unpermuted(smollm2_gguf: Path) -> None:
    weights = open_checkpoint(str(smollm2_gguf)).weights
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_gguf).tensors}
    for layer in (0, 17, 29):
        for name, place, heads in (
            ("self_attn.q_proj", "attn_q", 9),
            ("self_attn.k_proj", "attn_k", 3),
            ("self_attn.v_proj", "attn_v", None),
            ("mlp.down_proj", "ffn_down", None),
        ):
            raw = theirs[f"blk.{layer}.{place}.weight"]
            truth = gguf.dequantize(raw.data, raw.tensor_type)
            if heads:
                truth = truth.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(-1, 576)
            tensor = weights.take(f"model.layers.{layer}.{name}.weight")
            assert np.array_equal(tensor.numpy(), truth)


def test_smollm2_dequantises_quickly(smollm2_gguf: Path) -> None:
    checkpoint = open_checkpoint(str(smollm2_gguf))
    began = time.process_time()
    for name, _ in expected_tensors(checkpoint.shape):
        checkpoint.weights.take(name)
    assert time.process_time() - began < 6  # 1.3 s on an idle machine
