"""Names of models, random weights, and what a wrong name is answered with."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import TINY, save_tiny

from dstune.architecture import PUBLISHED, published_shape
from dstune.errors import ModelError
from dstune.model.loading.open import BUNDLED, bundled_folder, open_checkpoint
from dstune.model.loading.random import RandomWeights
from dstune.model.loading.weights import expected_tensors


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "v3"
    save_tiny("deepseek-v3", folder)
    return folder


def refusal(model: str, weights: str = "auto") -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(model, weights)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tensors_add_up_to_the_parameters(name: str) -> None:
    shape = published_shape(name)
    total = sum(torch.Size(size).numel() for _, size in expected_tensors(shape))
    assert total == shape.num_parameters()


def test_published_sizes_are_the_known_ones() -> None:
    """15.7 billion as V2-Lite's card says, 671 billion as V3's, 134.5 million as SmolLM2's."""
    for name, billions in (
        ("deepseek-v2-lite", 15.7),
        ("deepseek-v3", 671),
        ("smollm2-135m", 0.1345),
    ):
        total = sum(torch.Size(size).numel() for _, size in expected_tensors(published_shape(name)))
        assert total / 1e9 == pytest.approx(billions, rel=0.002)


def test_published_shape_with_random_weights() -> None:
    checkpoint = open_checkpoint("deepseek-v2-lite", "random")
    assert checkpoint.name == "deepseek-v2-lite"
    assert checkpoint.tokenizer is None
    assert checkpoint.weights.has("model.layers.26.mlp.experts.63.down_proj.weight")
    assert not checkpoint.weights.has("model.layers.27.mlp.gate.weight")
    expert = checkpoint.weights.take("model.layers.26.mlp.experts.63.down_proj.weight")
    assert expert.shape == (2048, 1408)


def test_random_tensors_depend_on_seed_and_name_alone(tiny: Path) -> None:
    shape = open_checkpoint(str(tiny), "random").shape
    name, other = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    first, second = RandomWeights(shape), RandomWeights(shape)
    second.take(other)
    assert torch.equal(first.take(name), second.take(name))
    assert not torch.equal(first.take(name), first.take(other))
    assert not torch.equal(first.take(name), RandomWeights(shape, seed=1).take(name))


def test_random_tensors_have_expected_type_shape_and_scale() -> None:
    shape = published_shape("smollm2-135m")
    weights = RandomWeights(shape)
    for name, size in list(expected_tensors(shape))[:12]:
        tensor = weights.take(name)
        assert tuple(tensor.shape) == size
        assert tensor.dtype == torch.bfloat16
        if name.endswith("norm.weight"):
            assert (tensor == 1).all()
        else:
            assert tensor.float().std() == pytest.approx(size[-1] ** -0.5, rel=0.02)
            assert abs(tensor.float().mean()) < 0.02 * size[-1] ** -0.5


def test_random_stream_is_pinned() -> None:
    """Runs compare over time, so no version of numpy or torch may change the weights."""
    weights = RandomWeights(published_shape("smollm2-135m"))
    key = weights.take("model.layers.0.self_attn.k_proj.weight")
    assert key[0, :4].tolist() == [0.013671875, -0.039306640625, 0.035888671875, 0.06298828125]


def test_random_gating_bias_is_fp32_and_small(tiny: Path) -> None:
    weights = open_checkpoint(str(tiny), "random").weights
    bias = weights.take("model.layers.1.mlp.gate.e_score_correction_bias")
    assert bias.dtype == torch.float32
    assert 0 < bias.abs().max() < 0.02


def test_random_needs_nothing_but_a_configuration(tmp_path: Path) -> None:
    config = {"model_type": "llama", **TINY["llama"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(str(tmp_path), "random")
    assert checkpoint.weights.take("lm_head.weight").shape == (300, 64)
    assert checkpoint.digest != open_checkpoint("smollm2-135m", "random").digest
    assert "there is no model.safetensors" in refusal(str(tmp_path))


def test_unknown_random_tensor() -> None:
    with pytest.raises(ModelError, match="'nonsense' is missing"):
        open_checkpoint("smollm2-135m", "random").weights.take("nonsense")


def test_bundled_folder() -> None:
    assert (bundled_folder("tiny-deepseek") / "config.json").is_file()
    with pytest.raises(ModelError, match="bundled models are tiny-deepseek"):
        bundled_folder("big-deepseek")


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_tokenizer(name: str) -> None:
    tokenizer = open_checkpoint(name, "random").tokenizer
    assert tokenizer is not None
    assert tokenizer.has_chat_template
    assert tokenizer.eos_ids
    text = "Naïve café 漢字 🙂\n\ttabs\0"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_weights(name: str) -> None:
    checkpoint = open_checkpoint(name)
    assert checkpoint.name == name
    for tensor, size in expected_tensors(checkpoint.shape):
        assert tuple(checkpoint.weights.take(tensor).shape) == size


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("tiny-deepsek", "did you mean 'tiny-deepseek'?"),
        ("llama-3.1-8B", "did you mean 'llama-3.1-8b'?"),
        ("zzz", "known are tiny-deepseek, deepseek-v2-lite"),
        ("deepseek-v3", "add 'weights: random'"),
        ("/no/such/folder", "no such file or folder"),
        ("./no-such-folder", "no such file or folder"),
        ("no-such.gguf", "no such file or folder"),
        ("", "unknown model ''"),
        ("a\nb", "unknown model"),
        ("a\0b", "unknown model"),
        ("x" * 5000, "name too long"),
        ("~nobody-here/model", "model '~nobody-here/model'"),
    ],
)
def test_wrong_names(model: str, expected: str) -> None:
    assert expected.lower() in refusal(model).lower()


def test_wrong_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"x")
    assert "a model is a folder or a .gguf file" in refusal(str(path))


def test_wrong_kind_of_weights() -> None:
    assert "'auto' or 'random', not 'zeros'" in refusal("smollm2-135m", "zeros")


def test_hub_extra_is_named_when_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_hub(name: str, *rest: Any, **more: Any) -> Any:
        if name == "huggingface_hub":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_hub)
    assert "pip install 'dstune[hub]'" in refusal("org/name")


def test_hub_fetches_no_code_and_no_pickles(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: dict[str, Any] = {}

    def snapshot(repo: str, **patterns: Any) -> str:
        asked.update(patterns, repo=repo)
        return str(tiny)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    assert open_checkpoint("org/name").name == "org/name"
    files = ["model.safetensors", "config.json", "tokenizer.json", "pytorch_model.bin", "run.py",
             "original/x.safetensors", "model.gguf", "tokenizer.py"]  # fmt: skip
    fetched = hub.utils.filter_repo_objects(
        files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(fetched) == ["model.safetensors", "config.json", "tokenizer.json"]
    open_checkpoint("org/name", "random")
    assert "*.safetensors" not in asked["allow_patterns"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("RepositoryNotFoundError", "the hub does not know it"),
        ("GatedRepoError", "accept its terms"),
        ("LocalEntryNotFoundError", "out of reach"),
        (None, "the hub says: first"),
    ],
)
def test_hub_troubles(monkeypatch: pytest.MonkeyPatch, kind: str | None, expected: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    error = RuntimeError if kind is None else getattr(hub.errors, kind)

    def snapshot(repo: str, **patterns: Any) -> str:
        raise error.__new__(error) if kind else RuntimeError("\nfirst\nsecond")

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    assert expected in refusal("org/name")
