"""Principal whose language model searches the parameters of a policy (ProPS, arXiv 2511.21928)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.protocols import Controller
from llmrl.core.records import CallEstimate, Trace
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion
from llmrl.llms.reply_cleaning import clean_reply
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import MAX_QUOTED_CHARS, Query, QueryStats
from llmrl.principals.history import MIN_UNITS, Record
from llmrl.principals.llm_principal import LLMPrincipal, OneProposal, SeveralProposals, shown_text
from llmrl.principals.llm_settings import LLMSettings, SearchFormat

logger = logging.getLogger(__name__)

FAMILY = "search"
FOLDER = Path(__file__).with_name("search_prompts")

MAX_ELEMENTS = 24
"""Maximum count of numbers of an observation or action that are shown in the first steps of an episode."""
UNPLAYABLE_NOTE = "not what you proposed: no return came of that, and this was tried in its place"


class LLMSearch(LLMPrincipal):
    """Principal that describes the parameters, the rules of the search and earlier proposals in a prompt.

    The prompt `numeric` contains nothing else; `described` adds descriptions of game and policy, generated from the
    texts of the environment and the controller.

    It follows "Prompted Policy Search" (arXiv 2511.21928), with our own prompts. Everything that stays the same comes
    first, byte for byte, so that providers can cache it, including a table that only grows. The iteration, which
    changes, comes last.

    Args:
        spec: spec of the environment.
        llm: the chat model.
        controller: the policy; its `layout`, if present, describes its parameters.
        settings: settings of the questions; `prompt` is `numeric`, `described` or one of the user's own (in `search/`),
            None
            is `described`; `observations` adds the standard error and other measurements to each return.
        form: format of questions and replies.
        prompt_folder: folder of a user's own prompts; None: there is none.

    Raises:
        ConfigError: no such prompt.
    """

    _state_fields = (*LLMPrincipal._state_fields, "conversation")

    purpose = FAMILY

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel,
        controller: Controller,
        settings: LLMSettings,
        form: SearchFormat,
        prompt_folder: Path | None = None,
    ) -> None:
        self.controller, self.form, self.joint_prompt = controller, form, form.joint_prompt
        self.prompts = PromptFamily(FAMILY, FOLDER, prompt_folder)
        if settings.prompt is not None and settings.prompt not in self.prompts.names:
            raise ConfigError(
                f"principal.prompt={settings.prompt} does not exist for policy search; use "
                f"{', '.join(self.prompts.names)}"
            )
        self.prompt = settings.prompt or "described"
        if form.episode_steps and self.prompt == "numeric":
            raise ConfigError(
                f"principal.episode_steps={form.episode_steps} shows steps of the game, but principal.prompt=numeric "
                "shows only numbers; use principal.prompt=described or null"
            )
        self.episode_steps = form.episode_steps
        if self.prompt == "described" and spec.text is None:
            logger.warning(
                "principal.prompt=described needs a description of the game, but env=%s has none; set env.text (auto, "
                "a "
                "shipped text or a file), or principal.prompt=numeric",
                spec.name,
            )
        self.conversation = SearchConversation(form.turns)
        self.parallel = form.turns == 1 or form.joint_prompt
        self.iterations: int | None = None  # number of iterations of the loop
        self.episodes: int | None = None  # its number of episodes per proposal
        self.common = False  # whether all proposals are evaluated with the same seeds
        super().__init__(spec, controller.space, llm, settings)
        if form.episode_steps:
            self.history.typical_steps = self._typical_steps()
        self.counters["unplayable_proposals"] = 0

    def on_search_start(self, iterations: int, episodes: int, common: bool = False) -> None:
        """Store the number of iterations and of episodes per proposal.

        On `common` seeds, equal parameters have equal returns.
        """
        self.iterations, self.episodes, self.common = iterations, episodes, common

    def replacement_for(self, vectors: np.ndarray, failed: np.ndarray) -> np.ndarray:
        """Return the `vectors` [n, d] of the last `ask` with those that `failed` [n] to give a finite return replaced.

        They are replaced by the fallback (with `fallback=stop`, too, since the replies were valid). The metric
        llm/unplayable_proposals counts them.
        """
        vector = self.propose_again(None)
        logger.warning("no finite return with %s; trying %s instead", vectors[failed].tolist(), vector.tolist())
        self.counters["unplayable_proposals"] += int(failed.sum())
        self.reasons = ["" if has_failed else reason for reason, has_failed in zip(self.reasons, failed, strict=True)]
        self.fallbacks = [
            bool(has_failed) or fallback for fallback, has_failed in zip(self.fallbacks, failed, strict=True)
        ]
        self.notes = [
            UNPLAYABLE_NOTE if has_failed else note for note, has_failed in zip(self.notes, failed, strict=True)
        ]
        return np.where(failed[:, None], vector, vectors)

    def question(self, context: str | None, proposal: int = 1, proposals: int = 1) -> Prompt | Query:
        if self.conversation.goes_on:
            question = self.conversation.question(self._turn())
            if self.llm.fits(list(question.messages)):
                return question
        return super().question(context, proposal, proposals)

    def answered(self, questions: Sequence[Prompt | Query]) -> None:
        if self.form.turns > 1:
            [question], [stats] = questions, self.asker.query_stats
            self.conversation.answered(question, stats)

    def _turn(self) -> Prompt:
        """Return the prompt with the outcomes of the last proposals."""
        newest = [record for record in self.history.records if record["generation"] == self.history.generations]
        return self.prompts.render(
            "_turn",
            rows=[self._row(record | {"measured": [record["index"]]}) for record in newest],
            best=self._best() if self.form.advice else None,
            beginnings=[self._beginning(record, "this") for record in newest if "steps" in record],
            made=len(self.history.records),
            iteration=self.iteration + self.form.first_iteration,
            iterations=self.form.prompt_iterations or self.iterations,
            **self._constant_fields(self.in_reply),
        )

    def _beginnings(self) -> list[list[str]]:
        """Return the first steps of episodes as lines, for the newest generation and for the best proposal."""
        if not self.episode_steps or not self.history.records:
            return []
        newest = [record for record in self.history.records if record["generation"] == self.history.generations]
        best = self.history.best_record(None)
        sections = [self._beginning(record, "the newest") for record in newest if "steps" in record]
        if best is not None and "steps" in best and best["index"] not in [record["index"] for record in newest]:
            sections.append(self._beginning(best, "the best so far"))
        return sections

    def _beginning(self, record: Record, record_label: str) -> list[str]:
        steps = record["steps"]
        names = [name for name, _ in self.spec.text.observation] if self.spec.text is not None else []
        width = len(steps["observations"][0]) if isinstance(steps["observations"][0], list) else 1
        order = f" ({', '.join(names)})" if len(names) == width else ""
        lines = [f"Of {record_label}, {self._numbers(record['vector'])}: observation{order} | action | reward"]
        for observation, action, reward in zip(steps["observations"], steps["actions"], steps["rewards"], strict=True):
            lines.append(f"{_observation_text(observation)} | {self._agent_action_text(action)} | {reward:g}")
        return lines

    def _agent_action_text(self, action: Any) -> str:
        names = self.spec.action_names
        if isinstance(action, list):
            return _observation_text(action)
        return names[int(action)] if 0 <= int(action) < len(names) else f"{action:g}"

    def _typical_steps(self) -> Trace:
        """Return example steps with the length of real ones, for estimates."""
        n, channel = self.form.episode_steps, self.spec.observation[self.controller.channel]
        observations = np.full((n, *channel.shape), -1.23) if channel.shape else np.full(n, 12)
        numbers = self.spec.continuous_actions
        actions = np.zeros(n, dtype=np.int64) if numbers is None else np.full((n, numbers.dim), -1.23)
        return Trace(observations, actions, np.full(n, -1.23))

    def estimate(self, steps: int, n: int, known: int = 0) -> CallEstimate:
        if self.form.turns == 1:
            return super().estimate(steps, n, known)
        step_estimate = super().estimate(1, n, known)
        reply_text = "x" * (4 * step_estimate.completion_tokens)
        future = copy.copy(self)
        future.conversation, future.history = SearchConversation(self.form.turns), self._empty_history()
        future.tried, future.iteration, future.asker = set(), 0, self._new_asker()
        if known:
            future.history.add([future.history.typical(self.space, 0)] * known)
        tokens = 0
        for _ in range(steps):
            question = future.question(None, n, n)
            tokens += estimate_tokens(shown_text(question))
            future.conversation.answered(question, QueryStats(replies=1, text=reply_text))
            future.history.add([future.history.typical(self.space, future.iteration)] * n)
            future.iteration += 1
        return CallEstimate(
            steps, steps * (1 + self.settings.repair_turns), tokens, steps * step_estimate.completion_tokens
        )

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
            **self._constant_fields(proposals if self.joint_prompt else 1),
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
            iteration=self.iteration + self.form.first_iteration,
            iterations=self.form.prompt_iterations or self.iterations,
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
            question=VectorQuestion(
                turn=self.iteration + self.form.first_iteration,
                proposal=proposal,
                tried=[[float(shown_number(x)) for x in record["vector"]] for record in self.history.records],
            ),
            words=actions if choices else (),
        )

    def repair(self, reason: str) -> Prompt:
        return self.prompts.render("_repair", fault=reason, **self._constant_fields(self.in_reply))

    def _constant_fields(self, n_proposals: int) -> dict[str, Any]:
        """Return the template fields that are the same in all questions."""
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
            "together": n_proposals,
        }

    def _row(self, record: Record) -> str:
        payoff = f"{record['payoff']:.2f}" + self._record_notes(record)
        return self._numbers(record["vector"]) + (" -> " if self.form.rows == "compact" else "; f(params): ") + payoff

    def _numbers(self, vector: Sequence[float]) -> str:
        numbers = [shown_number(value) for value in vector]
        if self.form.rows == "compact":
            return f"[{', '.join(numbers)}]"
        return "; ".join(f"params[{i}]: {x}" for i, x in enumerate(numbers))

    def _record_notes(self, record: Record) -> str:
        n_measurements, error = len(record["measured"]), record["standard_error"]
        notes = [f"mean of {n_measurements} measurements"] if n_measurements > 1 else []
        if self.settings.observations or self.form.advice:
            has_error = error is not None and record["units"] >= MIN_UNITS
            notes += [f"standard error {error:.3g}"] if has_error else []
        if self.settings.observations:
            notes += [f"{name} {value:.4g}" for name, value in record["summaries"].items()]
        # The published table has no such notes; in a conversation they are needed for correctness.
        shows_note = self.form.advice or self.form.turns > 1
        notes += [record["note"]] if record.get("note") and shows_note else []
        return f" ({', '.join(notes)})" if notes else ""

    def _repeated(self, record: Record) -> str:
        """Return a line about a vector that was measured several times."""
        count_text = f"{len(record['measured'])} times, mean {record['payoff']:.2f}"
        return f"- {self._numbers(record['vector'])}: {count_text}, values spread by {record['spread']:.3g}"

    def _best(self) -> str | None:
        """Return the vector with the highest mean among those judged by enough episodes, and its mean."""
        best = self.history.best_record(None)
        if best is None:
            return None
        n_measurements = len(best["measured"])
        means = f"the mean of {n_measurements} measurements" if n_measurements > 1 else "measured once"
        return f"{self._numbers(best['vector'])} with {best['payoff']:.2f}, {means}"

    def _actions(self) -> list[tuple[str, str]]:
        """Return (action or index of an action, description), in the environment's texts if it has any."""
        numbers, descriptions = (
            self.spec.continuous_actions,
            {} if self.spec.text is None else dict(self.spec.text.actions),
        )
        if numbers is not None:
            bounds = zip(numbers.names, numbers.low, numbers.high, strict=True)
            texts = list(descriptions.values()) if len(descriptions) == numbers.dim else [""] * numbers.dim
            return [
                (name, f"from {low:g} to {high:g}{': ' if description else ''}{description}")
                for (name, low, high), description in zip(bounds, texts, strict=True)
            ]
        names = self.spec.action_names
        return [
            (str(i), ": ".join(part for part in (name if name != str(i) else "", descriptions.get(name, "")) if part))
            for i, name in enumerate(names)
        ]

    def _meanings(self) -> str:
        """Return a description of each parameter, for policies without `layout`."""
        return "\n".join(f"- {p.name}: {p.description}" for p in self.space.parameters)


