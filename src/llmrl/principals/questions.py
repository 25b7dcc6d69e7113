"""What a principal that reads and its questions share: who asks for what, and which hints are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ParameterSpace
from llmrl.llms.prompts import Prompt
from llmrl.principals.history import History, Record
from llmrl.principals.reading import Reading

TOLD = 8
"""Numbers out of bounds that a reply is told of."""


@dataclass(frozen=True)
class Asked:
    """What one question asks for.

    Attributes:
        context: name of the context; None where there are none.
        proposal, proposals: it is number `proposal` (from 1) of the `proposals` of its step.
        together: the reply is to hold this many vectors.
        iteration: questions of earlier steps.
    """

    context: str | None = None
    proposal: int = 1
    proposals: int = 1
    together: int = 1
    iteration: int = 0


@dataclass(frozen=True)
class Hints:
    """What a model is told about the search.

    Attributes:
        step_size: by how much to change numbers when exploring; None: nothing.
        optimum: the best payoff there can be, about; None: nothing.
    """

    step_size: float | None = None
    optimum: float | None = None


class Questions(Protocol):
    """How a principal is asked for vectors of one kind of space, and how its answers are read.

    `purpose` stands in the call log.
    """

    purpose: str
    space: ParameterSpace

    def render(self, asked: Asked, history: History, shown: Sequence[Record], selection: str | None) -> Prompt:
        """The question, with the records `shown`; `selection` says which these are, None: all."""
        ...

    def schema(self, n: int) -> dict[str, Any] | None:
        """JSON schema of a reply with `n` vectors; None where it is free text."""
        ...

    def read(self, text: str, n: int) -> Reading:
        """The `n` vectors of a reply, as it gives them; raises InvalidReply."""
        ...

    def repair(self, fault: str, n: int) -> Prompt:
        """What follows on an invalid reply that should have held `n` vectors."""
        ...


def refuse_for_mechanism(settings: dict[str, Any]) -> None:
    """Raise ConfigError if one of `settings`, which are about policy parameters, was chosen."""
    for name, value in settings.items():
        if value is not None:
            raise ConfigError(
                f"principal.{name}={value} is for the parameters of a policy (agent=linear, ...), not for the numbers "
                "of a mechanism; leave it as it is in conf/principal/llm.yaml"
            )


def first_faults(faults: str) -> str:
    """The first few of several faults with semicolons between them."""
    listed = faults.split("; ")
    more = f"; and {len(listed) - TOLD} more" if len(listed) > TOLD else ""
    return "; ".join(listed[:TOLD]) + more
