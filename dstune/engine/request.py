"""A request inside the engine: what was asked, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """What a sequence does in one step."""

    PREFILL = "prefill"  # computes known tokens; the last chunk also yields a token
    DECODE = "decode"  # computes the newest token alone


class FinishReason(StrEnum):
    """Why a request ended."""

    LENGTH = "length"  # max_tokens or max_model_len reached
    STOP = "stop"  # a stop token was produced
    ABORT = "abort"


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    `temperature` 0 is greedy. `forced_token_ids` replaces sampling: the model's probability of
    these tokens is measured instead, through the very path that would have produced them.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    forced_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None  # None: none; 0: the chosen token's; n: also the n likeliest


@dataclass(eq=False)
class Request:
    """A sequence's state; the scheduler alone changes it."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_ns: int
    token_ids: list[int] = field(default_factory=list)  # prompt, then output
    num_computed_tokens: int = 0  # tokens whose KV is in the cache
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of the full blocks, in order
    num_committed_blocks: int = 0  # blocks of the table whose hashes were offered for sharing
    num_cached_tokens: int = 0  # prefix hits at the first admission
    num_preemptions: int = 0
    first_scheduled_ns: int | None = None
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens produced so far; they survive a preemption."""
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that are known and not yet in the cache."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def phase(self) -> Phase:
        """Decode once only the newest output token is left to compute."""
        is_decode = self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0
        return Phase.DECODE if is_decode else Phase.PREFILL
