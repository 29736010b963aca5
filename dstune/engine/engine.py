"""The engine: requests in, tokens out, one step at a time.

It owns no thread and no clock of its own: whoever calls `step` decides when, which makes every
decision of the scheduler reproducible in a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dstune.engine.blocks import BlockManager
from dstune.engine.config import EngineConfig
from dstune.engine.graphs import Capture, cuda_capture
from dstune.engine.memory import DTYPE_NAMES, CacheSize, check_chunking, size_cache
from dstune.engine.request import FinishReason, Request, SamplingParams
from dstune.engine.runner import Runner
from dstune.engine.sampler import TopLogprobs
from dstune.engine.scheduler import Scheduler
from dstune.engine.slowdown import STEP, Slowdown
from dstune.errors import DstuneError, UsageError
from dstune.kernels.select import Kernels, select
from dstune.knobs import KnobValue, Restart, restart_between
from dstune.model.loading.open import Checkpoint
from dstune.model.model import Model, build_model
from dstune.model.precision import resolve_precision


@dataclass(frozen=True)
class TokenOutput:
    """One new token of one request."""

    request: Request
    token_id: int
    logprob: float | None
    finish_reason: FinishReason | None
    top_logprobs: TopLogprobs = ()


@dataclass(frozen=True)
class StepOutput:
    """What one step did; the same quantities as `steps.parquet`."""

    start_ns: int
    end_ns: int
    tokens: tuple[TokenOutput, ...]
    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_preempted: int
    num_cached_tokens: int


class Engine:
    """Continuous batching of one model under one configuration at a time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        device: torch.device | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        slowdown: Slowdown | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.now_ns = now_ns
        self.config = config
        self._slowdown = slowdown
        self._requests: dict[str, Request] = {}
        self._load(config)

    @property
    def size(self) -> CacheSize:
        """The KV cache in force."""
        return self._runner.size

    @property
    def backend(self) -> str:
        """The kernels that run."""
        return self._kernels.backend

    @property
    def scheduler(self) -> Scheduler:
        """For reading: its queues, and the free blocks."""
        return self._scheduler

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of packed weights."""
        return self._model.num_weight_bytes

    def _select(self, backend: str) -> Kernels:
        kernels = select(backend, self.device)
        if self._slowdown is not None:
            kernels = self._slowdown.slowed(kernels, self.device, self.now_ns)
        return kernels

    def _load(self, config: EngineConfig) -> None:
        self._kernels: Kernels = self._select(config.backend)
        precision = resolve_precision(config.precision, self.device, self._kernels)
        self._model: Model[Any] = build_model(
            self.checkpoint.shape, self.checkpoint.weights, self._kernels, precision
        )
        self._rebuild(config)

    def _rebuild(self, config: EngineConfig) -> None:
        size = size_cache(config, self._model, self._kernels)
        has_graphs = self.device.type == "cuda" and self.backend == "triton"
        capture = self._capture() if has_graphs and not config.enforce_eager else None
        self._runner = Runner(self._model, self._kernels, size, capture)
        self._runner.prepare(config.max_num_seqs)
        blocks = BlockManager(size.num_blocks, size.block_size, config.enable_prefix_caching)
        self._scheduler = Scheduler(config, blocks, size.max_model_len)

    def _capture(self) -> Capture:
        return cuda_capture(self.device)

    def effective_knobs(self) -> dict[str, KnobValue]:
        """Every knob, with what `auto` and unset became."""
        return replace(
            self.config,
            kv_cache_dtype=DTYPE_NAMES[self.size.dtype],
            max_model_len=self.size.max_model_len,
            kv_cache_memory_bytes=self.size.num_bytes,
            backend=self.backend,
        ).to_knobs()

    def reconfigure(self, config: EngineConfig) -> Restart | None:
        """Makes another configuration be in force, between two steps.

        Live knobs change under running requests; anything dearer needs an idle engine. Raises
        `UsageError` when it is not, `KnobError` when the model or machine cannot run `config`;
        the earlier configuration then stays in force.
        """
        restart = self._restart_for(config)
        if restart is None:
            return None
        if restart is Restart.LIVE:
            if self.device.type == "cuda":  # its largest step was measured, and does not grow
                check_chunking(config, self.size.max_model_len)
            else:
                size_cache(config, self._model, self._kernels)
            self._scheduler.config = config
            self.config = config
            return restart
        if self._requests:
            raise UsageError("a rebuild or reload needs an idle engine; finish or abort first")
        resolve_precision(config.precision, self.device, select(config.backend, self.device))
        try:
            self._restart(config, restart)
        except DstuneError:
            self._restart(self.config, restart)
            raise
        self.config = config
        return restart

    def _restart_for(self, config: EngineConfig) -> Restart | None:
        """What the change costs; on a GPU a rebuild measures and captures the largest step."""
        restart = restart_between(self.config.to_knobs(), config.to_knobs())
        grows = (
            config.max_num_seqs > self.config.max_num_seqs
            or config.max_num_batched_tokens > self.config.max_num_batched_tokens
        )
        if restart is Restart.LIVE and grows and self.device.type == "cuda":
            return Restart.REBUILD
        return restart

    def _restart(self, config: EngineConfig, restart: Restart) -> None:
        """Makes cache or model again; the old one goes first, since both may not fit.

        After a failure there may be nothing to let go: the next call makes it all.
        """
        gone = ["_runner", "_scheduler"] + ["_model"] * (restart is Restart.RELOAD)
        for name in gone:
            self.__dict__.pop(name, None)
        if restart is Restart.RELOAD:
            self._load(config)
        else:
            self._rebuild(config)

    def add(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        arrival_ns: int | None = None,
    ) -> Request:
        """Queues a request; `arrival_ns` (default: now) is when its batching timeout starts.

        Raises `UsageError` for an empty or too long prompt, a token id outside the vocabulary,
        or an id that is in use.
        """
        if request_id in self._requests:
            raise UsageError(f"request id {request_id!r} is in use")
        if not prompt_token_ids:
            raise UsageError("the prompt is empty")
        if len(prompt_token_ids) >= self.size.max_model_len:
            raise UsageError(
                f"the prompt has {len(prompt_token_ids)} tokens; with max_model_len "
                f"{self.size.max_model_len} it may have {self.size.max_model_len - 1}"
            )
        if (
            not 0
            <= min(prompt_token_ids)
            <= max(prompt_token_ids)
            < (self.checkpoint.shape.vocab_size)
        ):
            raise UsageError("the prompt has a token id outside the vocabulary")
        if params.max_tokens < 1:
            raise UsageError("max_tokens must be at least 1")
        if params.forced_token_ids and len(params.forced_token_ids) < params.max_tokens:
            raise UsageError("fewer forced tokens than max_tokens")
        arrival = self.now_ns() if arrival_ns is None else arrival_ns
        request = Request(request_id, prompt_token_ids, params, arrival)
        self._requests[request_id] = request
        self._scheduler.add(request)
        return request

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its blocks at once; an unknown or ended one is no error."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._scheduler.abort(request)

    @property
    def has_requests(self) -> bool:
        """Whether anything is unfinished."""
        return self._scheduler.has_requests

    def hold_until_ns(self) -> int | None:
        """With nothing running: when held arrivals are let in. None: `step` has work or none."""
        if self._scheduler.running:
            return None
        return self._scheduler.hold_until_ns(self.now_ns())

    def step(self) -> StepOutput | None:
        """Computes one step; None when there is nothing to compute yet."""
        start_ns = self.now_ns()
        plan = self._scheduler.schedule(start_ns)
        if not plan.scheduled:
            return None
        num_running = len(self._scheduler.running)
        choices = self._runner.run(plan)
        produced = self._scheduler.complete(plan, [choice.token_id for choice in choices])
        tokens = []
        for one, choice in zip(produced, choices, strict=True):
            request = one.request
            if request.finish_reason:
                del self._requests[request.request_id]
            tokens.append(
                TokenOutput(
                    request,
                    choice.token_id,
                    choice.logprob,
                    request.finish_reason,
                    choice.top_logprobs,
                )
            )
        num_decode = sum(one.phase == "decode" for one in plan.scheduled)
        if self._slowdown is not None and self._slowdown.target == STEP:
            self._slowdown.stretch(start_ns, self.now_ns)
        return StepOutput(
            start_ns=start_ns,
            end_ns=self.now_ns(),
            tokens=tuple(tokens),
            num_prefill_tokens=plan.num_tokens - num_decode,
            num_decode_tokens=num_decode,
            num_running=num_running,
            num_waiting=len(self._scheduler.waiting),
            num_free_blocks=self._scheduler.blocks.num_free,
            num_preempted=plan.num_preempted,
            num_cached_tokens=plan.num_cached_tokens,
        )

    def reset_prefix_cache(self) -> None:
        """Forgets cached prefixes."""
        self._scheduler.blocks.reset_cache()
