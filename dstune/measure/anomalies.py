"""Measure: the hostile requests that a load test mixes in, and what counts as handling each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dstune.measure.sample import Sample, Status


class Anomaly(StrEnum):
    """The kinds of hostile request, as `Sample.kind` spells them."""

    OVERLONG_TEXT = "overlong_text"
    SPECIAL_CHARACTERS = "special_characters"  # NUL, bidi, zero-width, emoji, RTL, control
    LONE_SURROGATE = "lone_surrogate"
    EMPTY_PROMPT = "empty_prompt"
    ZERO_MAX_TOKENS = "zero_max_tokens"
    HUGE_MAX_TOKENS = "huge_max_tokens"
    MALFORMED_JSON = "malformed_json"
    WRONG_TYPES = "wrong_types"
    SLOW_READER = "slow_reader"
    DISCONNECT = "disconnect"
    DUPLICATE_ID = "duplicate_id"


HANDLED_TARGET = 0.999
"""The share of hostile requests that have to be handled."""


@dataclass(frozen=True)
class Outcome:
    """A way to end that counts as handled; `http_status` empty: any."""

    status: Status
    http_status: frozenset[int] = frozenset()


_REFUSED = Outcome(Status.REJECTED, frozenset({400, 413, 422}))
_ANSWERED = Outcome(Status.OK)

EXPECTED: Mapping[Anomaly, tuple[Outcome, ...]] = {
    # a server may be configured to truncate
    Anomaly.OVERLONG_TEXT: (_REFUSED, _ANSWERED),
    Anomaly.SPECIAL_CHARACTERS: (_ANSWERED,),
    Anomaly.LONE_SURROGATE: (_REFUSED, _ANSWERED),  # answered: replaced by U+FFFD
    Anomaly.EMPTY_PROMPT: (_REFUSED,),
    Anomaly.ZERO_MAX_TOKENS: (_REFUSED,),
    # clipped to the context length, or refused
    Anomaly.HUGE_MAX_TOKENS: (_REFUSED, _ANSWERED),
    Anomaly.MALFORMED_JSON: (_REFUSED,),
    Anomaly.WRONG_TYPES: (_REFUSED,),
    Anomaly.SLOW_READER: (_ANSWERED,),
    Anomaly.DISCONNECT: (Outcome(Status.CANCELLED),),
    # ids are the server's own business: both requests are answered, or the second is refused
    Anomaly.DUPLICATE_ID: (_ANSWERED, Outcome(Status.REJECTED, frozenset({400, 409}))),
}
"""What each kind may end with; anything else, above all a 5xx or a reset, is not handled."""


def is_as_expected(sample: Sample) -> bool:
    """Whether an anomalous request ended in one of the ways that its kind allows.

    A disconnect that was refused before it could hang up counts by the same table. Raises
    `ValueError` for a normal request.
    """
    return any(
        sample.status is one.status
        and (not one.http_status or sample.http_status in one.http_status)
        for one in EXPECTED[Anomaly(sample.kind)]
    )
