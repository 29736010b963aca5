"""Each trust check by a hand-made case, and its silence on the clean one next to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
from samples import sample

from dstune.measure.client_health import ClientHealth
from dstune.measure.record import (
    VOIDING,
    Claim,
    HostLoad,
    Remark,
    RemarkCode,
    Repetition,
    SloCheck,
    is_trusted,
)
from dstune.measure.sample import Sample, SampleError, Status
from dstune.measure.server_metrics import Histogram, ServerMetrics
from dstune.stats.evidence import Evidence
from dstune.stats.metrics import Limit, Loop
from dstune.stats.trust import busy_remarks, check_trust, pooled_remarks

QUIET = HostLoad(foreign_cpu_share=0.01, steal_share=0.0, own_cpu_share=0.5)
HEALTHY = ClientHealth(
    process=0, cpu_s=3.0, wall_s=10.0, heartbeat_lag_p50_ns=100_000,
    heartbeat_lag_p99_ns=1_000_000, heartbeat_lag_max_ns=8_000_000, has_kernel_stamps=False,
)  # fmt: skip


def at_rate(
    num: int = 100, gap_ms: float = 20, ttft_ms: float = 50, late_ms: float = 0
) -> list[Sample]:
    """An open loop: a request every `gap_ms`, three tokens 10 ms apart, TTFT a little uneven."""
    made = []
    for at in range(num):
        sent = at * gap_ms + late_ms
        first = at * gap_ms + ttft_ms + at % 7
        one = sample(at * gap_ms, sent, [first, first + 10, first + 20])
        made.append(dataclasses.replace(one, request_id=f"r0-{at:05d}"))
    return made


def changed(samples: list[Sample], at: slice, **values: object) -> list[Sample]:
    """The same samples, those of a slice changed."""
    some = set(range(len(samples))[at])
    return [dataclasses.replace(one, **values) if number in some else one  # type: ignore[arg-type]
            for number, one in enumerate(samples)]  # fmt: skip


def slower(samples: list[Sample], at: slice, ttft_ms: float) -> list[Sample]:
    """The same samples, those of a slice with this TTFT from the intended time."""
    some = set(range(len(samples))[at])
    return [
        dataclasses.replace(one, first_token_ns=one.intended_ns + round(ttft_ms * 1e6))
        if number in some else one for number, one in enumerate(samples)
    ]  # fmt: skip


def clean(samples: Sequence[Sample] | None = None, **values: object) -> Evidence:
    kept = at_rate() if samples is None else samples
    ids = {one.request_id: one.prompt_tokens for one in kept}
    base = Evidence(kept, Loop.OPEN, planned_prompt_tokens=ids, asked_rate_per_s=50.0,
                    clients=(HEALTHY,), host=QUIET)  # fmt: skip
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]


def codes(evidence: Evidence) -> set[RemarkCode]:
    return {one.code for one in check_trust(evidence)}


def message(evidence: Evidence, code: RemarkCode) -> str:
    (found,) = [one.message for one in check_trust(evidence) if one.code is code]
    return found


def test_nothing_is_remarked_on_a_clean_repetition() -> None:
    assert check_trust(clean()) == ()


def test_nothing_is_remarked_on_no_samples_at_all() -> None:
    assert check_trust(Evidence((), Loop.OPEN, clients=(HEALTHY,))) == ()


def test_is_trusted_by_the_second_group_alone() -> None:
    harmless = [Remark(code=one, message="") for one in RemarkCode if one not in VOIDING]
    assert is_trusted(harmless)
    for code in VOIDING:
        assert not is_trusted([*harmless, Remark(code=code, message="")])
    listed = list(RemarkCode)
    assert set(listed[listed.index(RemarkCode.CLIENT_LAG) :]) == VOIDING


# the client


def health(p99_ms: float = 1, max_ms: float = 8, cpu: float = 0.3, kernel: bool = False,
           process: int = 0) -> ClientHealth:  # fmt: skip
    return ClientHealth(
        process, cpu * 10, 10.0, 0, round(p99_ms * 1e6), round(max_ms * 1e6), kernel
    )


@pytest.mark.parametrize(
    ("client", "fires"),
    [
        (health(p99_ms=2.0), False),  # 20% of the median gap of 10 ms, and not above
        (health(p99_ms=2.1), True),
        (health(p99_ms=9.9, kernel=True), False),
        (health(p99_ms=10.1, max_ms=12, kernel=True), True),
        (health(cpu=0.90), False),
        (health(cpu=0.91), True),
    ],
)
def test_client_lag(client: ClientHealth, fires: bool) -> None:
    assert codes(clean(clients=(client,))) == ({RemarkCode.CLIENT_LAG} if fires else set())


def test_client_lag_is_measured_against_slow_tokens_as_against_fast_ones() -> None:
    slow = [sample(at * 20, tokens_ms=[at * 20 + 50, at * 20 + 150]) for at in range(100)]
    assert codes(clean(slow, clients=(health(p99_ms=19),))) == set()
    assert RemarkCode.CLIENT_LAG in codes(clean(slow, clients=(health(p99_ms=21),)))


def test_client_lag_names_the_process_and_what_to_do() -> None:
    said = message(clean(clients=(health(), health(p99_ms=3, process=1))), RemarkCode.CLIENT_LAG)
    assert "load process 1 was 3.0 ms late" in said and "20% of the median ITL" in said
    assert "--processes" in said and "process 0" not in said


def test_schedule_lag_above_5_ms_or_a_tenth_of_ttft() -> None:
    busy = (health(max_ms=100),)
    assert codes(clean(at_rate(late_ms=4.9), clients=busy)) == set()
    assert codes(clean(at_rate(late_ms=6), clients=busy)) == {RemarkCode.SCHEDULE_LAG}
    # a median TTFT of 103 ms lets 10.3 ms pass
    assert codes(clean(at_rate(late_ms=10, ttft_ms=100), clients=busy)) == set()
    assert codes(clean(at_rate(late_ms=11, ttft_ms=100), clients=busy)) == {RemarkCode.SCHEDULE_LAG}


def test_a_late_connection_is_the_servers_doing() -> None:
    """50 of 100 sends wait 300 ms for a connection while the client's loop is on time."""
    waiting = changed(at_rate(), slice(0, 50))
    waiting = [dataclasses.replace(one, sent_ns=one.intended_ns + 300_000_000, first_token_ns=None)
               if at < 50 else one for at, one in enumerate(waiting)]  # fmt: skip
    assert RemarkCode.SCHEDULE_LAG not in codes(clean(waiting, clients=(health(max_ms=3),)))
    assert RemarkCode.SCHEDULE_LAG in codes(clean(waiting, clients=(health(max_ms=400),)))


