"""Load client: the Locust user that `loadtests/*.py` are made of.

Started by dstune (`--dstune-fd`) it serves dstune's plans. Started by plain `locust` it is a
closed loop: each user sends, waits for the whole answer, waits `--think-s`, and sends again.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any

from gevent import GreenletExit
from locust import User, events, task
from locust.runners import WorkerRunner

from dstune.errors import TargetError
from dstune.load.client.command import FD_OPTION, PROCESS_OPTION
from dstune.load.client.control import Control
from dstune.load.client.samples import e2e_ms, tpot_ms, ttft_ms
from dstune.load.client.standalone import Sender, body, discover_model, prompts
from dstune.measure.sample import Sample, Status

METHOD = "POST"
DRAIN_S = 60.0  # after a run ends; Locust's own default kills answers in flight without a record


class LoadUser(User):
    """Serves dstune, or is one of Locust's users; subclasses say what they ask for."""

    abstract = True
    path = ""
    prompt_words = 0
    output_tokens = 0
    _sender: Sender | None = None
    _prompts: Any = None

    @classmethod
    def forget(cls) -> None:
        """Closes what was opened for the host of the run before."""
        if cls._sender is not None:
            cls._sender.close()
        cls._sender = cls._prompts = None

    def wait_time(self) -> float:
        """Seconds between an answer and the next request."""
        return float(self.environment.parsed_options.think_s)

    @task
    def load(self) -> None:
        """Carries out plans until told to quit, or sends one request."""
        fd = self.environment.parsed_options.dstune_fd
        if fd is None:
            self._send_one()
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent to act on
        Control(fd, self._fire).serve()

    def _send_one(self) -> None:
        options = self.environment.parsed_options
        own = type(self)
        num_words = options.prompt_words or own.prompt_words
        if own._sender is None or own._prompts is None:
            worker = getattr(self.environment.runner, "worker_index", 0)
            own._prompts = prompts(worker, num_words)
            own._sender = Sender(self.environment.host, self.path, _headers(options))
        asked = body(
            self.path,
            options.model,
            next(own._prompts),
            options.output_tokens or own.output_tokens,
        )
        try:
            row = own._sender.send(asked, num_words)
        except GreenletExit:
            self._fire_request(0.0, 0, "incomplete: stopped")
            raise
        self._fire(row)
        if row.status is Status.OK:
            for name, value in (("TTFT", ttft_ms(row)), ("TPOT", tpot_ms(row))):
                if value is not None:
                    self._fire_metric(name, value)

    def _fire(self, row: Sample) -> None:
        """One event per finished request, so that Locust's own statistics and web UI work."""
        error = None if row.status is Status.OK else f"{row.status.value}: {row.error.value}"
        self._fire_request(e2e_ms(row) or 0.0, row.output_tokens, error)

    def _fire_request(self, took_ms: float, num_tokens: int, error: str | None) -> None:
        self.environment.events.request.fire(
            request_type=METHOD,
            name=self.path,
            response_time=took_ms,
            response_length=num_tokens,
            exception=error,
            context={},
        )

    def _fire_metric(self, name: str, took_ms: float) -> None:
        self.environment.events.request.fire(
            request_type=name,
            name=self.path,
            response_time=took_ms,
            response_length=0,
            exception=None,
            context={},
        )


def _headers(options: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}


def _add_options(parser: Any, **_: object) -> None:
    add = parser.add_argument
    add(FD_OPTION, type=int, include_in_web_ui=False, help="a socket, given by dstune")
    add(PROCESS_OPTION, type=int, default=0, include_in_web_ui=False, help="given by dstune")
    add("--model", default="", help="model to ask for (default: the first at /v1/models)")
    add("--prompt-words", type=int, default=0, help="words of each prompt (0: the file's)")
    add("--output-tokens", type=int, default=0, help="max_tokens of each request (0: the file's)")
    add("--think-s", type=float, default=0.0, help="seconds between an answer and the next request")
    add(
        "--api-key",
        default="",
        env_var="OPENAI_API_KEY",
        include_in_web_ui=False,
        help="sent as a bearer token",
    )


def _is_standalone(environment: Any) -> bool:
    return environment.parsed_options.dstune_fd is None


def _check_host(environment: Any) -> None:
    """Finds the model, so that a wrong host shows at once and not as a run of failures."""
    options = environment.parsed_options
    if not environment.host:
        raise TargetError("no host: give --host URL")
    found = discover_model(environment.host, _headers(options))
    options.model = options.model or found


def _on_init(environment: Any, **_: object) -> None:
    if not _is_standalone(environment):
        return
    environment.stop_timeout = environment.stop_timeout or DRAIN_S
    is_told_later = environment.web_ui is not None or isinstance(environment.runner, WorkerRunner)
    if is_told_later and not environment.host:
        return  # by the web UI, or by the master
    try:
        _check_host(environment)
    except TargetError as error:
        sys.exit(f"locust: {error}")


def _on_test_start(environment: Any, **_: object) -> None:
    for user_class in environment.user_classes:
        user_class.forget()  # host and lengths may have changed
    if _is_standalone(environment):
        try:
            _check_host(environment)
        except TargetError as error:
            logging.getLogger(__name__).error("%s", error)
            environment.process_exit_code = 1
            environment.runner.quit()


def _on_quitting(environment: Any, **_: object) -> None:
    """A run in which nothing was completed has failed, whatever else was counted."""
    if not _is_standalone(environment) or isinstance(environment.runner, WorkerRunner):
        return
    entries = [one for key, one in environment.stats.entries.items() if key[1] == METHOD]
    if entries and not any(one.num_requests > one.num_failures for one in entries):
        environment.process_exit_code = 1
    if not entries and environment.parsed_options.headless:
        environment.process_exit_code = 1


_hooks: Any = events
_hooks.init_command_line_parser.add_listener(_add_options)
_hooks.init.add_listener(_on_init)
_hooks.test_start.add_listener(_on_test_start)
_hooks.quitting.add_listener(_on_quitting)
