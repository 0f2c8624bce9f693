"""What clients that parse structured output ask the built-in model for."""

from typing import Literal

import pydantic


class Dot(pydantic.BaseModel, extra="forbid"):
    color: Literal["red", "green"]


class Picture(pydantic.BaseModel, extra="forbid"):
    """What the built-in model would never say by itself, and short: every answer is whole. Anthropic's client tells the
    server no bounds of numbers, only those of enumerations."""

    row: Literal[1, 2, 3]
    dot: Dot
    is_final: bool
