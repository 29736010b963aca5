"""Model architectures as numbers: config.json or GGUF metadata becomes a `ModelShape`.

Knows nothing of weights or torch, so that planning needs neither. A leaf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dstune.errors import ModelError

Config = Mapping[str, Any]

SCALE_BYTES = 4  # an fp32 scale per token (and head) goes with quantised KV
ELEMENT_BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}
SCALED = ("int8", "fp8")  # element types whose rows have scales


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): frequencies below `beta_slow` turns are divided by `factor`."""

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None

    def magnitude(self, mscale: float) -> float:
        """YaRN's temperature 0.1 m ln(factor) + 1."""
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    @property
    def table_multiplier(self) -> float:
        """What cos and sin are multiplied by; 1 where mscale equals mscale_all_dim."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
        return self.magnitude(1.0)


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's frequency scaling: long wavelengths divided, a smooth band between."""

    factor: float
    original_max_position: int
    low_freq_factor: float
    high_freq_factor: float


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class RopeShape:
    """Rotary embedding: pairs are (i, i + dim/2), or neighbours when interleaved."""

    theta: float
    dim: int
    interleaved: bool
    scaling: YarnScaling | Llama3Scaling | LinearScaling | None = None


@dataclass(frozen=True)
class MlaShape:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    q_lora_rank: int | None  # None: plain q_proj
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def qk_dim(self) -> int:
        """Width of one head's query and key in un-absorbed attention."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True)
class MoeShape:
    """Mixture of experts: routed experts beside shared ones, from `first_layer` on."""

    num_experts: int
    num_shared: int
    top_k: int
    intermediate_size: int
    first_layer: int
    scoring: Literal["softmax", "sigmoid"]
    norm_topk_prob: bool
    routed_scaling_factor: float
    n_group: int = 1
    topk_group: int = 1
    has_groups: bool = False  # softmax scoring limited to the best groups, or noaux_tc


@dataclass(frozen=True)
class ModelShape:
    """Everything about a model that is not a weight."""

    name: str
    family: Literal["llama", "deepseek"]
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_position: int
    rope: RopeShape
    is_tied: bool = False
    has_attention_bias: bool = False
    mla: MlaShape | None = None
    moe: MoeShape | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @property
    def softmax_scale(self) -> float:
        """Multiplier of the attention scores; YaRN with mscale_all_dim squares its magnitude in."""
        if self.mla is None:
            return 1 / math.sqrt(self.head_dim)
        scale = 1 / math.sqrt(self.mla.qk_dim)
        scaling = self.rope.scaling
        if isinstance(scaling, YarnScaling) and scaling.mscale_all_dim:
            scale *= scaling.magnitude(scaling.mscale_all_dim) ** 2
        return scale

    def is_moe_layer(self, layer: int) -> bool:
        """Whether a layer's feed-forward is a mixture of experts."""
        return self.moe is not None and layer >= self.moe.first_layer

    def kv_bytes_per_token_layer(self, kv_dtype: str, rope_dtype: str = "bf16") -> int:
        """Bytes that one token keeps in one layer's KV cache, scales included.

        A quantised latent keeps its rotary part in `rope_dtype`, which never is quantised.
        """
        element = ELEMENT_BYTES[kv_dtype]
        if self.mla is not None:
            if kv_dtype not in SCALED:
                return (self.mla.kv_lora_rank + self.mla.rope_dim) * element
            rope_bytes = self.mla.rope_dim * ELEMENT_BYTES[rope_dtype]
            return self.mla.kv_lora_rank + SCALE_BYTES + rope_bytes
        per_head = self.head_dim * element + (SCALE_BYTES if kv_dtype in SCALED else 0)
        return 2 * self.num_kv_heads * per_head

    def kv_bytes_per_token(self, kv_dtype: str, rope_dtype: str = "bf16") -> int:
        """Bytes that one token keeps in the whole KV cache."""
        return self.num_layers * self.kv_bytes_per_token_layer(kv_dtype, rope_dtype)

    def num_parameters(self) -> int:
        """Weights of the model, embeddings and norms included."""
        hidden = self.hidden_size
        total = self.vocab_size * hidden * (1 if self.is_tied else 2) + hidden
        for layer in range(self.num_layers):
            total += self._attention_parameters() + self._mlp_parameters(layer) + 2 * hidden
        return total

    def _attention_parameters(self) -> int:
        hidden, heads = self.hidden_size, self.num_heads
        if self.mla is None:
            width = (heads + 2 * self.num_kv_heads) * self.head_dim
            return hidden * (width + heads * self.head_dim) + (
                width + hidden if self.has_attention_bias else 0
            )
        mla = self.mla
        query = (
            hidden * heads * mla.qk_dim
            if mla.q_lora_rank is None
            else mla.q_lora_rank * (hidden + 1 + heads * mla.qk_dim)
        )
        latent = hidden * (mla.kv_lora_rank + mla.rope_dim) + mla.kv_lora_rank
        expand = mla.kv_lora_rank * heads * (mla.nope_dim + mla.v_dim)
        return query + latent + expand + heads * mla.v_dim * hidden

    def _mlp_parameters(self, layer: int) -> int:
        hidden = self.hidden_size
        if not self.is_moe_layer(layer):
            return 3 * hidden * self.intermediate_size
        assert self.moe is not None
        experts = self.moe.num_experts + self.moe.num_shared
        gate = hidden * self.moe.num_experts
        bias = self.moe.num_experts if self.moe.scoring == "sigmoid" else 0
        return 3 * hidden * self.moe.intermediate_size * experts + gate + bias


