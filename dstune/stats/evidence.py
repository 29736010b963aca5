"""Stats: what the trust checks look at: a repetition's samples and all seen beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dstune.measure.client_health import ClientHealth
from dstune.measure.record import HostLoad
from dstune.measure.sample import Sample
from dstune.measure.server_metrics import ServerMetrics
from dstune.stats.metrics import Limit, Loop

BLOCK_TOKENS = 16  # a KV block where the target does not say; vLLM's default


@dataclass(frozen=True)
class Evidence:
    """One repetition. What is not known is left out, and the checks that need it stay silent.

    `clients` is empty where no load process sent anything (the offline driver): then a late send
    is the engine's own time, between two steps. `planned_shared_tokens` is how much of a prompt
    the plan itself makes equal to an earlier one (a shared prefix, a session's earlier turns);
    a request that is not in it shares nothing.
    """

    samples: Sequence[Sample]
    loop: Loop
    limits: Sequence[Limit] = ()
    planned_prompt_tokens: Mapping[str, int] = field(default_factory=dict)  # by request id
    planned_shared_tokens: Mapping[str, int] = field(default_factory=dict)  # by request id
    block_tokens: int = BLOCK_TOKENS
    asked_rate_per_s: float | None = None
    clients: Sequence[ClientHealth] = ()
    server: tuple[ServerMetrics, ServerMetrics] | None = None  # before and after
    host: HostLoad | None = None
    has_warmup: bool = True