def test_later_turns_and_closed_loops_have_no_schedule() -> None:
    late = at_rate(late_ms=30)
    busy = (health(max_ms=100),)
    assert codes(clean(changed(late, slice(None), turn=1), clients=busy)) == set()
    assert RemarkCode.SCHEDULE_LAG not in codes(clean(late, loop=Loop.CLOSED, clients=busy))


def test_the_offline_driver_is_not_blamed_for_the_engines_steps() -> None:
    assert codes(clean(at_rate(late_ms=30), clients=())) == set()


def test_rate_short_below_98_of_100() -> None:
    """Two of 100 may be late; the third makes it 97%."""
    end_late = round(3e9)  # after the schedule's 2 s
    for num, fires in ((2, False), (3, True)):
        late = changed(at_rate(), slice(-num, None), sent_ns=end_late, first_token_ns=None)
        evidence = clean(late, clients=(health(max_ms=5000),))
        assert (RemarkCode.RATE_SHORT in codes(evidence)) == fires
    assert "97 of 100" in message(evidence, RemarkCode.RATE_SHORT)
    assert "48.5 instead of 50 per second (50/s asked)" in message(evidence, RemarkCode.RATE_SHORT)


def test_rate_is_compared_with_the_drawn_schedule_not_with_the_asked_rate() -> None:
    """Chance drew 50/s where 60/s were asked, and all of it was sent."""
    assert codes(clean(asked_rate_per_s=60.0)) == set()