def shape_from_config(config: Config, name: str) -> ModelShape:
    """The shape that a Hugging Face config.json describes.

    Raises `ModelError` for an architecture that the engine has no code for, or a missing field.
    """
    kind = config.get("model_type")
    try:
        if kind in ("llama", "mistral"):
            return _llama_shape(config, name)
        if kind in ("deepseek_v2", "deepseek_v3"):
            return _deepseek_shape(config, name)
    except KeyError as missing:
        raise ModelError(f"{name}: config.json lacks {missing}") from None
    except (TypeError, ValueError) as wrong:
        raise ModelError(f"{name}: config.json is not usable: {wrong}") from None
    raise ModelError(
        f"{name}: model_type {kind!r} is not supported; supported are llama, mistral, "
        "deepseek_v2, deepseek_v3"
    )


def _rope_fields(config: Config) -> tuple[float, Mapping[str, Any]]:
    """(theta, scaling mapping): transformers 5 keeps both in `rope_parameters`."""
    if config.get("rope_parameters"):
        both = config["rope_parameters"]
        return float(both.get("rope_theta", config.get("rope_theta", 10000.0))), both
    return float(config.get("rope_theta", 10000.0)), config.get("rope_scaling") or {}


def _rope_shape(config: Config, dim: int, interleaved: bool) -> RopeShape:
    theta, scaling = _rope_fields(config)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    original = scaling.get("original_max_position_embeddings")
    parsed: YarnScaling | Llama3Scaling | LinearScaling | None
    if kind == "default":
        parsed = None
    elif kind == "yarn":
        parsed = YarnScaling(
            factor=float(scaling["factor"]),
            original_max_position=int(original or config["max_position_embeddings"]),
            beta_fast=float(scaling.get("beta_fast") or 32),
            beta_slow=float(scaling.get("beta_slow") or 1),
            mscale=float(scaling.get("mscale") or 0),
            mscale_all_dim=float(scaling.get("mscale_all_dim") or 0),
            attention_factor=scaling.get("attention_factor"),
        )
    elif kind == "llama3":
        parsed = Llama3Scaling(
            factor=float(scaling["factor"]),
            original_max_position=int(scaling["original_max_position_embeddings"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
        )
    elif kind == "linear":
        parsed = LinearScaling(float(scaling["factor"]))
    else:
        raise ValueError(f"rope type {kind!r} is not supported")
    return RopeShape(theta, dim, interleaved, parsed)


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(one) for one in (value if isinstance(value, list) else [value]))


def _shared_fields(config: Config, name: str) -> dict[str, Any]:
    bos = config.get("bos_token_id")
    return {
        "name": name,
        "vocab_size": int(config["vocab_size"]),
        "hidden_size": int(config["hidden_size"]),
        "num_layers": int(config["num_hidden_layers"]),
        "num_heads": int(config["num_attention_heads"]),
        "intermediate_size": int(config["intermediate_size"]),
        "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "max_position": int(config["max_position_embeddings"]),
        "is_tied": bool(config.get("tie_word_embeddings", False)),
        "has_attention_bias": bool(config.get("attention_bias", False)),
        "eos_token_ids": _token_ids(config.get("eos_token_id")),
        "bos_token_id": None if bos is None else int(bos),
    }


def _llama_shape(config: Config, name: str) -> ModelShape:
    if config.get("sliding_window"):
        raise ValueError("sliding-window attention is not supported")
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    return ModelShape(
        family="llama",
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        rope=_rope_shape(config, head_dim, interleaved=False),
        **_shared_fields(config, name),
    )


def _deepseek_shape(config: Config, name: str) -> ModelShape:
    q_lora = config.get("q_lora_rank")
    mla = MlaShape(
        q_lora_rank=None if q_lora is None else int(q_lora),
        kv_lora_rank=int(config["kv_lora_rank"]),
        nope_dim=int(config["qk_nope_head_dim"]),
        rope_dim=int(config["qk_rope_head_dim"]),
        v_dim=int(config["v_head_dim"]),
    )
    heads = int(config["num_attention_heads"])
    # V3's pairs are interleaved unless the config says otherwise; V2's always
    interleaved = bool(config.get("rope_interleave", True))
    return ModelShape(
        family="deepseek",
        num_kv_heads=heads,
        head_dim=mla.qk_dim,
        rope=_rope_shape(config, mla.rope_dim, interleaved),
        mla=mla,
        moe=_moe_shape(config),
        **_shared_fields(config, name),
    )


def _moe_shape(config: Config) -> MoeShape | None:
    if not config.get("n_routed_experts"):
        return None
    if int(config.get("moe_layer_freq", 1)) != 1:
        raise ValueError("moe_layer_freq other than 1 is not supported")
    is_v3 = config["model_type"] == "deepseek_v3"
    method = config.get("topk_method", "noaux_tc" if is_v3 else "greedy")
    return MoeShape(
        num_experts=int(config["n_routed_experts"]),
        num_shared=int(config.get("n_shared_experts") or 0),
        top_k=int(config["num_experts_per_tok"]),
        intermediate_size=int(config["moe_intermediate_size"]),
        first_layer=int(config.get("first_k_dense_replace", 0)),
        scoring="sigmoid" if is_v3 else "softmax",
        norm_topk_prob=bool(config.get("norm_topk_prob", is_v3)),
        routed_scaling_factor=float(config.get("routed_scaling_factor", 1.0)),
        n_group=int(config.get("n_group") or 1),
        topk_group=int(config.get("topk_group") or 1),
        has_groups=method in ("noaux_tc", "group_limited_greedy"),
    )


def shape_from_gguf(fields: Config, name: str) -> ModelShape:
    """The shape that GGUF metadata (key -> value) describes; raises `ModelError` as above."""
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{name}: GGUF architecture {architecture!r} is not supported (llama is)")

    def value(key: str) -> Any:
        return fields[f"llama.{key}"]

    try:
        heads = int(value("attention.head_count"))
        head_dim = int(
            fields.get("llama.attention.key_length") or int(value("embedding_length")) // heads
        )
        eos = fields.get("tokenizer.ggml.eos_token_id")
        bos = fields.get("tokenizer.ggml.bos_token_id")
        vocab = fields.get("llama.vocab_size") or len(fields["tokenizer.ggml.tokens"])
        return ModelShape(
            name=name,
            family="llama",
            vocab_size=int(vocab),
            hidden_size=int(value("embedding_length")),
            num_layers=int(value("block_count")),
            num_heads=heads,
            num_kv_heads=int(fields.get("llama.attention.head_count_kv", heads)),
            head_dim=head_dim,
            intermediate_size=int(value("feed_forward_length")),
            rms_norm_eps=float(value("attention.layer_norm_rms_epsilon")),
            max_position=int(value("context_length")),
            rope=RopeShape(
                float(fields.get("llama.rope.freq_base", 10000.0)), head_dim, interleaved=False
            ),
            eos_token_ids=_token_ids(eos),
            bos_token_id=None if bos is None else int(bos),
        )
    except KeyError as missing:
        raise ModelError(f"{name}: GGUF metadata lacks {missing}") from None


_DEEPSEEK_YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
}

_LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip

_DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 3, "vocab_size": 129280, "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1,
    "rope_scaling": {**_DEEPSEEK_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}  # fmt: skip

PUBLISHED: Mapping[str, Config] = {
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
        "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "topk_method": "greedy",
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
        "vocab_size": 102400, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6,
        "bos_token_id": 100000, "eos_token_id": 100001,
        "rope_scaling": {**_DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-r1": _DEEPSEEK_V3,
    "llama-3-8b": _LLAMA_3_8B,
    "llama-3.1-8b": {
        **_LLAMA_3_8B,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    },
    "smollm2-135m": {
        "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
        "vocab_size": 49152, "max_position_embeddings": 8192, "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
    },
}  # fmt: skip


def published_shape(name: str) -> ModelShape:
    """The published shape of that name; raises `ModelError` naming those known."""
    if name not in PUBLISHED:
        raise ModelError(f"unknown shape '{name}'; published shapes are {', '.join(PUBLISHED)}")
    return shape_from_config(PUBLISHED[name], name)
