"""Every odd answer, through a real load process: status, error, tokens and times of each.

Truth is the scripted server's own record of when it wrote what. On loopback the kernel stamps a
receive within the send that caused it (a busy kernel puts it off now and then), so a stamp lies
within that write, however busy client and server are.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import pytest
from load_child import Child, ask, plan, request

from dstune.load.wire import Reading
from dstune.measure.sample import Sample, SampleError, Status

TOKENS = 16
CLOCKS_NS = 200_000  # what reading the two clocks apart may cost
OK, FAILED, REJECTED, TIMEOUT = Status.OK, Status.FAILED, Status.REJECTED, Status.TIMEOUT
E = SampleError


@dataclass(frozen=True)
class Want:
    """What a mode must become. `chunks` None: one per token; `steps`: which write of the server
    completed each chunk, as a slice; None where that is not one for one."""

    status: Status = OK
    error: SampleError = E.NONE
    http: int | None = 200
    output: int = TOKENS
    chunks: list[int] | None = None
    source: str = "usage"
    steps: tuple[int, int, int] | None = (0, TOKENS, 1)


HALF = (0, TOKENS // 2, 1)
PAIRS = (1, 2 * TOKENS, 2)
CUT = {"output": TOKENS // 2, "source": "chunks", "steps": HALF}


def nothing(status: Status, error: SampleError, http: int | None) -> Want:
    return Want(status, error, http, output=0, chunks=[], source="chunks", steps=None)


WANTED = {
    "plain": Want(),
    "role_first": Want(steps=(2, 2 + TOKENS, 1)),
    "reasoning_content": Want(),
    "reasoning": Want(),
    "error_event": Want(FAILED, E.ERROR_EVENT, **CUT),
    "no_done": Want(),
    "no_finish_no_done": Want(FAILED, E.TRUNCATED),
    "split_utf8": Want(steps=PAIRS),
    "split_event": Want(steps=PAIRS),
    "split_blank_line": Want(steps=PAIRS),
    "crlf": Want(),
    "cr": Want(),
    "no_space": Want(),
    "comments": Want(),
    "lines": Want(),
    # the event that could not be read was a token's
    "bad_json": Want(FAILED, E.MALFORMED, steps=None),
    "html": nothing(FAILED, E.MALFORMED, 200),
    "garbage": nothing(FAILED, E.MALFORMED, 200),
    "not_http": nothing(FAILED, E.MALFORMED, None),
    "empty": nothing(FAILED, E.NO_TOKENS, 200),
    "no_tokens": nothing(FAILED, E.NO_TOKENS, 200),
    "bad_request": nothing(REJECTED, E.BAD_REQUEST, 400),
    "prompt_too_long": nothing(REJECTED, E.PROMPT_TOO_LONG, 400),
    "unauthorized": nothing(REJECTED, E.UNAUTHORIZED, 401),
    "too_large": nothing(REJECTED, E.BAD_REQUEST, 413),
    "rate_limited": nothing(REJECTED, E.RATE_LIMITED, 429),
    "server_error": nothing(FAILED, E.SERVER_ERROR, 500),
    "queue_full": nothing(REJECTED, E.QUEUE_FULL, 503),
    "past_deadline": nothing(TIMEOUT, E.DEADLINE, 504),
    "reset": Want(FAILED, E.RESET, **CUT),
    "fin": Want(FAILED, E.RESET, **CUT),
    "hang_after_done": Want(),
    "until_closed": Want(),
    "torn_terminator": Want(),
    "not_streamed": Want(chunks=[TOKENS], steps=(0, 1, 1)),
}


def run_one(client: Child, url: str, mode: str, **given: object) -> tuple[Sample, list[list[int]]]:
    """One request in a mode, and the server's record of it."""
    is_chat = "reasoning" in mode or mode == "role_first"
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    asked = request(0, {"mode": mode, "tokens": TOKENS}, **given)
    ask(url, "/written", {})
    (sample,) = client.run(plan(url, [asked], path=path)).samples
    return sample, ask(url, "/written", {})["0"][1:]


