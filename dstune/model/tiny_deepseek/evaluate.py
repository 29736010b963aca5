"""Measures a trained model: python -m dstune.model.tiny_deepseek.evaluate FOLDER.

FOLDER holds model.safetensors (and, if present, the training run's state.pt in fp32).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from dstune.model.tiny_deepseek.architecture import NetworkConfig
from dstune.model.tiny_deepseek.checkpoint import load_published
from dstune.model.tiny_deepseek.data import build_corpus, pack_epoch
from dstune.model.tiny_deepseek.network import Network

_HERE = Path(__file__).parent
_WINDOWS_AT_ONCE = 8


@torch.no_grad()
def held_out_loss(network: Network, text: bytes, window: int = 1024) -> float:
    """Mean loss in nats per byte: windows overlap by half and are scored on their second half."""
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    half = window // 2
    starts = range(0, len(ids) - window, half)
    rows = torch.stack([ids[start : start + window + 1] for start in starts])
    total = 0.0
    for first in range(0, len(rows), _WINDOWS_AT_ONCE):
        batch = rows[first : first + _WINDOWS_AT_ONCE]
        logits = network(batch[:, :-1])[:, half:]
        targets = batch[:, half + 1 :].flatten()
        total += F.cross_entropy(logits.flatten(0, 1), targets, reduction="sum").item()
    return total / (len(rows) * half)


def unigram_loss(train: npt.NDArray[np.int16], text: bytes) -> float:
    """Mean loss in nats per byte of the training bytes' frequencies, add-one smoothed."""
    counts = np.bincount(train[train < 256], minlength=256) + 1.0
    log_shares = np.log(counts / counts.sum())
    return float(-log_shares[np.frombuffer(text, dtype=np.uint8)].mean())


def expert_loads(network: Network) -> list[list[float]]:
    """Share of the routed tokens per layer and expert, since the routers' counts began."""
    return [(router.load / router.load.sum()).tolist() for router in network.routers()]


@torch.no_grad()
def sample(network: Network, prompt: list[int], length: int, temperature: float = 0.7) -> bytes:
    """Continue a prompt by up to `length` bytes, stopping at a special token."""
    ids = torch.tensor([prompt])
    for _ in range(length):
        logits = network(ids)[0, -1] / temperature
        token: Tensor = torch.multinomial(logits.softmax(-1), 1)
        if token.item() >= 256:
            break
        ids = torch.cat((ids, token[None]), dim=1)
    return bytes(ids[0, len(prompt) :].tolist())


def main() -> None:
    """Print all measured figures as JSON."""
    parser = argparse.ArgumentParser(description="Evaluate tiny-deepseek.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, nargs="*", default=[1024])
    options = parser.parse_args()
    corpus = build_corpus()
    text = corpus.held_out_text().encode()
    network = Network(NetworkConfig.read(_HERE / "config.json"))
    figures: dict[str, object] = {"bytes": len(text)}
    figures["unigram"] = math.exp(unigram_loss(pack_epoch(corpus.train, 0), text))
    if (options.folder / "state.pt").exists():
        network.load_state_dict(torch.load(options.folder / "state.pt")["network"])
        figures["fp32"] = math.exp(held_out_loss(network, text))
    load_published(network, options.folder / "model.safetensors")
    for router in network.routers():
        router.load.zero_()
    for window in options.windows:
        loss = held_out_loss(network, text, window)
        figures[f"bf16_weights_window_{window}"] = math.exp(loss)
    figures["loads"] = expert_loads(network)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