def test_refused_connections_are_not_the_clients_shortage() -> None:
    values = {"status": Status.FAILED, "sent_ns": None, "first_token_ns": None}
    refused = changed(at_rate(), slice(50, None), error=SampleError.CONNECT, **values)
    assert codes(clean(refused)) == {RemarkCode.FAILED_REQUESTS}
    waiting = {**values, "status": Status.TIMEOUT, "error": SampleError.DEADLINE}
    assert codes(clean(changed(at_rate(), slice(50, 60), **waiting))) == {
        RemarkCode.FAILED_REQUESTS
    }
    lost = changed(at_rate(), slice(50, 80), error=SampleError.INTERNAL, **values)
    assert RemarkCode.RATE_SHORT in codes(clean(lost))


def test_a_stop_cuts_a_schedule_and_does_not_shorten_its_rate() -> None:
    unsent = {"status": Status.UNSENT, "error": SampleError.STOPPED, "sent_ns": None,
              "first_token_ns": None, "last_token_ns": None, "done_ns": None}  # fmt: skip
    assert codes(clean(changed(at_rate(), slice(60, None), **unsent))) == set()
    # whereas those that were skipped in the middle are missing
    assert RemarkCode.RATE_SHORT in codes(clean(changed(at_rate(), slice(20, 60), **unsent)))


# the prefix cache


def cached(tokens: int, num: int = 100) -> list[Sample]:
    samples = changed(at_rate(), slice(None), prompt_tokens=100, cached_tokens=0)
    return changed(samples, slice(0, num), cached_tokens=tokens)


def test_prefix_contamination_beyond_a_block_per_request() -> None:
    assert codes(clean(cached(16))) == set()
    assert codes(clean(cached(18))) == set()  # 2 of each 100 tokens
    assert codes(clean(cached(19))) == {RemarkCode.PREFIX_CONTAMINATION}
    assert codes(clean(cached(64, num=4))) == set()  # an accident or two: 192 of 10,000 tokens
    said = message(clean(cached(64)), RemarkCode.PREFIX_CONTAMINATION)
    assert "48% of the prompt tokens (4,800 of 10,000, by the answers' cached_tokens)" in said


def test_a_prefix_that_is_shared_on_purpose_is_no_contamination() -> None:
    shared = {f"r0-{at:05d}": 64 for at in range(1, 100)}
    samples = changed(cached(64), slice(0, 1), cached_tokens=0)
    assert codes(clean(samples, planned_shared_tokens=shared)) == set()
    assert codes(clean(cached(90), planned_shared_tokens=shared)) == {
        RemarkCode.PREFIX_CONTAMINATION
    }


def test_blocks_may_be_larger() -> None:
    assert codes(clean(cached(64), block_tokens=64)) == set()


def counters(hits: float, queries: float) -> tuple[ServerMetrics, ServerMetrics]:
    names = ("prefix_cache_hits_total", "prefix_cache_queries_total")
    before = dict.fromkeys(names, 1000.0)
    after = dict(zip(names, (1000 + hits, 1000 + queries), strict=True))
    return ServerMetrics(before, {}), ServerMetrics(after, {})


def test_the_servers_counter_stands_in_where_answers_do_not_tell() -> None:
    samples = changed(at_rate(), slice(None), prompt_tokens=100)
    assert codes(clean(samples, server=counters(1800, 10_000))) == set()
    fired = clean(samples, server=counters(5000, 10_000))
    assert "by the server's counter" in message(fired, RemarkCode.PREFIX_CONTAMINATION)
    # hostile prompts may repeat each other: 50 of them, 100 tokens each
    hostile = changed(samples, slice(0, 50), kind="special_characters")
    assert codes(clean(hostile, server=counters(5000, 10_000))) == set()


# a cold start


@pytest.mark.parametrize("num_cold", [1, 3, 5])
def test_cold_start(num_cold: int) -> None:
    cold = clean(slower(at_rate(), slice(0, num_cold), 2000))
    assert codes(cold) == {RemarkCode.COLD_START}
    said = message(cold, RemarkCode.COLD_START)
    assert f"the first {num_cold} of 100 requests" in said and "TTFT up to 2,000 ms" in said


