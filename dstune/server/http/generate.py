"""The two routes that generate, from a body to the last byte of the answer, as plain ASGI.

The order: read, parse, admit into the engine, then one turn of the loop per step of the engine.
Nothing is sent before the first token is there, so that whatever goes wrong until then has its
own status; later it becomes an error object in the stream. The client is watched all the while:
when it hangs up, the engine's request ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dstune.server.http.answers import send_json, send_refusal
from dstune.server.http.ask import Ask, ModelFacts
from dstune.server.http.choice import Choice, Piece
from dstune.server.http.flight import ClientGone, Flight, Token
from dstune.server.http.logs import Message, Receive, Send, note
from dstune.server.http.refusal import Refusal, internal
from dstune.server.http.service import NS_PER_S, Service, Serving
from dstune.server.http.stream import DONE, EVENT, EVENT_END, ChunkWriter, Names, WholeAnswer

Parse = Callable[[bytes, ModelFacts], Ask]

INLINE_BYTES = 16_384  # a larger body is parsed beside the loop, which streams meanwhile

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]

_log = logging.getLogger("dstune.server")


class GenerateRoute:
    """`/v1/completions` or `/v1/chat/completions`, by the way its bodies are parsed."""

    def __init__(self, service: Service, parse: Parse, id_prefix: str) -> None:
        self._service = service
        self._parse = parse
        self._id_prefix = f"{id_prefix}-{secrets.token_hex(6)}"
        self._numbers = itertools.count()
        self._beside = ThreadPoolExecutor(1, "parse")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request."""
        arrival_ns = time.monotonic_ns()
        answer = Answer(self._service, scope, send, arrival_ns)
        try:
            body = await read_body(receive)
            serving = self._service.check_open()
            ask = await self._read(body, serving.model)
            names = Names(
                f"{self._id_prefix}{next(self._numbers)}", int(time.time()), serving.model.name
            )
            await answer.give(ask, names, receive)
        except ClientGone:
            note(scope, error="the client hung up")
        except Refusal as refusal:
            await answer.refuse(refusal)
        except Exception:
            _log.exception("a request failed")
            await answer.refuse(internal())

    async def _read(self, body: bytes, model: ModelFacts) -> Ask:
        if len(body) <= INLINE_BYTES:
            return self._parse(body, model)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._beside, self._parse, body, model)


