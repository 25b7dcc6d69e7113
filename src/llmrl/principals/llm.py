"""A language model as the principal."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.limits import NonNegativeFloat, NonNegativeInt, PositiveInt
from llmrl.core.pooling import key_of
from llmrl.core.protocols import ChatModel, Controller
from llmrl.core.records import CallEstimate, Outcome, State
from llmrl.core.spaces import EnvSpec
from llmrl.llms.asking import Asker
from llmrl.llms.prompts import Prompt
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.structured import InvalidReply
from llmrl.principals.history import Contexts, History, Policy, Record
from llmrl.principals.mechanism_questions import FAMILY, FOLDER, MechanismQuestions
from llmrl.principals.policy_questions import PolicyQuestions, Reply, Rows
from llmrl.principals.questions import Asked, Hints, Questions, first_faults, refuse_for_mechanism
from llmrl.principals.reading import Reading

__all__ = ["FAMILY", "FOLDER", "LLMPrincipal"]

logger = logging.getLogger(__name__)

REPLY_TOKENS = 150
"""Tokens of a typical reply, three sentences and a few numbers, that estimates of cost count with, and"""
NUMBER_TOKENS = 4
"""of each number beyond the first ten."""
COUNTED = ("moved_numbers", "repeated_proposals", "unplayable_proposals")
"""See `tell`; the last one is of policies only."""


class LLMPrincipal:
    """Asks a chat model for the next vector, telling it what is to be set, what for, and what was tried so far.

    It sets the numbers of a mechanism (after the LLM principal of "Large Legislative Models", arXiv 2410.08345, whose
    prompts were not released), or the parameters of a policy (after "Prompted Policy Search", arXiv 2511.21928). The
    prompts are our own.

    Each step is one conversation. A reply must hold all numbers; in which forms, `MechanismQuestions` and
    `read_numbers` tell. An invalid one is shown back with what is wrong, up to `repair_turns` times; then `fallback`
    decides, and it is counted.

    Several proposals of a step are asked for in as many questions at once, each of which says which of them it is for;
    or, `together`, in one question whose reply holds all of them.

    If the whole history does not fit into the model's context window, the question holds the records that
    `History.trim` keeps, and says so.

    Args:
        spec: the environment.
        llm: the chat model.
        prompt_folder: a user's own prompts; None: there are none.
        controller: the policy whose parameters are searched; None: a mechanism's numbers are set.
        prompt: name of the prompt. Of a mechanism one of `prompts/`, None takes the environment's own or `generic`; of
            a policy `numeric` or `described`, None is `described`.
        history: which proposals are shown of each context: `all`, the `last` or `best` ones, the `best_and_last`, or
            the `chain` of the best so far (see `History.select`).
        window: how many, for `last`, `best` and the best of `best_and_last`.
        newest: how many of the last ones, for `best_and_last`.
        contexts: show the proposals of `all` contexts, or only those of the present one (`own`).
        measurements: a vector that was measured several times in a context is one row of the history, with the means
            over all measurements (`pooled`), or each of them is a row (`separate`, published).
        observations: show what happened in the game beside each payoff; None: of a mechanism, yes, of a policy, no.
        repair_turns: chances to correct an invalid reply.
        fallback: where none is valid, propose the `best` vector of this context so far (of those that were judged by
            as many episodes as any one proposal) or the `last` one again (the middle of the bounds if there is none),
            or `stop` the run.
        out_of_range: a number out of bounds makes a reply invalid (`reask`), is put inside them (`clamp`), or is tried
            as it is (`accept`; of a policy only, and published). Of choices, as an action is one, there are none out of
            bounds: there `accept` is `reask`.
        duplicates: a proposal made before makes a reply invalid (`reask`) or is tried once more (`accept`); None: of a
            mechanism, accept, of a policy, reask.
        together: ask for all proposals of a step in one question. Of a policy only, like the next four.
        rows: see `PolicyQuestions`; None is compact.
        reply: see `PolicyQuestions`; None is json.
        count_from: number of the first iteration in the prompt, 0 or 1; None is 1.
        told_iterations: how many there are to be, in the prompt; None: as many as there are.
        step_size, optimum: see `Hints`.

    Attributes:
        reasons: why the vectors of the last `ask` were proposed, in the model's words; "" where it gave no reason.
        fallbacks: which of them the model did not propose: no reply was valid, or its numbers could not be played.

    Raises:
        ConfigError: no chat model, no mechanism, no such prompt, or a setting of the other kind of search.
        LLMError: (from `ask`) the model could not be reached; no reply was valid and `fallback` is `stop`.
    """

    parallel = True
    learns_from_others = True

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel | None,
        prompt_folder: Path | None = None,
        controller: Controller | None = None,
        prompt: str | None = None,
        history: Policy = "all",
        window: PositiveInt = 50,
        newest: NonNegativeInt = 10,
        contexts: Contexts = "all",
        measurements: Literal["pooled", "separate"] = "pooled",
        observations: bool | None = None,
        repair_turns: NonNegativeInt = 1,
        fallback: Literal["best", "last", "stop"] = "best",
        out_of_range: Literal["reask", "clamp", "accept"] = "reask",
        duplicates: Literal["reask", "accept"] | None = None,
        together: bool = False,
        rows: Rows | None = None,
        reply: Reply | None = None,
        count_from: NonNegativeInt | None = None,
        told_iterations: PositiveInt | None = None,
        step_size: NonNegativeFloat | None = None,
        optimum: float | None = None,
    ) -> None:
        if llm is None:
            raise ConfigError(
                "principal=llm needs a chat model, and llm=none is none: choose llm=gpt4o, gpt4o_mini, claude, gemini "
                "(each with a key in the environment), ollama, openai_compatible, or scripted (offline, fixed rules)."
            )
        hints = Hints(step_size, optimum)
        self.reask_duplicates = (duplicates or ("accept" if controller is None else "reask")) == "reask"
        if controller is None:
            only: dict[str, Any] = {
                "together": together or None,
                "rows": rows,
                "reply": reply,
                "count_from": count_from,
            }
            only |= {"told_iterations": told_iterations, "out_of_range": "accept" if out_of_range == "accept" else None}
            refuse_for_mechanism(only)
            shown = True if observations is None else observations
            self.questions: Questions = MechanismQuestions(spec, prompt, prompt_folder, shown, hints)
        else:
            self.questions = PolicyQuestions(
                spec,
                controller,
                prompt,
                prompt_folder,
                bool(observations),
                hints,
                rows or "compact",
                reply or "json",
                1 if count_from is None else count_from,
                told_iterations,
                self.reask_duplicates,
            )
        self.spec, self.llm, self.space = spec, llm, self.questions.space
        self.policy, self.window, self.newest, self.contexts = history, window, newest, contexts
        self.repair_turns, self.fallback, self.out_of_range = repair_turns, fallback, out_of_range
        self.together = together
        self.history = History(spec, measurements == "pooled")
        self.tried: set[tuple[float, ...]] = set()
        self.iteration = 0  # questions answered
        self.counters = dict.fromkeys(COUNTED[: 2 if controller is None else 3], 0)
        self.reasons: list[str] = []
        self.fallbacks: list[bool] = []
        self.in_reply = 1  # vectors that the replies asked for last were to hold
        self.asker = self._new_asker()

    def expect(self, iterations: int, episodes: int) -> None:
        """What the loop is going to do: so many iterations, with so many episodes a proposal."""
        if isinstance(self.questions, PolicyQuestions):
            self.questions.iterations, self.questions.episodes = iterations, episodes

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.row(context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        self.in_reply = n if self.together else 1
        self.asker.schema = self.questions.schema(self.in_reply)
        readings = self.asker.ask([self.question(name, k, n) for k in range(1, n // self.in_reply + 1)])
        answers = [self._valid(reading, name, k) for k, reading in enumerate(readings, 1)]
        vectors = np.concatenate([answer.vectors for answer in answers])
        self.reasons = [answer.reasoning for answer in answers for _ in answer.vectors]
        self.fallbacks = [reading is None for reading in readings for _ in range(self.in_reply)]
        self.counters["moved_numbers"] += sum(answer.moved for answer in answers)
        seen = set(self.tried)
        for vector in vectors:
            self.counters["repeated_proposals"] += key_of(vector) in seen
            seen.add(key_of(vector))
        self.iteration += 1
        return vectors

    def _valid(self, reading: Reading | None, context: str | None, question: int) -> Reading:
        """`reading`, or what is proposed where no reply was valid."""
        if reading is not None:
            return reading
        place = (self.history.generations + 1, question)
        if self.fallback == "stop":
            raise LLMError(
                f"no valid reply for step {place[0]}, question {question}, in {self.repair_turns + 1} turns, and "
                "principal.fallback=stop ends the run; set principal.fallback=best to go on"
            )
        vector = self._again(context)
        logger.warning("no valid reply for generation %d, proposal %d; proposing %s", *place, vector.tolist())
        return Reading(np.tile(vector, (self.in_reply, 1)))

    def _again(self, context: str | None) -> np.ndarray:
        """What is proposed for want of anything better: the last vector or the best, else the middle of the bounds."""
        own = self.history.in_context(context)
        best = np.array(own[-1]["vector"]) if self.fallback == "last" and own else self.history.best(context)
        return self.space.rounded((self.space.low + self.space.high) / 2) if best is None else best

    def instead(self, vectors: np.ndarray, failed: np.ndarray) -> np.ndarray:
        """What to try, [n, d], for the `vectors` [n, d] of the last `ask` if those that `failed` [n] return no numbers.

        In their place, what is proposed without a valid reply (with `fallback=stop`, too, for these replies were).
        """
        vector = self._again(None)
        logger.warning("no finite return with %s; trying %s instead", vectors[failed].tolist(), vector.tolist())
        self.counters["unplayable_proposals"] += int(failed.sum())
        self.reasons = ["" if bad else reason for reason, bad in zip(self.reasons, failed, strict=True)]
        self.fallbacks = [bool(bad) or before for before, bad in zip(self.fallbacks, failed, strict=True)]
        return np.where(failed[:, None], vector, vectors)

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Learn outcomes, of its own proposals or of others'.

        Metrics, counted since the start of the run: those of `Asker`, and llm/moved_numbers (put inside the bounds),
        llm/repeated_proposals (made before, or by another question of the same step), llm/unplayable_proposals (of
        policies; see `instead`).
        """
        self.history.add(outcomes)
        self.tried |= {key_of(outcome.vector) for outcome in outcomes}
        return self.asker.metrics() | {f"llm/{name}": float(count) for name, count in self.counters.items()}

    def estimate(self, steps: int, n: int, known: int = 0) -> CallEstimate:
        """What `steps` steps of `n` proposals may take, from the prompts they would be asked with; `known` outcomes are
        told before the first."""
        future = copy.copy(self)
        # What is going to be proposed is not known, only that it differs.
        future.history, future.tried, future.iteration = History(self.spec, pooled=False), set(), 0
        future.asker = self._new_asker()
        if known:
            future.history.add([future.history.typical(self.space, 0)] * known)
        # The prompt grows about evenly between these moments.
        moments = sorted({0, 1, *(steps * i // 8 for i in range(9))} & set(range(steps)))
        context = self.spec.contexts[0] if self.spec.contexts else None
        tokens = []
        for moment in moments:
            while future.iteration < moment:
                future.history.add([future.history.typical(self.space, future.iteration)] * n)
                future.iteration += 1
            tokens.append(estimate_tokens(future.question(context, n, n).text))
        calls = steps if self.together else steps * n
        prompt_tokens = calls // steps * int(np.interp(np.arange(steps), moments, tokens).sum())
        reply = REPLY_TOKENS + NUMBER_TOKENS * (max(0, self.space.dim - 10) + (steps * n // calls - 1) * self.space.dim)
        return CallEstimate(calls, calls * (1 + self.repair_turns), prompt_tokens, calls * reply)

    def state_dict(self) -> State:
        return {
            "history": self.history.state_dict(),
            "asker": self.asker.state_dict(),
            "iteration": self.iteration,
            "counters": dict(self.counters),
        }

    def load_state_dict(self, state: State) -> None:
        self.history.load_state_dict(state["history"])
        self.asker.load_state_dict(state["asker"])
        self.iteration, self.counters = state["iteration"], self.counters | state["counters"]
        self.tried = {key_of(record["vector"]) for record in self.history.records}

    def question(self, context: str | None, proposal: int = 1, proposals: int = 1) -> Prompt:
        """The question for one of the next step's proposals, number `proposal` from 1."""
        selected = self.history.select(self.policy, self.window, self.contexts, context, self.newest)
        return self.asker.fit(lambda n: self._render(context, selected, n, proposal, proposals), len(selected))

    def _render(
        self, context: str | None, selected: list[Record], n: int, proposal: int = 1, proposals: int = 1
    ) -> Prompt:
        """With `n` of the `selected` records."""
        asked = Asked(context, proposal, proposals, proposals if self.together else 1, self.iteration)
        shown = self.history.trim(selected, self.policy, n)
        return self.questions.render(asked, self.history, shown, self._selection(context, selected, n))

    def _selection(self, context: str | None, selected: list[Record], n: int) -> str | None:
        """What is left out of the history that shows `n` of the `selected` records, in words; None: nothing is."""
        own = self.contexts == "own" and bool(self.spec.contexts)
        made = len(self.history.records)
        available = sum(len(self.history.rows(name)) for name in ([context] if own else self.history.contexts))
        here = " of this context" if own else ""
        if n < len(selected):
            which = {"best": "the best", "last": "the newest"}.get(self.policy, "the best and the newest")
            return f"There is room for {n} of the {available} proposals{here}: {which} of them are shown."
        if n < available:
            each = here or (" of each context" if self.spec.contexts else "")
            if self.policy == "chain":
                return f"Shown are the proposals{each} that were better than all before them, and the newest."
            if self.policy == "best_and_last":
                return f"Shown are the {self.newest} newest proposals{each} and the {self.window} best of the others."
            return f"Shown are the {self.window} {'newest' if self.policy == 'last' else 'best'} proposals{each}."
        if not available and made:
            return "None of them was made in this context, so none is shown."
        elsewhere = own and len(self.history.in_context(context)) < made
        return f"Shown are the proposals{here}." if elsewhere else None

    def parse(self, text: str) -> np.ndarray:
        """The vector in a reply, [d], inside the bounds.

        Raises:
            InvalidReply: there is none, or a number is out of bounds.
        """
        vector: np.ndarray = self.read(text).vectors[0]
        return vector

    def read(self, text: str) -> Reading:
        """The vectors in a reply (`in_reply` of them) as they will be tried.

        Raises:
            InvalidReply: there are none, a number is out of bounds, or a vector was tried before.
        """
        reading = self.questions.read(text, self.in_reply)
        if self.refuses(reading.vectors):
            try:
                self.space.check(reading.vectors)
            except ConfigError as error:
                raise InvalidReply(first_faults(str(error))) from None
        vectors = self.space.rounded(reading.vectors, clip=self.out_of_range != "accept")
        if self.reask_duplicates:
            self._check_fresh(vectors)
        moved = self.space.outside(reading.vectors).sum() if self.out_of_range == "clamp" else 0
        return Reading(vectors, reading.reasoning, int(moved))

    def refuses(self, vectors: np.ndarray) -> bool:
        """Whether numbers out of bounds among `vectors` [..., d] make a reply invalid."""
        outside = self.space.outside(vectors) & (self.space.choices | (self.out_of_range == "reask"))
        return self.out_of_range != "clamp" and bool(outside.any())

    def _check_fresh(self, vectors: np.ndarray) -> None:
        seen = set(self.tried)
        for i, vector in enumerate(vectors):
            if key_of(vector) in seen:
                which = "these numbers were" if len(vectors) == 1 else f"list {i + 1} was"
                raise InvalidReply(f"{which} proposed already: propose something that was not tried")
            seen.add(key_of(vector))

    def _repair(self, fault: str) -> Prompt:
        return self.questions.repair(fault, self.in_reply)

    def _new_asker(self) -> Asker[Reading]:
        return Asker(
            self.llm, self.questions.purpose, self.read, self._repair, self.questions.schema(1), self.repair_turns
        )