def test_no_cold_start_without_its_marks() -> None:
    few = at_rate(num=64)  # its median is 53 ms, and one request moves its p99
    assert codes(clean(slower(few, slice(0, 1), 105))) == set()  # not twice the median
    assert codes(clean(slower(few, slice(0, 1), 108))) == {RemarkCode.COLD_START}
    assert codes(clean(slower(at_rate(), slice(1, 3), 2000))) == set()  # the first is fast
    three = slower(at_rate(num=300), slice(0, 3), 2000)
    assert codes(clean(slower(three, slice(100, 103), 2100))) == set()  # it happens later, too
    assert codes(clean(slower(three, slice(100, 102), 2100))) == {RemarkCode.COLD_START}
    long = at_rate(num=1000)
    assert codes(clean(slower(long, slice(0, 1), 2000))) == set()  # p99 does not notice
    assert codes(clean(slower(long, slice(0, 20), 2000))) == {RemarkCode.COLD_START}
    assert codes(clean(slower(at_rate(num=20), slice(0, 1), 2000))) == set()  # too few to tell


def test_a_closed_loop_begins_with_a_burst() -> None:
    """64 at once, each 5 ms after the one before; then every 20 ms one at 50 ms."""
    burst = [sample(0, 0, [200 + 5 * at, 700 + 5 * at]) for at in range(64)]
    steady = [sample(700 + 20 * at, None, [750 + 20 * at, 800 + 20 * at]) for at in range(200)]
    loop = {"loop": Loop.CLOSED, "clients": (), "planned_prompt_tokens": {}}
    said = {RemarkCode.CLOSED_LOOP_HIDES_STALLS}
    assert codes(clean(burst + steady, **loop)) == said
    assert codes(clean(burst + steady, has_warmup=False, **loop)) == said | {RemarkCode.COLD_START}


def test_a_batch_is_nothing_but_a_burst() -> None:
    batch = [sample(0, 0, [50 if at > 5 else 5000]) for at in range(100)]
    assert codes(clean(batch, loop=Loop.BATCH, clients=())) == set()


def test_cold_start_has_few_false_alarms_on_uneven_latencies() -> None:
    """Log-normal TTFTs, sigma 0.6: the first is the slowest in 6 of 400 runs, never far out."""
    import numpy as np

    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(400):
        ttfts = 50 * np.exp(rng.normal(0, 0.6, 64))
        samples = [sample(at * 20, None, [at * 20 + ttft]) for at, ttft in enumerate(ttfts)]
        alarms += RemarkCode.COLD_START in codes(clean(samples))
    assert alarms <= 1


# the server's own account

BOUNDS_S = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, math.inf)


def histogram(values_s: Sequence[float], earlier: int = 0) -> Histogram:
    counts = tuple(earlier + sum(one <= bound for one in values_s) for bound in BOUNDS_S)
    return Histogram(BOUNDS_S, tuple(map(float, counts)), sum(values_s))


def told(values_s: Sequence[float]) -> tuple[ServerMetrics, ServerMetrics]:
    """Readings before and after; 7 earlier values lie in the first bucket."""
    name = "time_to_first_token_seconds"
    before = ServerMetrics({}, {name: histogram((), earlier=7)})
    return before, ServerMetrics({}, {name: histogram(values_s, earlier=7)})


def test_the_server_agrees_within_its_buckets() -> None:
    own = [0.049 + 0.001 * (at % 7) for at in range(100)]  # 1 ms faster than the client saw
    assert codes(clean(server=told(own))) == set()
    assert codes(clean(server=told([0.035] * 100))) == set()  # the bucket beside it
    assert codes(clean(server=told([0.09] * 100))) == {RemarkCode.TTFT_DISAGREES}


def test_ttft_disagrees_says_which_percentile_and_by_what() -> None:
    """The client waits 50 ms, the server says 8: 42 ms pass between the two."""
    said = message(clean(server=told([0.008] * 100)), RemarkCode.TTFT_DISAGREES)
    assert "p50 53.0 ms here, 0 to 10 ms there" in said and "accept queue" in said


def test_a_tail_that_only_the_client_saw_disagrees() -> None:
    frozen = at_rate(num=200)
    frozen = slower(frozen, slice(100, 110), 1900)
    assert codes(clean(frozen, server=told([0.05] * 200))) == {RemarkCode.TTFT_DISAGREES}
    both = [0.05] * 190 + [1.9] * 10
    assert codes(clean(frozen, server=told(both))) == set()


def test_the_last_bucket_has_no_upper_bound() -> None:
    slow = slower(at_rate(), slice(None), 60_000)
    assert codes(clean(slow, server=told([59.0] * 100))) == set()