async def read_body(receive: Receive) -> bytes:
    """The whole body, which the limits in front of this have bounded; raises `ClientGone`."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


class Answer:
    """The answer to one request."""

    def __init__(self, service: Service, scope: Message, send: Send, arrival_ns: int) -> None:
        self._service = service
        self._scope = scope
        self._send = send
        self._arrival_ns = arrival_ns
        self._is_streaming = False  # the status is out

    async def give(self, ask: Ask, names: Names, receive: Receive) -> None:
        """Generates and sends; raises what the request fails with."""
        serving = self._service.check_open()
        flight = self._service.admit(ask, self._arrival_ns)
        watch = asyncio.get_running_loop().create_task(self._watch(receive, flight))
        tokenizer = serving.model.tokenizer
        choices = [Choice(index, ask, tokenizer) for index in range(len(ask.prompts) * ask.n)]
        sends = self._stream if ask.stream else self._whole
        reason = "abort"
        try:
            await sends(ask, names, serving, flight, choices)
        except Refusal as refusal:
            reason = "timeout" if refusal.status == 504 else "error"
            raise
        finally:
            watch.cancel()
            self._service.release(flight)
            for choice in choices:
                prompt = ask.prompts[choice.index // ask.n]
                self._observe_end(choice, choice.finish_reason or reason, len(prompt))
            note(
                self._scope,
                prompt_tokens=sum(map(len, ask.prompts)),
                output_tokens=sum(choice.num_tokens for choice in choices),
                finish_reasons=[choice.finish_reason or reason for choice in choices],
            )

    async def refuse(self, refusal: Refusal) -> None:
        """Tells the client why there is no answer, or no more of it."""
        note(self._scope, error=refusal.code)  # its message may repeat what the client sent
        if not self._is_streaming:
            await send_refusal(self._send, refusal)
            return
        body = EVENT + refusal.body() + EVENT_END + DONE
        await self._send({"type": "http.response.body", "body": body})

    async def _watch(self, receive: Receive, flight: Flight) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._service.end(flight, ClientGone())

    async def _stream(
        self, ask: Ask, names: Names, serving: Serving, flight: Flight, choices: list[Choice]
    ) -> None:
        writer = ChunkWriter(names, ask, len(choices))
        num_left = len(choices)
        while num_left:
            chunks = []
            for token in await flight.take():
                choice = choices[token.choice]
                if choice.finish_reason is not None:  # by a stop string; the engine did not know
                    continue
                if ask.is_chat and not choice.num_tokens:
                    chunks.append(writer.role(token.choice))
                chunks.append(writer.chunk(self._push(choice, token, flight)))
                num_left -= choice.finish_reason is not None
            if not num_left:
                if ask.include_usage:
                    extras = self._extras(serving, choices)
                    chunks.append(writer.usage(_usage(ask, choices), extras))
                chunks.append(DONE)
            if not self._is_streaming:
                self._is_streaming = True
                start = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
                await self._send(start)
            body = b"".join(chunks)
            await self._send(
                {"type": "http.response.body", "body": body, "more_body": bool(num_left)}
            )

    async def _whole(
        self, ask: Ask, names: Names, serving: Serving, flight: Flight, choices: list[Choice]
    ) -> None:
        whole = WholeAnswer(names, ask, len(choices))
        num_left = len(choices)
        while num_left:
            for token in await flight.take():
                choice = choices[token.choice]
                if choice.finish_reason is not None:
                    continue
                whole.add(self._push(choice, token, flight))
                num_left -= choice.finish_reason is not None
        document = whole.document(_usage(ask, choices), self._extras(serving, choices))
        await send_json(self._send, 200, document)

    def _push(self, choice: Choice, token: Token, flight: Flight) -> Piece:
        metrics = self._service.metrics
        if choice.first_token_ns is None:
            metrics.observe_first_token((token.at_ns - self._arrival_ns) / NS_PER_S)
        else:
            metrics.observe_token_gap((token.at_ns - choice.last_token_ns) / NS_PER_S)
        piece = choice.push(token)
        if piece.finish_reason is not None and token.finish_reason is None:
            self._service.engine.abort(flight, choice.index)
        return piece

    def _observe_end(self, choice: Choice, reason: str, prompt_tokens: int) -> None:
        scheduled, first, last = choice.first_scheduled_ns, choice.first_token_ns, None
        end = time.monotonic_ns()
        if first is not None:
            last = end = choice.last_token_ns
        self._service.metrics.observe_finished(
            reason,
            queue_s=_seconds(self._arrival_ns, scheduled),
            prefill_s=_seconds(scheduled, first),
            decode_s=_seconds(first, last),
            e2e_s=(end - self._arrival_ns) / NS_PER_S,
            prompt_tokens=prompt_tokens,
            output_tokens=choice.num_tokens,
        )

    def _extras(self, serving: Serving, choices: list[Choice]) -> dict[str, Any]:
        """What this server tells beside OpenAI's fields."""
        # the choice that was scheduled last is what the request waited for
        scheduled = max(one.first_scheduled_ns or 0 for one in choices)
        return {
            "queue_ns": max(0, scheduled - self._arrival_ns),
            "precision": serving.precision,
            "backend": serving.backend,
        }


def _seconds(start_ns: int | None, end_ns: int | None) -> float | None:
    if start_ns is None or end_ns is None:
        return None
    return max(0, end_ns - start_ns) / NS_PER_S


def _usage(ask: Ask, choices: list[Choice]) -> dict[str, Any]:
    prompt_tokens = sum(map(len, ask.prompts))
    completion_tokens = sum(choice.num_tokens for choice in choices)
    # the further choices of a prompt hit what the first one left, which is no earlier request's
    cached = sum(choice.num_cached_tokens for choice in choices[:: ask.n])
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
