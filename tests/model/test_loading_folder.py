"""Hugging Face folders: names, shapes, fp8 blocks, and every way in which a folder is broken."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import TINY, save_byte_tokenizer, save_tiny
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from dstune.errors import ModelError
from dstune.model.loading.folder import dequantise_blocks
from dstune.model.loading.open import open_checkpoint
from dstune.model.loading.weights import expected_tensors

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """kind -> (folder, transformers' model)"""
    base = tmp_path_factory.mktemp("folders")
    return {kind: (base / kind, save_tiny(kind, base / kind)) for kind in TINY}


@pytest.fixture
def llama(folders: dict[str, tuple[Path, Any]], tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return Path(shutil.copytree(folders["llama"][0], tmp_path / "llama"))


@pytest.fixture
def deepseek(folders: dict[str, tuple[Path, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders["deepseek-v3"][0], tmp_path / "deepseek"))


def edit_config(folder: Path, name: str = "config.json", **changes: Any) -> None:
    path = folder / name
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, **changes}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def refusal(model: Path | str, weights: str = "auto") -> str:
    """The one line with which a model is refused."""
    with pytest.raises(ModelError) as caught:
        open_checkpoint(str(model), weights)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", TINY)
def test_tensors_are_those_that_transformers_holds(
    folders: dict[str, tuple[Path, Any]], kind: str
) -> None:
    folder, model = folders[kind]
    checkpoint = open_checkpoint(str(folder))
    theirs = dict(model.state_dict())
    for name in [name for name in theirs if ".experts." in name]:
        stack = theirs.pop(name)
        prefix = name.rpartition(".")[0]
        for index, matrix in enumerate(stack):
            parts = matrix.chunk(2) if name.endswith("gate_up_proj") else (matrix,)
            kinds = ("gate", "up") if len(parts) == 2 else ("down",)
            for part, which in zip(parts, kinds, strict=True):
                theirs[f"{prefix}.{index}.{which}_proj.weight"] = part
    if checkpoint.shape.is_tied:
        theirs.pop("lm_head.weight")
    ours = dict(expected_tensors(checkpoint.shape))
    assert ours.keys() == theirs.keys()
    for name, size in ours.items():
        tensor = checkpoint.weights.take(name)
        assert tuple(tensor.shape) == size
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0)
    assert sum(torch.Size(size).numel() for size in ours.values()) == sum(
        tensor.numel() for tensor in theirs.values()
    )


def test_stored_type_is_kept(llama: Path) -> None:
    edit_tensors(llama, lambda t: t.update({"lm_head.weight": t["lm_head.weight"].bfloat16()}))
    assert open_checkpoint(str(llama)).weights.take("lm_head.weight").dtype == torch.bfloat16


def test_tokens_of_generation_config_and_tokenizer_are_merged(llama: Path) -> None:
    edit_config(llama, "generation_config.json", eos_token_id=[7, 2])
    save_byte_tokenizer(llama)
    checkpoint = open_checkpoint(str(llama))
    assert checkpoint.tokenizer is not None
    assert checkpoint.shape.eos_token_ids == checkpoint.tokenizer.eos_ids == (2, 7, 257)


def test_no_tokenizer_is_none(llama: Path) -> None:
    assert open_checkpoint(str(llama)).tokenizer is None


def test_sharded_folder(deepseek: Path) -> None:
    whole = open_checkpoint(str(deepseek))
    shard(deepseek)
    parts = open_checkpoint(str(deepseek))
    for name, _ in expected_tensors(whole.shape):
        assert torch.equal(whole.weights.take(name), parts.weights.take(name))


def shard(folder: Path) -> None:
    """Split the weights into two files with an index."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    halves: list[dict[str, torch.Tensor]] = [{}, {}]
    for index, name in enumerate(sorted(tensors)):
        halves[index % 2][name] = tensors[name].clone()
    names = [f"model-0000{index + 1}-of-00002.safetensors" for index in range(2)]
    for name, half in zip(names, halves, strict=True):
        save_file(half, folder / name)
    where = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def test_next_token_prediction_layer_is_left_out(deepseek: Path) -> None:
    edit_tensors(deepseek, lambda t: t.update({"model.layers.2.eh_proj.weight": torch.ones(2)}))
    open_checkpoint(str(deepseek))


@pytest.mark.parametrize("size", [(256, 384), (200, 130), (5, 7)], ids=str)
def test_fp8_blocks_by_hand(size: tuple[int, int]) -> None:
    weight = torch.randn(size).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-size[0] // 128), -(-size[1] // 128)) + 0.5
    result = dequantise_blocks(weight, scale, (128, 128))
    for row, column in [(0, 0), (size[0] - 1, size[1] - 1), (size[0] // 2, size[1] // 3)]:
        by_hand = weight[row, column].float() * scale[row // 128, column // 128]
        assert result[row, column] == by_hand


def to_fp8(folder: Path, block: int = 16) -> dict[str, torch.Tensor]:
    """Quantise two projections; returns what they stand for."""
    edit_config(
        folder,
        quantization_config={"quant_method": "fp8", "weight_block_size": [block, block]},
    )
    truth: dict[str, torch.Tensor] = {}

    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "kv_b_proj" in n or "experts.3.up_proj" in n]:
            rows, columns = tensors[name].shape
            weight = tensors[name].to(torch.float8_e4m3fn)
            scale = torch.rand(-(-rows // block), -(-columns // block)) + 0.5
            tensors[name], tensors[name + "_scale_inv"] = weight, scale
            truth[name] = dequantise_blocks(weight, scale, (block, block))

    edit_tensors(folder, quantise)
    return truth


def test_fp8_checkpoint_comes_out_as_fp32(deepseek: Path) -> None:
    truth = to_fp8(deepseek)
    weights = open_checkpoint(str(deepseek)).weights
    assert len(truth) == 3
    for name, tensor in truth.items():
        assert weights.take(name).dtype == torch.float32
        assert torch.equal(weights.take(name), tensor)


def test_digest_tells_weights_and_configuration_apart(llama: Path, tmp_path: Path) -> None:
    first = open_checkpoint(str(llama)).digest
    moved = shutil.copytree(llama, tmp_path / "elsewhere")
    assert open_checkpoint(str(moved)).digest == first
    edit_config(moved, rope_theta=5.0)
    assert open_checkpoint(str(moved)).digest != first
    edit_tensors(llama, lambda t: t["model.layers.1.mlp.up_proj.weight"].mul_(1.5))
    assert open_checkpoint(str(llama)).digest != first


BROKEN_TENSORS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (lambda t: t.pop("model.norm.weight"), "'model.norm.weight' is missing"),
    "wrong shape": (
        lambda t: t.update({"lm_head.weight": torch.ones(3, 64)}),
        "'lm_head.weight' is 3x64, but the configuration asks for 300x64",
    ),
    "no place for it": (
        lambda t: t.update({"model.layers.0.mlp.up_proj.bias": torch.ones(96)}),
        "'model.layers.0.mlp.up_proj.bias' has no place",
    ),
    "layer too many": (
        lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(96, 64)}),
        "'model.layers.2.mlp.up_proj.weight' has no place",
    ),
    "integers": (
        lambda t: t.update({"lm_head.weight": torch.ones(300, 64, dtype=torch.int8)}),
        "'lm_head.weight' is of type I8",
    ),
    "fp8 without configuration": (
        lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn)}),
        "'lm_head.weight' is of type F8_E4M3",
    ),
    "odd name": (lambda t: t.update({"a\nb": torch.ones(1)}), "has no place"),
}


@pytest.mark.parametrize("case", BROKEN_TENSORS)
def test_wrong_tensors_are_refused_at_once(llama: Path, case: str) -> None:
    edit, expected = BROKEN_TENSORS[case]
    edit_tensors(llama, edit)
    assert expected in refusal(llama)


BROKEN_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"model_type": "gpt2"}, "'gpt2' is not supported"),
    "activation": ({"hidden_act": "gelu"}, "'gelu' is not supported"),
    "awq": ({"quantization_config": {"quant_method": "awq"}}, "'awq' are not supported"),
    "quantisation of no kind": ({"quantization_config": ["x"]}, "not supported"),
    "fp8 per tensor": ({"quantization_config": {"quant_method": "fp8"}}, "weight_block_size"),
    "text for a number": ({"hidden_size": "wide"}, "not usable"),
    "null": ({"num_hidden_layers": None}, "not usable"),
    "no heads": ({"num_attention_heads": 0, "head_dim": 16}, "num_heads is 0"),
    "division": ({"num_attention_heads": 0, "head_dim": None}, "not usable"),
    "odd KV heads": ({"num_key_value_heads": 3}, "no multiple"),
    "infinite": ({"num_hidden_layers": float("inf")}, "not usable"),
    "rope is a list": ({"rope_parameters": [1]}, "not usable"),
    "many layers": ({"num_hidden_layers": 10**15}, "'model.layers.2.input_layernorm.weight'"),
}


@pytest.mark.parametrize("case", BROKEN_CONFIGS)
def test_wrong_configurations_are_refused(llama: Path, case: str) -> None:
    changes, expected = BROKEN_CONFIGS[case]
    edit_config(llama, **changes)
    assert expected in refusal(llama)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1', "\xff", "[" * 10**5], ids=repr)
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_broken_json_names_the_file(llama: Path, name: str, text: str) -> None:
    (llama / name).write_text(text, encoding="latin-1")
    assert name in refusal(llama)


def test_code_in_a_folder_is_never_run(llama: Path) -> None:
    (llama / "modeling.py").write_text("raise SystemExit('the code ran')")
    edit_config(llama, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    open_checkpoint(str(llama))


def test_pickles_are_refused(llama: Path) -> None:
    (llama / WEIGHTS).rename(llama / "pytorch_model.bin")
    message = refusal(llama)
    assert "pytorch_model.bin is refused" in message
    assert "safetensors" in message


def test_missing_files(llama: Path) -> None:
    (llama / WEIGHTS).unlink()
    assert "there is no model.safetensors" in refusal(llama)
    (llama / "config.json").unlink()
    assert "there is no config.json" in refusal(llama)


def test_index_must_be_true(deepseek: Path) -> None:
    shard(deepseek)
    path = deepseek / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, second = sorted(set(index["weight_map"].values()))
    swapped = {**index["weight_map"], "lm_head.weight": second}
    other = first if index["weight_map"]["lm_head.weight"] == second else second
    path.write_text(json.dumps({"weight_map": {**swapped, "lm_head.weight": other}}))
    assert "'lm_head.weight' is missing" in refusal(deepseek)
    outside = {**index["weight_map"], "lm_head.weight": "../x.safetensors"}
    path.write_text(json.dumps({"weight_map": outside}))
    assert "no safetensors file name" in refusal(deepseek)
    path.write_text(json.dumps(index))
    (deepseek / second).unlink()
    assert f"there is no {second}" in refusal(deepseek)


def test_missing_or_wrong_fp8_scale(deepseek: Path) -> None:
    truth = to_fp8(deepseek)
    scale = f"{min(truth)}_scale_inv"
    edit_tensors(deepseek, lambda t: t.update({scale: torch.ones(1, 1)}))
    assert scale in refusal(deepseek)
    edit_tensors(deepseek, lambda t: t.pop(scale))
    assert f"'{scale}' is missing" in refusal(deepseek)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 0.5, 0.99, -1])
def test_truncated_weights_name_the_file(llama: Path, kept: float) -> None:
    whole = (llama / WEIGHTS).read_bytes()
    end = int(len(whole) * kept) if isinstance(kept, float) else int(kept)
    (llama / WEIGHTS).write_bytes(whole[:end])
    assert WEIGHTS in refusal(llama)


def test_damaged_header_never_escapes_as_another_error(llama: Path) -> None:
    whole = (llama / WEIGHTS).read_bytes()
    random_source = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(random_source.randint(1, 4)):
            damaged[random_source.randrange(header)] = random_source.randrange(256)
        (llama / WEIGHTS).write_bytes(damaged)
        try:
            open_checkpoint(str(llama))
        except ModelError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": 1}', "\x00" * 50], ids=repr)
def test_broken_tokenizer_names_the_file(llama: Path, text: str) -> None:
    (llama / "tokenizer.json").write_text(text)
    assert "tokenizer.json" in refusal(llama)


def test_tokenizer_larger_than_the_embedding_is_refused(llama: Path) -> None:
    save_byte_tokenizer(llama)
    path = str(llama / "tokenizer.json")
    core = Tokenizer.from_file(path)
    core.add_tokens([f"more{index}" for index in range(41)])
    core.save(path)
    assert "the tokenizer has 301 tokens, but the model embeds 300" in refusal(llama)


@pytest.mark.parametrize(
    "config",
    [{"chat_template": "{% if %}"}, {"chat_template": 5}, {"chat_template": "{{ a"}],
    ids=str,
)
def test_broken_chat_template(llama: Path, config: dict[str, Any]) -> None:
    save_byte_tokenizer(llama, **config)
    assert "chat" in refusal(llama)
