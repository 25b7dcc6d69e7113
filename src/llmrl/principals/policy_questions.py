"""How a model is asked for the parameters of a policy, and how its answer is read (ProPS, arXiv 2511.21928)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Controller
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, Prompts
from llmrl.llms.structured import json_schema
from llmrl.principals.history import History, Record
from llmrl.principals.questions import Asked, Hints
from llmrl.principals.reading import OneProposal, Reading, SeveralProposals, read_numbers

logger = logging.getLogger(__name__)

FAMILY = "search"
FOLDER = Path(__file__).with_name("search_prompts")

Rows = Literal["compact", "named"]
Reply = Literal["json", "lines"]


class PolicyQuestions:
    """The numbers, the rules of the search and what was tried so far: `numeric` tells nothing else, `described` what
    the game and the policy are, both generated from what the environment and the policy say of themselves.

    All that stays the same from one question to the next comes first and the same, byte for byte, so that providers can
    keep it; a table that only grows is part of that. What changes, the iteration, comes last.

    Args:
        spec: the environment.
        controller: the policy; `layout`, if it has that, says in words what its numbers are.
        prompt: `numeric`, `described` or one of the user's own; None is `described`.
        prompt_folder: a user's own prompts, in `search/`; None: there are none.
        observations: show the standard error and what else was measured beside each return.
        hints: what is told about the search.
        rows: `compact` rows, `[1, -2.5] -> 123.45`, or `named` ones as published, `params[0]: 1; ...`.
        reply: what is asked for: a `json` object, or two `lines` as published (numbers, then the reason).
        count_from: number of the first iteration.
        told_iterations: iterations there are to be; None tells those of the loop.
        fresh: say that nothing may be proposed twice.

    Raises:
        ConfigError: no such prompt.
    """

    purpose = "search"

    def __init__(
        self,
        spec: EnvSpec,
        controller: Controller,
        prompt: str | None,
        prompt_folder: Path | None,
        observations: bool,
        hints: Hints,
        rows: Rows,
        reply: Reply,
        count_from: int,
        told_iterations: int | None,
        fresh: bool,
    ) -> None:
        self.spec, self.controller, self.space = spec, controller, controller.space
        self.prompts = Prompts(FAMILY, FOLDER, prompt_folder)
        if prompt is not None and prompt not in self.prompts.names:
            raise ConfigError(
                f"principal.prompt={prompt} is none for policy search; there are {', '.join(self.prompts.names)}"
            )
        self.prompt = prompt or "described"
        if self.prompt == "described" and spec.text is None:
            logger.warning(
                "principal.prompt=described tells what the game is, and of env=%s nothing but its name is known: set "
                "env.text (auto, a shipped text or a file), or principal.prompt=numeric",
                spec.name,
            )
        self.observations, self.hints, self.rows, self.reply = observations, hints, rows, reply
        self.count_from, self.told_iterations, self.fresh = count_from, told_iterations, fresh
        self.iterations: int | None = None  # of the loop, and
        self.episodes: int | None = None  # its episodes a proposal, once it has told them

    def schema(self, n: int) -> dict[str, Any] | None:
        if self.reply == "lines":
            return None
        return json_schema(OneProposal if n == 1 else SeveralProposals)

    def render(self, asked: Asked, history: History, shown: Sequence[Record], selection: str | None) -> Prompt:
        return self.prompts.render(
            self.prompt,
            **self._fixed(asked.together),
            layout=getattr(self.controller, "layout", None) or self._meanings(),
            name=self.spec.name,
            horizon=self.spec.horizon,
            goal=None if self.spec.text is None else self.spec.text.goal,
            observation=[] if self.spec.text is None else self.spec.text.observation,
            actions=self._actions(),
            action_numbers=self.spec.numbers is not None,
            episodes=self.episodes,
            fresh=self.fresh,
            step_size=self.hints.step_size,
            optimum=self.hints.optimum,
            observations=self.observations,
            rows=[self._row(record) for record in shown],
            made=len(history.records),
            selection=selection,
            iteration=asked.iteration + self.count_from,
            iterations=self.told_iterations or self.iterations,
            proposal=asked.proposal,
            proposals=asked.proposals,
        )

    def read(self, text: str, n: int) -> Reading:
        return read_numbers(text, n, self.space.dim, lines_first=self.reply == "lines")

    def repair(self, fault: str, n: int) -> Prompt:
        return self.prompts.render("_repair", fault=fault, **self._fixed(n))

    def _fixed(self, together: int) -> dict[str, Any]:
        """What never changes from question to question."""
        parameters = self.space.parameters
        kinds = {(p.low, p.high, p.decimals) for p in parameters}
        return {
            "n": self.space.dim,
            "whole": all(p.decimals == 0 for p in parameters),
            "same": parameters[0] if len(kinds) == 1 else None,
            "parameters": parameters,
            "both_signs": any(p.low < 0 < p.high for p in parameters),
            "named": self.rows == "named",
            "reply": self.reply,
            "together": together,
        }

    def _row(self, record: Record) -> str:
        numbers = [shown_number(value) for value in record["vector"]]
        told = f"{record['payoff']:.2f}" + self._beside(record)
        if self.rows == "compact":
            return f"[{', '.join(numbers)}] -> {told}"
        return "; ".join([*(f"params[{i}]: {x}" for i, x in enumerate(numbers)), f"f(params): {told}"])

    def _beside(self, record: Record) -> str:
        times, error = len(record["measured"]), record["standard_error"]
        measured = [f"mean of {times} measurements"] if times > 1 else []
        if self.observations:
            measured += [] if error is None else [f"standard error {error:.2f}"]
            measured += [f"{name} {value:.4g}" for name, value in record["summaries"].items()]
        return f" ({', '.join(measured)})" if measured else ""

    def _actions(self) -> list[tuple[str, str]]:
        """(action or number of an action, what it is): in the environment's words, else in what is known without."""
        numbers, told = self.spec.numbers, {} if self.spec.text is None else dict(self.spec.text.actions)
        if numbers is not None:
            bounds = zip(numbers.names, numbers.low, numbers.high, strict=True)
            said = list(told.values()) if len(told) == numbers.dim else [""] * numbers.dim
            return [
                (name, f"from {low:g} to {high:g}{': ' if words else ''}{words}")
                for (name, low, high), words in zip(bounds, said, strict=True)
            ]
        names = self.spec.action_names
        return [
            (str(i), ": ".join(part for part in (name if name != str(i) else "", told.get(name, "")) if part))
            for i, name in enumerate(names)
        ]

    def _meanings(self) -> str:
        """The numbers one by one, of a policy that does not say how they work together."""
        return "\n".join(f"- {p.name}: {p.description}" for p in self.space.parameters)


def shown_number(value: float) -> str:
    """Five significant digits, as published; without an exponent where that is short.

    >>> [shown_number(x) for x in (1.0, -0.25, -0.0, 123456.0)]
    ['1', '-0.25', '0', '1.2346e+05']
    """
    return f"{value + 0.0:.5g}"
