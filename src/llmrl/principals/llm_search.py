"""A language model searches the parameters of a policy (ProPS, arXiv 2511.21928)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.protocols import Controller
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import CallEstimate, State, Trace
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.reading.vector_parser import VectorParser
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import Query, QueryStats
from llmrl.principals.history import FEWEST_UNITS, Record
from llmrl.principals.llm_principal import LLMPrincipal, LLMSettings, shown_text
from llmrl.principals.reply_formats import OneProposal, SeveralProposals
from llmrl.principals.search_conversation import SearchConversation

logger = logging.getLogger(__name__)

FAMILY = "search"
FOLDER = Path(__file__).with_name("search_prompts")

ENTRIES = 24
"""Numbers of an observation or an action that the beginning of an episode shows."""
UNPLAYABLE = "not what you proposed: no return came of that, and this was tried in its place"

Rows = Literal["compact", "named"]
Reply = Literal["json", "lines"]


@dataclass(frozen=True)
class SearchFormat:
    """What questions and replies of a search look like.

    Attributes:
        one_prompt_per_batch: one question asks for all proposals of a step.
        rows: `compact` rows, `[1, -2.5] -> 123.45`, or `named` ones as published, `params[0]: 1; ...`.
        reply: what is asked for: a `json` object, or two `lines` as published (numbers, then the reason).
        count_from: number of the first iteration.
        told_iterations: iterations there are to be; None tells those of the loop.
        advice: tell of chance (standard errors, that numbers may be measured again, the best so far) and of changes
            to the numbers that the policy does not notice. False as published.
        episode_steps: steps that are shown of the beginning of an episode of the newest proposals and of the best; 0:
            none. They are kept for `described` and own prompts.
        turns: questions of one conversation; each but the first tells what came of the reply before it, and after so
            many a new one begins with the table. 1: each question is by itself.
    """

    one_prompt_per_batch: bool = False
    rows: Rows = "compact"
    reply: Reply = "json"
    count_from: int = 1
    told_iterations: int | None = None
    advice: bool = True
    turns: PositiveInt = 1
    episode_steps: NonNegativeInt = 0


class LLMSearch(LLMPrincipal):
    """Tells the numbers, the rules of the search and what was tried so far: `numeric` tells nothing else, `described`
    what the game and the policy are, both generated from what the environment and the policy say of themselves.

    After "Prompted Policy Search" (arXiv 2511.21928), with prompts of our own. All that stays the same from one
    question to the next comes first and the same, byte for byte, so that providers can keep it; a table that only grows
    is part of that. What changes, the iteration, comes last.

    Args:
        spec: the environment.
        llm: the chat model.
        controller: the policy; `layout`, if it has that, says in words what its numbers are.
        settings: how it is asked; `prompt` is `numeric`, `described` or one of the user's own (in `search/`), None is
            `described`; `observations` are the standard error and what else was measured beside each return.
        form: of questions and replies.

    Raises:
        ConfigError: no such prompt.
    """

    purpose = FAMILY

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel,
        controller: Controller,
        settings: LLMSettings,
        form: SearchFormat,
    ) -> None:
        self.controller, self.form, self.one_prompt_per_batch = controller, form, form.one_prompt_per_batch
        self.prompts = PromptFamily(FAMILY, FOLDER, settings.prompt_folder)
        if settings.prompt is not None and settings.prompt not in self.prompts.names:
            raise ConfigError(
                f"principal.prompt={settings.prompt} is none for policy search; there are "
                f"{', '.join(self.prompts.names)}"
            )
        self.prompt = settings.prompt or "described"
        if form.episode_steps and self.prompt == "numeric":
            raise ConfigError(
                f"principal.episode_steps={form.episode_steps} shows what the game does, and principal.prompt=numeric "
                "tells of numbers alone: use principal.prompt=described, or leave it null"
            )
        self.episode_steps = form.episode_steps
        if self.prompt == "described" and spec.text is None:
            logger.warning(
                "principal.prompt=described tells what the game is, and of env=%s nothing but its name is known: set "
                "env.text (auto, a shipped text or a file), or principal.prompt=numeric",
                spec.name,
            )
        self.conversation = SearchConversation(form.turns)
        self.parallel = form.turns == 1 or form.one_prompt_per_batch
        self.iterations: int | None = None  # of the loop, and
        self.episodes: int | None = None  # its episodes a proposal, once it has told them, and
        self.common = False  # whether all proposals meet the same seeds
        super().__init__(spec, controller.space, llm, settings)
        if form.episode_steps:
            self.history.typical_steps = self._typical_steps()
        self.counters["unplayable_proposals"] = 0

    def on_search_start(self, iterations: int, episodes: int, common: bool = False) -> None:
        """What the loop is going to do: so many iterations, with so many episodes a proposal; on `common` seeds the
        same numbers return the same."""
        self.iterations, self.episodes, self.common = iterations, episodes, common

    def replacement_for(self, vectors: np.ndarray, failed: np.ndarray) -> np.ndarray:
        """What to try, [n, d], for the `vectors` [n, d] of the last `ask` if those that `failed` [n] return no numbers.

        In their place, what is proposed without a valid reply (with `fallback=stop`, too, for these replies were). The
        metric llm/unplayable_proposals counts them.
        """
        vector = self.propose_again(None)
        logger.warning("no finite return with %s; trying %s instead", vectors[failed].tolist(), vector.tolist())
        self.counters["unplayable_proposals"] += int(failed.sum())
        self.reasons = ["" if bad else reason for reason, bad in zip(self.reasons, failed, strict=True)]
        self.fallbacks = [bool(bad) or before for before, bad in zip(self.fallbacks, failed, strict=True)]
        self.notes = [UNPLAYABLE if bad else note for note, bad in zip(self.notes, failed, strict=True)]
        return np.where(failed[:, None], vector, vectors)

    def question(self, context: str | None, proposal: int = 1, proposals: int = 1) -> Prompt | Query:
        if self.conversation.goes_on:
            question = self.conversation.question(self._turn())
            if self.llm.fits(list(question.messages)):
                return question
        return super().question(context, proposal, proposals)

    def answered(self, questions: Sequence[Prompt | Query]) -> None:
        if self.form.turns > 1:
            [question], [asked] = questions, self.asker.asked
            self.conversation.answered(question, asked)

    def _turn(self) -> Prompt:
        """What came of the last proposals."""
        newest = [record for record in self.history.records if record["generation"] == self.history.generations]
        return self.prompts.render(
            "_turn",
            rows=[self._row(record | {"measured": [record["index"]]}) for record in newest],
            best=self._best() if self.form.advice else None,
            beginnings=[self._beginning(record, "this") for record in newest if "steps" in record],
            made=len(self.history.records),
            iteration=self.iteration + self.form.count_from,
            iterations=self.form.told_iterations or self.iterations,
            **self._fixed(self.in_reply),
        )

    def _beginnings(self) -> list[list[str]]:
        """The beginnings of episodes that a question shows, as lines: of the newest generation, and of the best."""
        if not self.episode_steps or not self.history.records:
            return []
        newest = [record for record in self.history.records if record["generation"] == self.history.generations]
        best = self.history.best_record(None)
        told = [self._beginning(record, "the newest") for record in newest if "steps" in record]
        if best is not None and "steps" in best and best["index"] not in [record["index"] for record in newest]:
            told.append(self._beginning(best, "the best so far"))
        return told

    def _beginning(self, record: Record, which: str) -> list[str]:
        steps = record["steps"]
        names = [name for name, _ in self.spec.text.observation] if self.spec.text is not None else []
        width = len(steps["observations"][0]) if isinstance(steps["observations"][0], list) else 1
        order = f" ({', '.join(names)})" if len(names) == width else ""
        lines = [f"Of {which}, {self._numbers(record['vector'])}: observation{order} | action | reward"]
        for seen, done, reward in zip(steps["observations"], steps["actions"], steps["rewards"], strict=True):
            lines.append(f"{_listed(seen)} | {self._done(done)} | {reward:g}")
        return lines

    def _done(self, action: Any) -> str:
        names = self.spec.action_names
        if isinstance(action, list):
            return _listed(action)
        return names[int(action)] if 0 <= int(action) < len(names) else f"{action:g}"

    def _typical_steps(self) -> Trace:
        """As long as an episode's beginning is, for estimates."""
        n, channel = self.form.episode_steps, self.spec.observation[self.controller.channel]
        seen = np.full((n, *channel.shape), -1.23) if channel.shape else np.full(n, 12)
        numbers = self.spec.continuous_actions
        done = np.zeros(n, dtype=np.int64) if numbers is None else np.full((n, numbers.dim), -1.23)
        return Trace(seen, done, np.full(n, -1.23))

    def state_dict(self) -> State:
        return super().state_dict() | {"conversation": self.conversation.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.conversation.load_state_dict(state["conversation"])

    def estimate(self, steps: int, n: int, known: int = 0) -> CallEstimate:
        if self.form.turns == 1:
            return super().estimate(steps, n, known)
        one = super().estimate(1, n, known)
        written = "x" * (4 * one.completion_tokens)
        future = copy.copy(self)
        future.conversation, future.history = SearchConversation(self.form.turns), self._empty_history()
        future.tried, future.iteration, future.asker = set(), 0, self._new_asker()
        if known:
            future.history.add([future.history.typical(self.space, 0)] * known)
        tokens = 0
        for _ in range(steps):
            question = future.question(None, n, n)
            tokens += estimate_tokens(shown_text(question))
            future.conversation.answered(question, QueryStats(replies=1, text=written))
            future.history.add([future.history.typical(self.space, future.iteration)] * n)
            future.iteration += 1
        return CallEstimate(steps, steps * (1 + self.settings.repair_turns), tokens, steps * one.completion_tokens)

    def schema(self, n: int) -> dict[str, Any] | None:
        if self.form.reply == "lines":
            return None
        return json_schema(OneProposal if n == 1 else SeveralProposals)

    def render(
        self, context: str | None, proposal: int, proposals: int, shown: Sequence[Record], selection: str | None
    ) -> Prompt:
        spec, text = self.spec, self.spec.text
        return self.prompts.render(
            self.prompt,
            **self._fixed(proposals if self.one_prompt_per_batch else 1),
            layout=getattr(self.controller, "layout", None) or self._meanings(),
            name=spec.name,
            horizon=spec.horizon,
            goal=None if text is None else text.goal,
            observation=[] if text is None else text.observation,
            actions=self._actions(),
            action_numbers=spec.continuous_actions is not None,
            episodes=self.episodes,
            fresh=self.settings.duplicates == "reask",
            advice=self.form.advice,
            repeats=self.form.advice and self.settings.duplicates == "accept" and not self.common,
            invariances=getattr(self.controller, "invariances", "") if self.form.advice else "",
            step_size=self.settings.step_size,
            optimum=self.settings.optimum,
            observations=self.settings.observations,
            rows=[self._row(record) for record in shown],
            repeated=[self._repeated(record) for record in self.history.repeated(self.shown.history)],
            beginnings=self._beginnings(),
            best=self._best() if self.form.advice else None,
            made=len(self.history.records),
            selection=selection,
            iteration=self.iteration + self.form.count_from,
            iterations=self.form.told_iterations or self.iterations,
            proposal=proposal,
            proposals=proposals,
        )

    def asked(self, n: int, context: str | None = None, proposal: int | None = None) -> VectorParser:
        parameters = self.space.parameters
        actions = self.spec.action_names
        choices = all(p.choice and p.low == 0 and p.high < len(actions) for p in parameters)
        return VectorParser(
            [f"params[{i}]" for i in range(self.space.dim)],
            n=n,
            bounds=[(p.low, p.high) for p in parameters],
            turn=self.iteration + self.form.count_from,
            proposal=proposal,
            tried=[[float(shown_number(x)) for x in record["vector"]] for record in self.history.records],
            words=actions if choices else (),
        )

    def repair(self, fault: str) -> Prompt:
        return self.prompts.render("_repair", fault=fault, **self._fixed(self.in_reply))

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
            "named": self.form.rows == "named",
            "reply": self.form.reply,
            "together": together,
        }

    def _row(self, record: Record) -> str:
        told = f"{record['payoff']:.2f}" + self._beside(record)
        return self._numbers(record["vector"]) + (" -> " if self.form.rows == "compact" else "; f(params): ") + told

    def _numbers(self, vector: Sequence[float]) -> str:
        numbers = [shown_number(value) for value in vector]
        if self.form.rows == "compact":
            return f"[{', '.join(numbers)}]"
        return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(numbers))

    def _beside(self, record: Record) -> str:
        times, error = len(record["measured"]), record["standard_error"]
        measured = [f"mean of {times} measurements"] if times > 1 else []
        if self.settings.observations or self.form.advice:
            known = error is not None and record["units"] >= FEWEST_UNITS
            measured += [f"standard error {error:.3g}"] if known else []
        if self.settings.observations:
            measured += [f"{name} {value:.4g}" for name, value in record["summaries"].items()]
        # The published table says of no row that it was not proposed. A turn of a conversation would be untrue without.
        told = self.form.advice or self.form.turns > 1
        measured += [record["note"]] if record.get("note") and told else []
        return f" ({', '.join(measured)})" if measured else ""

    def _repeated(self, record: Record) -> str:
        """What is known of numbers that were measured several times."""
        times = f"{len(record['measured'])} times, mean {record['payoff']:.2f}"
        return f"- {self._numbers(record['vector'])}: {times}, values spread by {record['spread']:.3g}"

    def _best(self) -> str | None:
        """The numbers with the highest mean of all that were judged by enough episodes, and what it is."""
        best = self.history.best_record(None)
        if best is None:
            return None
        times = len(best["measured"])
        means = f"the mean of {times} measurements" if times > 1 else "measured once"
        return f"{self._numbers(best['vector'])} with {best['payoff']:.2f}, {means}"

    def _actions(self) -> list[tuple[str, str]]:
        """(action or number of an action, what it is): in the environment's words, else in what is known without."""
        numbers, told = self.spec.continuous_actions, {} if self.spec.text is None else dict(self.spec.text.actions)
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


def _listed(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:g}"
    left_out = f", ... ({len(value) - ENTRIES} more)" if len(value) > ENTRIES else ""
    return ", ".join(f"{x:g}" for x in value[:ENTRIES]) + left_out


def shown_number(value: float) -> str:
    """Five significant digits, as published; without an exponent where that is short.

    >>> [shown_number(x) for x in (1.0, -0.25, -0.0, 123456.0)]
    ['1', '-0.25', '0', '1.2346e+05']
    """
    return f"{value + 0.0:.5g}"
