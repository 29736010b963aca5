"""What joins one HTTP request to the engine: tokens come in here, the request's task takes them.

The engine's reader delivers without waiting; the task that answers the client waits. One HTTP
request may be several of the engine's: a batch of prompts, or n choices of one.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from dstune.server.http.refusal import Refusal


class ClientGone(Exception):
    """The client hung up: nobody is left to answer."""


class Token(NamedTuple):
    """One token of one of the request's choices, as the engine's step event carries it."""

    choice: int
    token_id: int
    logprob: float | None
    top_logprobs: list[tuple[int, float]] | None
    finish_reason: str | None
    first_scheduled_ns: int | None  # with a choice's first token alone, as the next
    num_cached_tokens: int | None
    at_ns: int  # when the front had it


class Flight:
    """One HTTP request on its way through the engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.open_ids: dict[str, int] = {}  # the engine's ids that are unfinished -> choice
        self._loop = loop
        self._inbox: list[Token] = []
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    def deliver(self, token: Token) -> None:
        """Hands over one token."""
        self._inbox.append(token)
        self._wake()

    def fail(self, failure: Refusal | ClientGone) -> None:
        """Ends the request: `take` raises from now on. The first failure stays."""
        if self._failure is None:
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> list[Token]:
        """The tokens that have come since, at least one; raises what the flight failed with."""
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._failure is not None:
            raise self._failure
        taken, self._inbox = self._inbox, []
        return taken
