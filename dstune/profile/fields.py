"""Part of profile: the kinds of value and of error that every section is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from dstune.profile.durations import parse_duration

MOST = 1 << 24

Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]
Seconds = Annotated[float, BeforeValidator(lambda value: _seconds(value))]
"""A length of time as `parse_duration` reads it."""


def problem(key: str, message: str) -> PydanticCustomError:
    """An error at `key` below the object that is being validated."""
    return problems([(key, message)])


def problems(found: list[tuple[str, str]]) -> PydanticCustomError:
    """Several errors of one object, each with its key."""
    message = "; ".join(f"{key}: {what}" for key, what in found)
    return PydanticCustomError("dstune", "{message}", {"message": message, "problems": found})


class Record(BaseModel):
    """What every part of a profile is: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _seconds(value: object) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise problem("", str(error)) from None
