"""The engine's process as the front sees it: started, steered, fed with requests, and read.

Its events are read as they come, and each step's tokens go straight to the requests they belong
to. The child ends with the pipe, so that no end of this process leaves it behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from dstune import errors
from dstune.errors import TargetError
from dstune.server.http.flight import Flight, Token
from dstune.server.http.refusal import bad_request, internal

Event = dict[str, Any]

STEP = b'{"event":"step",'  # the child writes its keys in order
ENGINE_COMMAND = (sys.executable, "-m", "dstune.server", "--child")


class Kind(msgspec.Struct):
    """The kind of an event; the rest is left unread."""

    event: str


class EngineClient:
    """One child process with one engine.

    `on_step` gets every step event, `on_idle` the number of free blocks when nothing is left.
    """

    def __init__(
        self,
        on_step: Callable[[Event], None] = lambda step: None,
        on_idle: Callable[[int], None] = lambda num_free_blocks: None,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self.death: str | None = None  # why the process has ended, once it has
        self.gone = asyncio.Event()  # set when it has
        self._on_step = on_step
        self._on_idle = on_idle
        self._command = command
        self._flights: dict[str, Flight] = {}
        self._num_ids = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._on_progress: Callable[[bytes], None] = lambda line: None
        self._asking = asyncio.Lock()
        self._decode_step = msgspec.json.Decoder().decode
        self._decode_kind = msgspec.json.Decoder(Kind).decode
        self._encode = msgspec.json.Encoder().encode
        self._crash = ""
        self._transport: asyncio.SubprocessTransport | None = None

    async def start(self) -> None:
        """Starts the process; its log goes where this one's goes."""
        loop = asyncio.get_running_loop()
        # a session of its own: a Ctrl-C is for the front, which drains first
        self._transport, _ = await loop.subprocess_exec(
            lambda: _ChildPipe(self), *self._command, stderr=None, start_new_session=True
        )
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    @property
    def num_open(self) -> int:
        """Engine requests that are unfinished, running and waiting ones."""
        return len(self._flights)

    async def ask(
        self,
        command: Mapping[str, Any],
        on_progress: Callable[[bytes], None] = lambda line: None,
    ) -> bytes:
        """Sends a command and returns the event that answers it, as a line without its end.

        Raises the errors of the child, and `TargetError` when it is gone.
        """
        async with self._asking:
            if self.death is not None:
                raise TargetError(self.death)
            self._answer = asyncio.get_running_loop().create_future()
            self._on_progress = on_progress
            self._write([command])
            try:
                return await self._answer
            finally:
                self._answer = None

    def submit(
        self,
        flight: Flight,
        requests: Iterable[tuple[tuple[int, ...], Mapping[str, Any]]],
        arrival_ns: int,
    ) -> None:
        """Queues the flight's choices: (prompt, fields of SamplingParams) of each."""
        commands = []
        for choice, (prompt, params) in enumerate(requests):
            self._num_ids += 1
            request_id = str(self._num_ids)
            flight.open_ids[request_id] = choice
            self._flights[request_id] = flight
            command = {"op": "add", "id": request_id, "prompt_token_ids": prompt}
            commands.append({**command, "params": params, "arrival_ns": arrival_ns})
        self._write(commands)

    def abort(self, flight: Flight, choice: int | None = None) -> None:
        """Ends what is unfinished of a flight, or of one of its choices: its blocks are freed."""
        ids = [one for one, owner in flight.open_ids.items() if choice is None or owner == choice]
        for request_id in ids:
            del flight.open_ids[request_id]
            self._flights.pop(request_id, None)
        if ids and self.death is None:
            self._write([{"op": "abort", "id": request_id} for request_id in ids])

    def stop(self) -> None:
        """Ends the process at once; harmless when called twice."""
        if self._transport is not None and self.death is None:
            self._stdin.close()
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()

    def _write(self, commands: Iterable[Mapping[str, Any]]) -> None:
        self._stdin.write(b"".join([self._encode(one) + b"\n" for one in commands]))

    def read_line(self, line: bytes) -> None:
        """Takes one event of the child."""
        if line.startswith(STEP):
            step = self._decode_step(line)
            self._deliver(step)
            self._on_step(step)
            return
        match self._decode_kind(line).event:
            case "idle":
                self._on_idle(self._decode_step(line)["num_free_blocks"])
            case "refused":
                self._refuse(self._decode_step(line))
            case "crashed":
                self._crash = self._decode_step(line)["message"]
            case "progress":
                self._on_progress(line)
            case "error":
                event = self._decode_step(line)
                self._settle(errors.BY_NAME.get(event["kind"], TargetError)(event["message"]))
            case _:
                self._settle(line)

    def _deliver(self, step: Event) -> None:
        now = time.monotonic_ns()
        flights = self._flights
        for request_id, *values in step["tokens"]:
            flight = flights.get(request_id)
            if flight is None:  # aborted while the step ran
                continue
            choice = flight.open_ids[request_id]
            token = Token._make((choice, *values, now))
            if token.finish_reason is not None:
                del flights[request_id], flight.open_ids[request_id]
            flight.deliver(token)

    def _refuse(self, event: Event) -> None:
        flight = self._flights.pop(event["id"], None)
        if flight is not None:
            del flight.open_ids[event["id"]]
            flight.fail(bad_request(event["message"]))

    def _settle(self, answer: bytes | Exception) -> None:
        if self._answer is None or self._answer.done():
            return  # who asked is gone
        if isinstance(answer, Exception):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)

    def died(self, status: int | None) -> None:
        """The process has ended: everything that waits for it fails."""
        how = f"exited with status {status}"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}" + (" (out of memory?)" if status == -9 else "")
        self.death = f"the engine's process {how}" + (f": {self._crash}" if self._crash else "")
        self.gone.set()
        self._settle(TargetError(self.death))
        for flight in set(self._flights.values()):
            flight.open_ids.clear()
            flight.fail(internal())
        self._flights.clear()


class _ChildPipe(asyncio.SubprocessProtocol):
    """Cuts what the child writes into lines."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._begun: list[bytes] = []  # of a line that has no end yet
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        first, *lines = data.split(b"\n")
        self._begun.append(first)
        for line in lines:
            self._client.read_line(b"".join(self._begun))
            self._begun = [line]

    def connection_lost(self, exc: Exception | None) -> None:
        # the process has ended and all that it wrote is read
        assert self._transport is not None
        self._client.died(self._transport.get_returncode())
