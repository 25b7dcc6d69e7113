"""What is read in a reply to a question for numbers, and the forms that such replies are asked for in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class OneProposal(BaseModel):
    """The reply to a question for one vector."""

    reasoning: str = ""
    params: list[Finite]


class SeveralProposals(BaseModel):
    """The reply to a question for several vectors at once."""

    reasoning: str = ""
    proposals: list[list[Finite]]


@dataclass(frozen=True)
class ParsedReply:
    """What a reply says.

    Attributes:
        vectors: the proposals, [n, d].
        reasoning: why, in the model's words.
        moved: numbers that were out of bounds and have been put inside.
    """

    vectors: np.ndarray
    reasoning: str = ""
    moved: int = 0
