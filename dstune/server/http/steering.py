"""The front steered over its standard input (`python -m dstune.server --http`).

It takes the engine's commands and passes them on, so that whoever tunes the engine can load it
over HTTP; `opened` tells the `url` as well, and `trace` the front's own CPU time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import uvloop

from dstune.errors import DstuneError
from dstune.server.http.engine_client import ENGINE_COMMAND
from dstune.server.http.front import Front, stop_signals
from dstune.server.http.options import ServerOptions

STEERED = ServerOptions(port=0, max_waiting=1_000_000, timeout_s=86_400)
"""Under a load test the client's own deadlines and its plan are the bound."""

_log = logging.getLogger("dstune.server")


def serve_steered(events: BinaryIO, engine_arguments: Sequence[str] = ()) -> None:
    """Carries out the commands on standard input until `quit`, its end, or SIGTERM.

    The engine's process gets `engine_arguments` beside its own.
    """
    front = Front(STEERED, [*ENGINE_COMMAND, *engine_arguments])
    uvloop.run(Steering(events, front).run())


class Steering:
    """The parent's commands, in order; what the front does not need to know goes through."""

    def __init__(self, events: BinaryIO, front: Front) -> None:
        self._events = events
        self._front = front
        self._cpu_s = time.process_time()  # when a trace was last taken
        self._commands: asyncio.Queue[bytes] = asyncio.Queue()

    async def run(self) -> None:
        """Until SIGTERM; `quit` and the parent's end leave by themselves."""
        stopped = stop_signals()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: _CommandPipe(self.received, self.leave), sys.stdin)
        answering = asyncio.create_task(self._answer_all())
        await stopped.wait()
        answering.cancel()
        await self._front.drain_and_stop()

    def received(self, line: bytes) -> None:
        """Takes one command."""
        if json.loads(line)["op"] == "quit":
            self.leave()
        self._commands.put_nowait(line)

    def leave(self) -> None:
        """Ends at once: nobody is left to read an answer."""
        self._front.engine.stop()
        os._exit(0)

    async def _answer_all(self) -> None:
        while True:
            line = await self._commands.get()
            try:
                self._send(await self._answer(json.loads(line)))
            except DstuneError as error:
                self._send_event(
                    {"event": "error", "kind": type(error).__name__, "message": str(error)}
                )
            except Exception as error:
                _log.exception("a command failed")
                message = f"{type(error).__name__}: {error}"
                self._send_event({"event": "error", "kind": "TargetError", "message": message})

    async def _answer(self, command: dict[str, Any]) -> bytes:
        match command["op"]:
            case "open":
                model, weights, device = (command[key] for key in ("model", "weights", "device"))
                traces = command.get("traces", False)
                opened = await self._front.open(
                    model, weights, device, keeps_steps=True, traces=traces
                )
                return msgspec.json.encode(
                    {**opened, "url": await self._front.listen(has_access_log=False)}
                )
            case "configure":
                return msgspec.json.encode(await self._front.configure(command["knobs"]))
            case "trace":
                taken = msgspec.json.decode(await self._front.engine.ask(command))
                before_s, self._cpu_s = self._cpu_s, time.process_time()
                return msgspec.json.encode({**taken, "front_cpu_s": self._cpu_s - before_s})
        return await self._front.engine.ask(command, on_progress=self._send)

    def _send(self, line: bytes) -> None:
        self._events.write(line + b"\n")
        self._events.flush()

    def _send_event(self, event: Mapping[str, Any]) -> None:
        self._send(msgspec.json.encode(event))


class _CommandPipe(asyncio.Protocol):
    """Cuts standard input into lines."""

    def __init__(self, received: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._received = received
        self._ended = ended
        self._begun: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        first, *lines = data.split(b"\n")
        self._begun.append(first)
        for line in lines:
            self._received(b"".join(self._begun))
            self._begun = [line]

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
