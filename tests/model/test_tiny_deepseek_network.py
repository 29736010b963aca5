"""The training network of tiny-deepseek agrees with the published architecture."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import dstune.model.tiny_deepseek as package  # noqa: E402
from dstune.model.tiny_deepseek.architecture import NetworkConfig  # noqa: E402
from dstune.model.tiny_deepseek.checkpoint import load_published, save_published  # noqa: E402
from dstune.model.tiny_deepseek.network import Network  # noqa: E402

CONFIG = Path(package.__file__).parent / "config.json"


@pytest.fixture
def network() -> Network:
    """A network on random weights, with gating biases that change which experts are chosen."""
    torch.manual_seed(0)
    network = Network(NetworkConfig.read(CONFIG))
    for router in network.routers():
        router.weight.data.mul_(20)
        router.e_score_correction_bias.uniform_(0, 0.2)
    for name, parameter in network.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    return network


def test_logits_match_the_published_architecture(network: Network, tmp_path: Path) -> None:
    save_published(network, tmp_path / "model.safetensors", torch.float32)
    shutil.copy(CONFIG, tmp_path / "config.json")
    published, notes = transformers.DeepseekV3ForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    tokens = torch.randint(0, 264, (2, 300))
    with torch.no_grad():
        ours, theirs = network(tokens), published(tokens).logits
    assert theirs.std() > 0.1
    assert torch.allclose(ours, theirs, atol=1e-4, rtol=0)


def test_checkpoint_round_trip(network: Network, tmp_path: Path) -> None:
    save_published(network, tmp_path / "model.safetensors", torch.float32)
    other = Network(network.config)
    load_published(other, tmp_path / "model.safetensors")
    tokens = torch.randint(0, 264, (1, 40))
    with torch.no_grad():
        assert torch.equal(network(tokens), other(tokens))
