"""Part of profile: the one spelling of a length of time, `90s`, `10m`, `1h30m`."""

from __future__ import annotations

import math
import re

_PARTS = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_SECONDS = (3600.0, 60.0, 1.0)


def parse_duration(value: object) -> float:
    """Seconds of `90s`, `10m`, `1h30m`, or of a plain number; raises `ValueError` otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and value and (match := _PARTS.fullmatch(value.strip())):
        parts = zip(match.groups(), _SECONDS, strict=True)
        seconds = sum(float(part) * unit for part, unit in parts if part is not None)
    else:
        raise ValueError(f"must be a time such as 90s, 10m or 1h30m, not {value!r}")
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"must be longer than nothing, not {value!r}")
    return seconds
