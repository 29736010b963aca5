"""The front process: HTTP on one side, the engine's process on the other; it computes nothing.

In the foreground (`serve`), it configures the engine once and goes on until a signal;
`steering.py` has it steered by a parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import gc
import json
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
import uvicorn
import uvloop

from dstune.errors import ExitCode, TargetError, UsageError
from dstune.knobs import KnobValue
from dstune.model.tokenizer import Tokenizer
from dstune.server.http.app import make_app
from dstune.server.http.ask import ModelFacts
from dstune.server.http.connection import Connection
from dstune.server.http.engine_client import ENGINE_COMMAND, EngineClient
from dstune.server.http.limits import Limits
from dstune.server.http.logs import AccessLog, App
from dstune.server.http.metrics import Metrics
from dstune.server.http.options import ServerOptions
from dstune.server.http.refusal import shutting_down
from dstune.server.http.service import RETRY_AFTER_S, Service, Serving

IDLE_WAIT_S = 5.0  # how long a configuration waits for live requests to end
POLL_S = 0.02
STALL_S = 60.0  # for a client to take at least a byte of an answer that waits for it
FAREWELL_S = 2.0  # for the last error bodies to reach their clients

_log = logging.getLogger("dstune.server")


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: the front drains before it closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def cut_all(self) -> None:
        """Ends every connection, whatever is still to be sent."""
        for connection in list(self.server_state.connections):
            cast("Connection", connection).transport.abort()


class Front:
    """An engine's process and the HTTP server before it."""

    def __init__(
        self, options: ServerOptions, engine_command: Sequence[str] = ENGINE_COMMAND
    ) -> None:
        self.options = options
        self.engine = EngineClient(self._stepped, self._idle, engine_command)
        self.service = Service(self.engine, Metrics(), options)
        self._facts: ModelFacts | None = None
        self._eos_ids: tuple[int, ...] = ()
        self._listener: Listener | None = None
        self._listening: asyncio.Task[None] | None = None

    def _stepped(self, step: Mapping[str, int]) -> None:
        self.service.metrics.observe_step(step)

    def _idle(self, num_free_blocks: int) -> None:
        self.service.metrics.observe_idle(num_free_blocks)

    async def open(
        self, model: str, weights: str, device: str, keeps_steps: bool, traces: bool = False
    ) -> dict[str, Any]:
        """Starts the engine's process with a model; returns its `opened` event."""
        await self.engine.start()
        command = {"op": "open", "model": model, "weights": weights, "device": device}
        opened: dict[str, Any] = json.loads(
            await self.engine.ask({**command, "keeps_steps": keeps_steps, "traces": traces})
        )
        described = msgspec.json.decode(await self.engine.ask({"op": "tokenizer"}))
        parts = described["tokenizer"]
        self._eos_ids = tuple(described["eos_ids"])
        self._facts = ModelFacts(
            name=opened["model"]["name"],
            max_model_len=opened["model"]["max_position"],
            vocab_size=opened["model"]["vocab_size"],
            tokenizer=None if parts is None else Tokenizer.from_parts(parts),
            created=int(time.time()),
        )
        self.service.metrics = Metrics(self._facts.name)
        return opened

    async def configure(self, knobs: Mapping[str, KnobValue]) -> dict[str, Any]:
        """Makes a configuration be in force; returns the engine's `configured` event.

        Most changes need an idle engine, so live requests get a while to end first.
        """
        assert self._facts is not None, "open comes first"
        await _wait_until(lambda: not self.engine.num_open, IDLE_WAIT_S)
        answer = await self.engine.ask({"op": "configure", "knobs": dict(knobs)})
        configured: dict[str, Any] = json.loads(answer)
        effective = configured["effective"]
        self.service.serving = Serving(
            model=dataclasses.replace(self._facts, max_model_len=effective["max_model_len"]),
            eos_ids=self._eos_ids,
            precision=effective["precision"],
            backend=effective["backend"],
            max_num_seqs=effective["max_num_seqs"],
        )
        self.service.metrics.set_capacity(configured["num_blocks"])
        return configured

    async def listen(self, has_access_log: bool) -> str:
        """Begins to take connections; returns the URL."""
        _allow_connections()
        listening = bind(self.options.host, self.options.port)
        app: App = Limits(make_app(self.service), self.options, lambda: self.service.load)
        if has_access_log:
            app = AccessLog(app)
        config = uvicorn.Config(
            app,
            http=partial(  # type: ignore[arg-type]
                Connection, head_timeout_s=self.options.body_timeout_s, stall_timeout_s=STALL_S
            ),
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(self.options.keep_alive_s),
            timeout_graceful_shutdown=int(FAREWELL_S),
        )
        self._listener = Listener(config)
        self._listening = asyncio.create_task(self._listener.serve(sockets=[listening]))
        gc.freeze()  # to search all that was imported for garbage would stall streams for 20 ms
        while not self._listener.started:
            if self._listening.done():
                self._listening.result()
            await asyncio.sleep(0.001)
        host, port = listening.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def drain_and_stop(self) -> None:
        """Takes no new requests, lets those under way end for a while, and ends the rest."""
        self.service.is_draining = True
        await _wait_until(lambda: not self.service.num_flights, self.options.drain_s)
        if self.service.num_flights:
            _log.warning("%d requests did not end in time", self.service.num_flights)
        self.service.end_all(shutting_down(RETRY_AFTER_S))
        await _wait_until(lambda: not self.service.num_flights, FAREWELL_S)
        if self._listener is not None and self._listening is not None:
            if self.service.num_flights:  # of clients that do not read
                self._listener.cut_all()
            self._listener.should_exit = True
            await self._listening
        self.engine.stop()


async def _wait_until(is_true: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true() and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)


def _allow_connections() -> None:
    """As many open files as this process may have: each client is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `UsageError` where the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        hint = "; choose another with --port, or any free one with --port 0" if is_taken else ""
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}{hint}") from None
    return made


def serve(
    options: ServerOptions,
    model: str,
    weights: str,
    device: str,
    knobs: Mapping[str, KnobValue],
    on_ready: Callable[[str], None] = lambda url: None,
) -> int:
    """Serves in the foreground until SIGTERM or SIGINT, then drains; returns the exit code.

    `on_ready` gets the URL once requests are taken. Raises what `open` and `configure` raise.
    """
    return uvloop.run(_serve(Front(options), (model, weights, device), knobs, on_ready))


async def _serve(
    front: Front,
    model: tuple[str, str, str],
    knobs: Mapping[str, KnobValue],
    on_ready: Callable[[str], None],
) -> int:
    stopped = stop_signals()
    waiting = asyncio.create_task(stopped.wait())
    starting = asyncio.create_task(_start(front, model, knobs))
    try:
        await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # stopped before there was anything to drain
            return ExitCode.PASS
        on_ready(starting.result())
        gone = asyncio.create_task(front.engine.gone.wait())
        await asyncio.wait((gone, waiting), return_when=asyncio.FIRST_COMPLETED)
        death = front.engine.death
        await front.drain_and_stop()
        if death is not None:  # whoever supervises this process can start it again
            raise TargetError(death)
    finally:
        front.engine.stop()
    return ExitCode.PASS


async def _start(front: Front, model: tuple[str, str, str], knobs: Mapping[str, KnobValue]) -> str:
    await front.open(*model, keeps_steps=False)
    await front.configure(knobs)
    return await front.listen(has_access_log=True)


def stop_signals() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop(number: int) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return stopped
