"""Principal that searches the parameters of a policy with a language model (ProPS, arXiv 2511.21928)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.protocols import Controller
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion
from llmrl.llms.structured import json_schema
from llmrl.principals.history import MIN_VALUES_FOR_ERROR, Record
from llmrl.principals.llm_principal import LLMPrincipal, LLMSettings, Proposal

logger = logging.getLogger(__name__)

PROMPT_FAMILY = "search"
PROMPTS_DIR = Path(__file__).with_name("search_prompts")

UNPLAYABLE_NOTE = "not what you proposed: no return came of that, and this was tried in its place"


class LLMSearch(LLMPrincipal):
    """Principal whose prompts describe the parameters of a policy, the rules of the search and earlier proposals.

    The prompt `numeric` contains nothing else; `described` adds descriptions of the game and the policy, from the texts
    of the environment and the controller.

    The method is "Prompted Policy Search" (arXiv 2511.21928), the prompts are different. Providers cache common
    beginnings of prompts, so a prompt begins with the text that is the same in all prompts, then has the table of
    proposals, to which rows are only added, and ends with the number of the iteration.

    Args:
        spec: specification of the environment.
        llm: the chat model.
        controller: the policy; its attribute `layout`, if present, describes its parameters.
        settings: options of prompts and replies; `prompt` is `numeric`, `described` (None) or the name of a prompt in
            `search/` of `prompt_folder`; `observations` adds the standard error and other metrics to each return.
        prompt_folder: folder of user-defined prompts; None: only the shipped prompts.

    Raises:
        ConfigError: the prompt does not exist.
    """

    purpose = PROMPT_FAMILY

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel,
        controller: Controller,
        settings: LLMSettings,
        prompt_folder: Path | None = None,
    ) -> None:
        self.controller = controller
        self.prompts = PromptFamily(PROMPT_FAMILY, PROMPTS_DIR, prompt_folder)
        if settings.prompt is not None and settings.prompt not in self.prompts.names:
            raise ConfigError(
                f"principal.prompt={settings.prompt} does not exist for policy search; use "
                f"{', '.join(self.prompts.names)}"
            )
        self.prompt = settings.prompt or "described"
        if self.prompt == "described" and spec.text is None:
            logger.warning(
                "principal.prompt=described needs a description of the game, but env=%s has none; set env.text (auto, "
                "a shipped text or a file), or principal.prompt=numeric",
                spec.name,
            )
        self.iterations: int | None = None  # arguments of `on_search_start`
        self.episodes: int | None = None
        self.has_common_seeds = False
        super().__init__(spec, controller.space, llm, settings)
        self.counters["unplayable_proposals"] = 0

    def on_search_start(self, iterations: int, episodes: int, has_common_seeds: bool = False) -> None:
        """Store the number of iterations and of episodes per proposal, and whether all proposals have the same seeds.

        With common seeds, repeated proposals have equal returns, so prompts do not recommend repetitions.
        """
        self.iterations, self.episodes, self.has_common_seeds = iterations, episodes, has_common_seeds

    def replace_failed(self, vectors: np.ndarray, has_failed: np.ndarray) -> np.ndarray:
        """Return `vectors` [n, d], the proposals of the last `ask`, with the fallback in place of failed ones.

        Failed proposals have no finite return (`has_failed`, [n] bool). With `fallback=stop` they are also replaced,
        because the replies were valid. The metric llm/unplayable_proposals counts them.
        """
        vector = self.choose_fallback(None)
        logger.warning("no finite return with %s; trying %s instead", vectors[has_failed].tolist(), vector.tolist())
        self.counters["unplayable_proposals"] += int(has_failed.sum())
        for i in np.flatnonzero(has_failed):
            self.reasons[i], self.fallbacks[i], self.notes[i] = "", True, UNPLAYABLE_NOTE
        return np.where(has_failed[:, None], vector, vectors)

    def make_reply_schema(self) -> dict[str, Any] | None:
        return None if self.settings.reply == "lines" else json_schema(Proposal)

    def render(
        self, context: str | None, proposal_number: int, n_proposals: int, records: list[Record], selection: str | None
    ) -> Prompt:
        spec, text = self.spec, self.spec.text
        return self.prompts.render(
            self.prompt,
            **self._constant_fields(),
            layout=getattr(self.controller, "layout", None)
            or "\n".join(f"- {p.name}: {p.description}" for p in self.space.parameters),
            name=spec.name,
            horizon=spec.horizon,
            goal=None if text is None else text.goal,
            observation=[] if text is None else text.observation,
            actions=self._describe_actions(),
            action_numbers=spec.continuous_actions is not None,
            episodes=self.episodes,
            fresh=self.settings.duplicates == "reask",
            advice=self.settings.advice,
            repeats=self.settings.advice and self.settings.duplicates == "accept" and not self.has_common_seeds,
            invariances=getattr(self.controller, "invariances", "") if self.settings.advice else "",
            step_size=self.settings.step_size,
            optimum=self.settings.optimum,
            observations=self.settings.observations,
            rows=[self._format_record(record) for record in records],
            repeated=[
                self._format_repeated(record) for record in self.history.pool_repeated(self.history_settings.history)
            ],
            best=self._format_best() if self.settings.advice else None,
            made=len(self.history.records),
            selection=selection,
            iteration=self.iteration + self.settings.first_iteration,
            iterations=self.settings.prompt_iterations or self.iterations,
            proposal=proposal_number,
            proposals=n_proposals,
        )

    def make_parser(self, context: str | None = None, proposal_number: int | None = None) -> VectorParser:
        parameters = self.space.parameters
        actions = self.spec.action_names
        choices = all(p.choice and p.low == 0 and p.high < len(actions) for p in parameters)
        return VectorParser(
            [f"params[{i}]" for i in range(self.space.dim)],
            bounds=[(p.low, p.high) for p in parameters],
            question=VectorQuestion(
                turn=self.iteration + self.settings.first_iteration,
                proposal=proposal_number,
                history=[[float(format_number(x)) for x in record["vector"]] for record in self.history.records],
            ),
            words=actions if choices else (),
        )

    def render_repair_prompt(self, reason: str) -> Prompt:
        return self.prompts.render("_repair", fault=reason, **self._constant_fields())

    def _constant_fields(self) -> dict[str, Any]:
        """Return the template fields that are the same in all prompts."""
        parameters = self.space.parameters
        ranges = {(p.low, p.high, p.decimals) for p in parameters}
        return {
            "n": self.space.dim,
            "whole": all(p.decimals == 0 for p in parameters),
            "same": parameters[0] if len(ranges) == 1 else None,
            "parameters": parameters,
            "both_signs": any(p.low < 0 < p.high for p in parameters),
            "named": self.settings.rows == "named",
            "reply": self.settings.reply,
        }

    def _format_record(self, record: Record) -> str:
        """Return the row of a record in the table of proposals."""
        separator = " -> " if self.settings.rows == "compact" else "; f(params): "
        return f"{self._format_numbers(record['vector'])}{separator}{record['payoff']:.2f}{self._format_notes(record)}"

    def _format_numbers(self, vector: Sequence[float]) -> str:
        numbers = [format_number(value) for value in vector]
        if self.settings.rows == "compact":
            return f"[{', '.join(numbers)}]"
        return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(numbers))

    def _format_notes(self, record: Record) -> str:
        n_measurements, error = len(record["measured"]), record["standard_error"]
        notes = [f"mean of {n_measurements} measurements"] if n_measurements > 1 else []
        if self.settings.observations or self.settings.advice:
            has_error = error is not None and record["units"] >= MIN_VALUES_FOR_ERROR
            notes += [f"standard error {error:.3g}"] if has_error else []
        if self.settings.observations:
            notes += [f"{name} {value:.4g}" for name, value in record["summaries"].items()]
        # Without `advice` the table is that of the publication, which has no such notes.
        notes += [record["note"]] if record.get("note") and self.settings.advice else []
        return f" ({', '.join(notes)})" if notes else ""

    def _format_repeated(self, record: Record) -> str:
        """Return the prompt line of a vector that was measured several times (`History.pool_repeated`)."""
        count_text = f"{len(record['measured'])} times, mean {record['payoff']:.2f}"
        return f"- {self._format_numbers(record['vector'])}: {count_text}, values spread by {record['spread']:.3g}"

    def _format_best(self) -> str | None:
        """Return a text with the vector `History.find_best_vector` and its mean; None if there is none."""
        best = self.history.pool_best_record(None)
        if best is None:
            return None
        n_measurements = len(best["measured"])
        source = f"the mean of {n_measurements} measurements" if n_measurements > 1 else "measured once"
        return f"{self._format_numbers(best['vector'])} with {best['payoff']:.2f}, {source}"

    def _describe_actions(self) -> list[tuple[str, str]]:
        """Return (name of a continuous action, or index of a discrete one; description) of each action."""
        continuous_actions = self.spec.continuous_actions
        descriptions = {} if self.spec.text is None else dict(self.spec.text.actions)
        if continuous_actions is not None:
            dim = continuous_actions.dim
            bounds = zip(continuous_actions.names, continuous_actions.low, continuous_actions.high, strict=True)
            texts = list(descriptions.values()) if len(descriptions) == dim else [""] * dim
            return [
                (name, f"from {low:g} to {high:g}{': ' if description else ''}{description}")
                for (name, low, high), description in zip(bounds, texts, strict=True)
            ]
        return [
            (str(i), ": ".join(text for text in (name if name != str(i) else "", descriptions.get(name, "")) if text))
            for i, name in enumerate(self.spec.action_names)
        ]


def format_number(value: float) -> str:
    """Format a number with five significant digits, as in the publication, and without the sign of -0.

    >>> [format_number(x) for x in (1.0, -0.25, -0.0, 123456.0)]
    ['1', '-0.25', '0', '1.2346e+05']
    """
    return f"{value + 0.0:.5g}"