def test_one_outlier_that_one_side_missed_moves_no_percentile_far() -> None:
    samples = slower(at_rate(num=64), slice(40, 41), 1900)
    assert codes(clean(samples, server=told([0.05] * 63))) == set()


def test_a_count_that_does_not_fit_is_a_finding() -> None:
    assert codes(clean(server=told([0.05] * 102))) == set()
    more = clean(server=told([0.05] * 120))
    assert "the server counted 120 first tokens, the client saw 100: other traffic" in message(
        more, RemarkCode.TTFT_DISAGREES
    )
    fewer = clean(server=told([0.05] * 50))
    assert "another server's" in message(fewer, RemarkCode.TTFT_DISAGREES)


def test_requests_without_a_token_here_may_have_had_one_there() -> None:
    """20 timed out before their first token, which the server made all the same."""
    late = changed(at_rate(), slice(0, 20), status=Status.TIMEOUT, error=SampleError.DEADLINE,
                   first_token_ns=None, last_token_ns=None)  # fmt: skip
    assert codes(clean(late, server=told([0.05] * 100))) == {RemarkCode.FAILED_REQUESTS}
    refused = changed(at_rate(), slice(0, 20), status=Status.REJECTED, first_token_ns=None,
                      last_token_ns=None)  # fmt: skip
    assert RemarkCode.TTFT_DISAGREES in codes(clean(refused, server=told([0.05] * 100)))


def test_a_server_that_was_restarted_or_has_no_metrics_says_nothing() -> None:
    empty = ServerMetrics({}, {})
    assert codes(clean(server=(empty, empty))) == set()
    before, after = told([0.09] * 100)
    assert codes(clean(server=(after, before))) == set()


# the host


@pytest.mark.parametrize(
    ("foreign", "steal", "expected"),
    [
        (0.10, 0.02, set()),
        (0.11, 0.0, {RemarkCode.BUSY_HOST}),
        (0.0, 0.03, {RemarkCode.BUSY_HOST}),
        (0.25, 0.05, {RemarkCode.BUSY_HOST}),
        (0.26, 0.0, {RemarkCode.HOST_CONTENDED}),
        (0.0, 0.06, {RemarkCode.HOST_CONTENDED}),
    ],
)
def test_the_host(foreign: float, steal: float, expected: set[RemarkCode]) -> None:
    host = HostLoad(foreign_cpu_share=foreign, steal_share=steal, own_cpu_share=0.5)
    assert codes(clean(host=host)) == expected


# the answers


def test_tokens_from_chunks_do_not_void() -> None:
    guessed = clean(changed(at_rate(), slice(0, 1), token_source="chunks"))
    assert codes(guessed) == {RemarkCode.TOKENS_FROM_CHUNKS}
    assert is_trusted(check_trust(guessed))
    assert codes(clean(changed(at_rate(), slice(0, 1), token_source="tokenizer"))) == set()


def test_multi_token_chunks_do_not_void() -> None:
    several = clean(changed(at_rate(), slice(0, 3), chunk_tokens=[1, 2, 1], output_tokens=4))
    assert codes(several) == {RemarkCode.MULTI_TOKEN_CHUNKS}
    assert "3 of 100 requests" in message(several, RemarkCode.MULTI_TOKEN_CHUNKS)


def test_failed_requests_above_1_percent_of_the_normal_ones() -> None:
    failed = {"status": Status.FAILED, "error": SampleError.RESET}
    assert codes(clean(changed(at_rate(), slice(0, 1), **failed))) == set()
    two = clean(changed(at_rate(), slice(0, 2), **failed))
    assert "2 of 100 requests did not end ok (2 reset)" in message(two, RemarkCode.FAILED_REQUESTS)
    assert is_trusted(check_trust(two))
    hostile = changed(at_rate(), slice(0, 2), kind="malformed_json", **failed)
    assert codes(clean(hostile)) == set()


def test_prompt_length_differs_by_more_than_5_percent() -> None:
    samples = changed(at_rate(), slice(None), prompt_tokens=105)
    planned = {one.request_id: 100 for one in samples}
    assert codes(clean(samples, planned_prompt_tokens=planned)) == set()
    samples = changed(samples, slice(0, 51), prompt_tokens=110)
    templated = clean(samples, planned_prompt_tokens=planned)
    assert codes(templated) == {RemarkCode.PROMPT_LENGTH_DIFFERS}
    assert "+10%" in message(templated, RemarkCode.PROMPT_LENGTH_DIFFERS)
    cut = changed(samples, slice(None), prompt_tokens=50)
    assert "-50%" in message(
        clean(cut, planned_prompt_tokens=planned), RemarkCode.PROMPT_LENGTH_DIFFERS
    )