@pytest.mark.parametrize("mode", WANTED)
def test_an_odd_answer_has_its_defined_sample(client: Child, server: str, mode: str) -> None:
    want = WANTED[mode]
    sample, written = run_one(client, server, mode)
    assert (sample.status, sample.error) == (want.status, want.error)
    assert sample.http_status == want.http
    assert sample.token_source == want.source
    assert sample.output_tokens == sum(sample.chunk_tokens) == want.output
    if mode != "bad_json":
        assert sample.chunk_tokens == ([1] * want.output if want.chunks is None else want.chunks)
    assert sample.prompt_tokens == (7 if want.source == "usage" else 5)
    assert (sample.process, sample.session_id, sample.turn) == (0, "", 0)
    assert sample.sent_ns is not None and sample.done_ns is not None
    assert sample.intended_ns <= sample.sent_ns <= sample.done_ns
    if not want.output:
        assert sample.first_token_ns is None and sample.last_token_ns is None
        return
    stamps = [sample.sent_ns + offset for offset in sample.chunk_offsets_ns]
    assert (sample.first_token_ns, sample.last_token_ns) == (stamps[0], stamps[-1])
    if want.steps is not None:
        late_ns = []
        for stamp, (before, after) in zip(stamps, written[slice(*want.steps)], strict=True):
            assert stamp >= before - CLOCKS_NS
            late_ns.append(stamp - after)
        assert statistics.median(late_ns) <= CLOCKS_NS
    if mode not in ("not_streamed",):
        span_ns = (want.output - 1) * 10_000_000
        # the script never writes early, so TTFT and the last token are never early either
        assert sample.first_token_ns - sample.sent_ns >= 50_000_000 - CLOCKS_NS
        assert sample.last_token_ns - sample.sent_ns >= 50_000_000 + span_ns - CLOCKS_NS


@pytest.mark.parametrize("mode", ["four_per_chunk", "four_in_first"])
@pytest.mark.parametrize("has_ids", [True, False])
def test_tokens_of_chunks_that_carry_several(
    client: Child, server: str, mode: str, has_ids: bool
) -> None:
    asked = request(0, {"mode": mode, "tokens": TOKENS})
    body = asked.body[:-1] + (b', "return_token_ids": true}' if has_ids else b"}")
    asked = request(0, body=body)
    (sample,) = client.run(plan(server, [asked])).samples
    first, *others = [4] * 4 if mode == "four_per_chunk" else [4] + [1] * 12
    assert sample.status is OK
    assert len(sample.chunk_tokens) == 1 + len(others)
    assert sample.output_tokens == sum(sample.chunk_tokens) == TOKENS
    if has_ids:
        assert sample.chunk_tokens == [first, *others]
        assert sample.first_token_ns is not None and sample.last_token_ns is not None
        # TPOT by its definition: 10 ms, where dividing by n - 1 would say 8
        tpot_ns = (sample.last_token_ns - sample.first_token_ns) / (TOKENS - first)
        lateness = max(ask(server, "/lateness", {}))
        assert abs(tpot_ns - 10_000_000) <= (lateness + CLOCKS_NS) / (TOKENS - first)


def test_without_usage_chunks_are_counted(client: Child, server: str) -> None:
    asked = request(0, body=b'{"script": {"tokens": 16}}')
    (sample,) = client.run(plan(server, [asked])).samples
    assert (sample.status, sample.output_tokens, sample.token_source) == (OK, TOKENS, "chunks")
    assert sample.prompt_tokens == 5  # as planned


def test_what_the_server_tells_of_itself_is_kept(client: Child, server: str) -> None:
    sample, _ = run_one(client, server, "plain")
    assert (sample.cached_tokens, sample.queue_ns) == (3, 1_000_000)
    assert (sample.precision, sample.backend) == ("fp32", "scripted")


@pytest.mark.parametrize("mode", ["hang", "forever"])
def test_a_stream_without_an_end_times_out(client: Child, server: str, mode: str) -> None:
    asked = request(0, {"mode": mode, "tokens": TOKENS, "itl_ms": 2})
    (sample,) = client.run(plan(server, [asked], timeout_s=0.6)).samples
    assert (sample.status, sample.error) == (TIMEOUT, E.DEADLINE)
    assert sample.done_ns is not None and sample.done_ns - sample.intended_ns >= 600_000_000
    assert sample.output_tokens == 8 if mode == "hang" else sample.output_tokens > TOKENS