def _observation_text(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:g}"
    omitted = f", ... ({len(value) - MAX_ELEMENTS} more)" if len(value) > MAX_ELEMENTS else ""
    return ", ".join(f"{x:g}" for x in value[:MAX_ELEMENTS]) + omitted


def shown_number(value: float) -> str:
    """Format a number with five significant digits, as published, without an exponent if that is short.

    >>> [shown_number(x) for x in (1.0, -0.25, -0.0, 123456.0)]
    ['1', '-0.25', '0', '1.2346e+05']
    """
    return f"{value + 0.0:.5g}"


Messages = tuple[dict[str, Any], ...]


class SearchConversation(StateFields):
    """Messages of the present conversation.

    A question starts with all messages before it, byte for byte, so that providers can cache them. After `turns`
    questions a new conversation begins, whose first question shows the table of that time, so the number of messages is
    bounded.

    Args:
        turns: number of questions in a conversation, >= 1; 1: each question is separate.
    """

    _state_fields = ("_messages", "_asked")

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self._messages: Messages = ()
        self._asked = 0

    @property
    def goes_on(self) -> bool:
        """True if the next question continues the conversation."""
        return 0 < self._asked < self.turns

    def question(self, prompt: Prompt) -> Query:
        """Return the next question of the conversation, with the text of `prompt`."""
        return Query((*self._messages, _message("user", prompt.text)), prompt.name, prompt.hash)

    def answered(self, question: Prompt | Query, asked: QueryStats) -> None:
        """Store a question and the last reply to it; without any reply the conversation ends.

        Of a repaired reply the repaired version is stored, without its thoughts.
        """
        if not asked.replies or self.turns == 1:
            self._messages, self._asked = (), 0
            return
        is_initial = isinstance(question, Prompt)
        prefix = (_message("user", question.text),) if isinstance(question, Prompt) else question.messages
        text = (
            clean_reply(asked.text).text[:MAX_QUOTED_CHARS].strip() or "(empty reply)"
        )  # some providers reject an empty turn
        self._messages = (*prefix, _message("assistant", text))
        self._asked = 1 if is_initial else self._asked + 1


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
