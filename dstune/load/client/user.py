"""Load client: the Locust user that `loadtests/*.py` are made of."""

from __future__ import annotations

import signal
from typing import Any

from locust import User, events, task

from dstune.load.client.command import FD_OPTION, PROCESS_OPTION
from dstune.load.client.control import Control
from dstune.load.client.samples import e2e_ms
from dstune.measure.sample import Sample, Status


@events.init_command_line_parser.add_listener
def _add_options(parser: Any, **_: object) -> None:
    parser.add_argument(FD_OPTION, type=int, include_in_web_ui=False)
    parser.add_argument(PROCESS_OPTION, type=int, default=0, include_in_web_ui=False)


class LoadUser(User):  # type: ignore[misc]
    """Serves dstune's plans where dstune started this process."""

    abstract = True
    path = ""

    @task  # type: ignore[misc]
    def load(self) -> None:
        """Carries out plans until told to quit."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent to act on
        Control(self.environment.parsed_options.dstune_fd, self._fire).serve()

    def _fire(self, row: Sample) -> None:
        """One event per finished request, so that Locust's own statistics and web UI work."""
        error = None if row.status is Status.OK else f"{row.status.value}: {row.error.value}"
        self.environment.events.request.fire(
            request_type="POST",
            name=self.path,
            response_time=e2e_ms(row) or 0.0,
            response_length=row.output_tokens,
            exception=error,
            context={},
        )