def test_too_few_samples_for_the_slos_percentiles() -> None:
    limit = Limit("ttft_p99_ms", "ttft", 99, 0.2)
    said = message(clean(limits=(limit,)), RemarkCode.TOO_FEW_SAMPLES)
    assert "ttft_p99_ms 100 requests, 0 over, 299 needed" in said
    assert codes(clean(at_rate(num=298), limits=(limit,))) == {RemarkCode.TOO_FEW_SAMPLES}
    assert codes(clean(at_rate(num=299), limits=(limit,))) == set()
    # a promise that is plainly broken is decided
    assert codes(clean(limits=(Limit("ttft_p99_ms", "ttft", 99, 0.001),))) == set()
    assert codes(clean(limits=(Limit("itl_p99_ms", "itl", 99, 0.05),))) == set()


def test_every_closed_loop_says_what_it_cannot_see() -> None:
    said = message(clean(loop=Loop.CLOSED), RemarkCode.CLOSED_LOOP_HIDES_STALLS)
    assert "cannot see what a stall does" in said and "arrivals by rate" in said
    assert RemarkCode.CLOSED_LOOP_HIDES_STALLS not in VOIDING


# several repetitions


def repetition(number: int, *remarks: Remark, host: HostLoad | None = QUIET) -> Repetition:
    return Repetition(repetition=number, started_ns=0, finished_ns=1, num_requests=1, figures={},
                      host=host, remarks=remarks)  # fmt: skip


def test_remarks_of_a_trial_name_each_code_once() -> None:
    lag = Remark(code=RemarkCode.CLIENT_LAG, message="late; do this")
    closed = Remark(code=RemarkCode.CLOSED_LOOP_HIDES_STALLS, message="blind")
    found = pooled_remarks([repetition(0, closed), repetition(1, lag, closed),
                            repetition(2, lag, closed)])  # fmt: skip
    assert {one.code: one.message for one in found} == {
        RemarkCode.CLIENT_LAG: "2 of 3 repetitions, first in 1: late; do this",
        RemarkCode.CLOSED_LOOP_HIDES_STALLS: "blind",
    }


def test_samples_are_enough_or_not_over_all_repetitions() -> None:
    few = Remark(code=RemarkCode.TOO_FEW_SAMPLES, message="few")
    claimed = SloCheck(key="ttft_p99_ms", limit=200, measured=100, is_met=True, claim=Claim.PASS,
                       num_samples=300, num_over=0, num_needed=299)  # fmt: skip
    assert pooled_remarks([repetition(0, few), repetition(1, few)], [claimed]) == ()
    unclaimed = claimed.model_copy(update={"claim": Claim.INCONCLUSIVE, "num_samples": 200})
    (found,) = pooled_remarks([repetition(0, few), repetition(1, few)], [unclaimed])
    assert "ttft_p99_ms 200 requests, 0 over, 299 needed" in found.message
    assert pooled_remarks([repetition(0, few)]) == (few,)


def test_busy_and_contended_repetitions_are_counted() -> None:
    busy = HostLoad(foreign_cpu_share=0.2, steal_share=0.03, own_cpu_share=0.5)
    contended = HostLoad(foreign_cpu_share=0.4, steal_share=0.0, own_cpu_share=0.5)
    both = [repetition(0, host=busy), repetition(1, host=contended), repetition(2), repetition(3)]
    found = {one.code: one.message for one in pooled_remarks(both)}
    assert set(found) == {RemarkCode.BUSY_HOST, RemarkCode.HOST_CONTENDED}
    assert found[RemarkCode.BUSY_HOST].startswith("1 of 4 repetitions on a busy host: others")
    assert "up to 40% of the CPU" in found[RemarkCode.HOST_CONTENDED]
    (all_busy,) = busy_remarks(both)
    assert "2 of 4 repetitions" in all_busy.message and "up to 40%" in all_busy.message
    assert busy_remarks([repetition(0)]) == ()