def test_nobody_listens(client: Child) -> None:
    (sample,) = client.run(plan("http://127.0.0.1:9", [request()])).samples
    assert (sample.status, sample.error, sample.sent_ns) == (FAILED, E.CONNECT, None)
    assert sample.http_status is None and sample.done_ns is not None


def test_a_host_that_does_not_exist(client: Child) -> None:
    (sample,) = client.run(plan("http://no-such-host.invalid:80", [request()])).samples
    assert (sample.status, sample.error) == (FAILED, E.CONNECT)


def test_a_slow_reader_ends_ok_and_late(client: Child, server: str) -> None:
    script = {"tokens": 64, "ttft_ms": 1, "itl_ms": 0.01}
    asked = [request(0, script), request(1, script, reading=Reading.SLOW)]
    prompt, slow = client.run(plan(server, asked)).samples
    assert (prompt.status, slow.status, slow.output_tokens) == (OK, OK, 64)
    assert prompt.last_token_ns is not None and slow.last_token_ns is not None
    # some 9 kB, 512 bytes in 25 ms
    assert slow.last_token_ns - slow.intended_ns > 300_000_000
    assert prompt.last_token_ns < slow.last_token_ns


def test_hanging_up_after_the_first_token(client: Child, server: str) -> None:
    sample, _ = run_one(client, server, "plain", reading=Reading.HANG_UP)
    assert (sample.status, sample.error) == (Status.CANCELLED, E.DISCONNECTED)
    assert 1 <= sample.output_tokens < TOKENS


def test_hanging_up_on_a_refusal_is_a_refusal(client: Child, server: str) -> None:
    sample, _ = run_one(client, server, "queue_full", reading=Reading.HANG_UP)
    assert (sample.status, sample.error) == (REJECTED, E.QUEUE_FULL)


def test_a_body_larger_than_the_buffers_is_sent_whole(client: Child, server: str) -> None:
    large = request().body[:-1] + b', "padding": "' + b"x" * 3_000_000 + b'"}'
    (sample,) = client.run(plan(server, [request(body=large)])).samples
    assert sample.status is OK


def test_a_refusal_before_the_body_was_read_is_a_refusal(client: Child, server: str) -> None:
    large = request().body[:-1] + b', "padding": "' + b"x" * 8_000_000 + b'"}'
    asked = [request(i, body=large) for i in range(8)]
    for sample in client.run(plan(server, asked, path="/early")).samples:
        assert (sample.status, sample.error) == (REJECTED, E.BAD_REQUEST)
        assert sample.http_status == 413


def test_connections_are_kept_between_requests(client: Child, server: str) -> None:
    few = [request(i, {"tokens": 2, "ttft_ms": 1, "itl_ms": 1}) for i in range(20)]
    before = ask(server, "/connections", {})
    client.run(plan(server, few, concurrency=2))
    assert ask(server, "/connections", {}) - before <= 2 + 1  # with the one that asks


@pytest.mark.parametrize("mode", ["then_closed", "one_per_connection"])
def test_a_server_that_closes_idle_connections_fails_no_request(
    client: Child, server: str, mode: str
) -> None:
    script = {"mode": mode, "tokens": 2, "ttft_ms": 1, "itl_ms": 1}
    asked = [request(i, script, offset_ns=None) for i in range(40)]
    samples = client.run(plan(server, asked, concurrency=2)).samples
    assert {(one.status, one.output_tokens) for one in samples} == {(OK, 2)}


def test_all_modes_at_once_disturb_each_other_in_nothing(client: Child, server: str) -> None:
    modes = [mode for mode in WANTED for _ in range(4)]
    asked = [request(i, {"mode": m, "tokens": TOKENS}) for i, m in enumerate(modes)]
    samples = client.run(plan(server, asked)).samples
    assert [one.request_id for one in samples] == [one.request_id for one in asked]
    for mode, sample in zip(modes, samples, strict=True):
        want = WANTED[mode]
        assert (mode, sample.status, sample.error) == (mode, want.status, want.error)
        assert sample.chunk_offsets_ns == sorted(sample.chunk_offsets_ns)
