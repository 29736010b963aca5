"""What all routes share: the engine, the model that it serves, and who may still come in."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dstune.server.http.ask import Ask, ModelFacts
from dstune.server.http.engine_client import EngineClient
from dstune.server.http.flight import ClientGone, Flight
from dstune.server.http.metrics import Metrics
from dstune.server.http.options import ServerOptions
from dstune.server.http.refusal import (
    Refusal,
    deadline_passed,
    internal,
    queue_full,
    shutting_down,
)

NS_PER_S = 1_000_000_000
RETRY_AFTER_S = 1.0
SEEDS = 1 << 64


@dataclass(frozen=True)
class Serving:
    """What is served under the configuration in force."""

    model: ModelFacts
    eos_ids: tuple[int, ...]
    precision: str
    backend: str
    max_num_seqs: int


class Service:
    """Admits requests into the engine and ends them."""

    def __init__(self, engine: EngineClient, metrics: Metrics, options: ServerOptions) -> None:
        self.engine = engine
        self.metrics = metrics
        self.options = options
        self.serving: Serving | None = None  # None before the first configuration
        self.is_draining = False
        self._flights: dict[Flight, asyncio.TimerHandle] = {}

    @property
    def load(self) -> float:
        """How full the engine and its queue are, from 0 to 1."""
        if self.serving is None:
            return 0.0
        return self.engine.num_open / (self.serving.max_num_seqs + self.options.max_waiting)

    @property
    def num_flights(self) -> int:
        """HTTP requests that are in the engine."""
        return len(self._flights)

    def check_open(self) -> Serving:
        """What is served; raises the `Refusal` that a new request gets where nothing is."""
        if self.is_draining:
            raise shutting_down(RETRY_AFTER_S)
        if self.engine.death is not None:
            raise internal()
        if self.serving is None:
            raise _not_ready()
        return self.serving

    def admit(self, ask: Ask, arrival_ns: int) -> Flight:
        """Hands a request to the engine; raises `Refusal` where there is no room.

        The flight must be given back by `release`.
        """
        serving = self.check_open()
        num_choices = len(ask.prompts) * ask.n
        bound = serving.max_num_seqs + self.options.max_waiting
        if self.engine.num_open + num_choices > bound:
            raise queue_full(self.options.max_waiting, RETRY_AFTER_S)
        loop = asyncio.get_running_loop()
        flight = Flight(loop)
        timeout_s = min(ask.timeout_s or self.options.timeout_s, self.options.timeout_s)
        elapsed_s = (time.monotonic_ns() - arrival_ns) / NS_PER_S
        failure = deadline_passed(timeout_s)
        timer = loop.call_later(timeout_s - elapsed_s, self.end, flight, failure)
        self._flights[flight] = timer
        self.engine.submit(flight, _requests(ask, serving), arrival_ns)
        return flight

    def end(self, flight: Flight, failure: Refusal | ClientGone) -> None:
        """Ends a request before its time: its blocks are free at once."""
        self.engine.abort(flight)
        flight.fail(failure)

    def release(self, flight: Flight) -> None:
        """Forgets a request; whatever of it is unfinished ends."""
        self._flights.pop(flight).cancel()
        self.engine.abort(flight)

    def end_all(self, failure: Refusal) -> None:
        """Ends every request."""
        for flight in list(self._flights):
            self.end(flight, failure)


def _not_ready() -> Refusal:
    headers = {"Retry-After": f"{RETRY_AFTER_S:.0f}"}
    message = "the engine is not configured yet"
    return Refusal(503, message, None, "not_ready", kind="server_error", headers=headers)


def _requests(ask: Ask, serving: Serving) -> Iterator[tuple[tuple[int, ...], Mapping[str, Any]]]:
    """(prompt, SamplingParams) of each choice; choice i of a prompt has seed + i."""
    end_ids = () if ask.ignore_eos else serving.eos_ids
    shared = {
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "top_k": ask.top_k,
        "top_p": ask.top_p,
        "min_p": ask.min_p,
        "stop_token_ids": [*end_ids, *ask.stop_token_ids],
        "num_logprobs": ask.num_logprobs,
    }
    seed = random.getrandbits(62) if ask.seed is None else ask.seed
    for prompt in ask.prompts:
        for choice in range(ask.n):
            yield prompt, {**shared, "seed": _wrapped(seed + choice)}


def _wrapped(seed: int) -> int:
    """A seed as the engine's 64 bits hold it."""
    return (seed + SEEDS // 2) % SEEDS - SEEDS // 2
