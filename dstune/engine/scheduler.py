"""Which tokens of which requests run in the next step.

There are no phases: a request's computed tokens advance toward its known tokens under the step's
token budget, which makes chunked prefill, prefix hits and recompute after preemption one case.
Running requests come first; waiting ones are admitted whole or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dstune.engine.blocks import BlockManager
from dstune.engine.config import EngineConfig
from dstune.engine.request import FinishReason, Phase, Request

NS_PER_MS = 1_000_000


@dataclass(frozen=True)
class Scheduled:
    """One request's share of a step: tokens [start, start + num_tokens) of its own."""

    request: Request
    start: int
    num_tokens: int
    phase: Phase

    @property
    def yields_token(self) -> bool:
        """Whether the last known token is among these, so that a new one can be chosen."""
        return self.start + self.num_tokens == self.request.num_tokens


@dataclass(frozen=True)
class StepPlan:
    """What one step computes: decodes before prefills, each in order of arrival."""

    scheduled: tuple[Scheduled, ...]
    num_preempted: int = 0
    num_cached_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(one.num_tokens for one in self.scheduled)


class Scheduler:
    """Holds every unfinished request; `schedule` plans a step, `complete` books its result."""

    def __init__(self, config: EngineConfig, blocks: BlockManager, max_model_len: int) -> None:
        self.config = config
        self.blocks = blocks
        self.max_model_len = max_model_len
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    @property
    def has_requests(self) -> bool:
        """Whether anything is unfinished."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queues a request that fits max_model_len."""
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Ends a request wherever it is; its blocks are free at once."""
        if request in self.running:
            self.running.remove(request)
            self.blocks.free(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.finish_reason = FinishReason.ABORT

    def hold_until_ns(self, now_ns: int) -> int | None:
        """When the held arrivals are let in, or None where nothing is being held.

        A new arrival may wait `batch_timeout_ms` for others to join its first step. It is let in
        at once when the batch is full without more: by sequences or by tokens. A preempted
        request never waits again.
        """
        if not self.waiting or self.waiting[0].num_preemptions:
            return None
        deadline = self.waiting[0].arrival_ns + int(self.config.batch_timeout_ms * NS_PER_MS)
        if now_ns >= deadline:
            return None
        if len(self.running) + len(self.waiting) >= self.config.max_num_seqs:
            return None
        if sum(request.num_tokens for request in self.waiting) >= (
            self.config.max_num_batched_tokens
        ):
            return None
        return deadline

    def schedule(self, now_ns: int) -> StepPlan:
        """The next step; empty when nothing runs and arrivals are held, or nothing is left."""
        chosen: list[Scheduled] = []
        preempted = self._schedule_running(chosen)
        cached = 0
        if not preempted and self.hold_until_ns(now_ns) is None:
            cached = self._admit_waiting(chosen, now_ns)
        chosen.sort(key=lambda one: one.phase is not Phase.DECODE)  # stable
        return StepPlan(tuple(chosen), preempted, cached)

    def _schedule_running(self, chosen: list[Scheduled]) -> int:
        budget = self.config.max_num_batched_tokens
        preempted = 0
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            count = min(request.num_uncomputed_tokens, budget)
            if self.blocks.grow(request, request.num_computed_tokens + count):
                chosen.append(self._share(request, count))
                budget -= count
                index += 1
                continue
            # The newest has the least to lose. It was not chosen yet in this step: requests are
            # chosen in order and it is the last.
            self._preempt(self.running[-1])
            preempted += 1
        return preempted

    def _preempt(self, request: Request) -> None:
        assert self.running[-1] is request
        self.running.pop()
        self.blocks.free(request)
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _admit_waiting(self, chosen: list[Scheduled], now_ns: int) -> int:
        budget = self.config.max_num_batched_tokens - sum(one.num_tokens for one in chosen)
        cached = 0
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            matched = self.blocks.match_prefix(request)
            missing = request.num_tokens - len(matched) * self.blocks.block_size
            if not self.config.enable_chunked_prefill and missing > budget:
                break
            if not self.blocks.can_admit(request, matched):
                break
            self.waiting.popleft()
            self.blocks.admit(request, matched)
            if request.first_scheduled_ns is None:
                request.first_scheduled_ns = now_ns
                request.num_cached_tokens = request.num_computed_tokens
            cached += request.num_computed_tokens
            count = min(missing, budget)
            # Room for every known token is taken now, not chunk by chunk: two half-computed
            # prompts that each count on the same free blocks would preempt each other for ever.
            has_grown = self.blocks.grow(request, request.num_tokens)
            assert has_grown, "can_admit promised room"
            self.running.append(request)
            chosen.append(self._share(request, count))
            budget -= count
        return cached

    def _share(self, request: Request, count: int) -> Scheduled:
        return Scheduled(request, request.num_computed_tokens, count, request.phase)

    def complete(self, plan: StepPlan, token_ids: Sequence[int]) -> list[Scheduled]:
        """Books a computed step; `token_ids` holds one token per share that yields one, in order.

        Returns the shares that yielded a token. Requests that ended have a `finish_reason` and
        hold no blocks.
        """
        produced: list[Scheduled] = []
        tokens = iter(token_ids)
        for one in plan.scheduled:
            request = one.request
            yields = one.yields_token
            request.num_computed_tokens += one.num_tokens
            self.blocks.commit(request)
            if not yields:
                continue
            token = next(tokens)
            request.token_ids.append(token)
            request.finish_reason = self._finish_reason(request, token)
            produced.append(one)
        ended = {id(one.request) for one in produced if one.request.finish_reason}
        if ended:
            for request in self.running:
                if id(request) in ended:
                    self.blocks.free(request)
            self.running = [request for request in self.running if id(request) not in ended]
        return produced

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        if not request.params.ignore_eos and token in request.params.stop_token_ids:
            return FinishReason.STOP
        if request.num_output_tokens >= request.params.max_tokens:
            return FinishReason.LENGTH
        if request.num_tokens >= self.max_model_len:
            return FinishReason.LENGTH
        return None
