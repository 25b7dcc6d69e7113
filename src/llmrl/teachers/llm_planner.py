"""Planner that is a language model: several replies for each abstract state, requested once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import ChatReply, State
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.structured_query import StructuredQuery
from llmrl.teachers.domain import Domain
from llmrl.teachers.plan_tables import write_table
from llmrl.teachers.planners import Distribution, distribution
from llmrl.teachers.plans import Plan, parse_reply, plan_text, reply_schema

logger = logging.getLogger(__name__)

FAMILY = "teacher"
FOLDER = Path(__file__).with_name("prompts")
TABLE = "plans.json"
"""File in the run folder with the plans of all states that have a valid one; `teacher=offline teacher.table=<file>`
replays it."""

Reading = Literal["shared", "published"]
"""How a reply is read: by the shared readers (`llmrl.llms.reading`), or as the published teacher does."""

LONGEST_PAUSE = 64
"""Most look-ups of a state without a valid plan from one question to the next."""


class LLMPlanner:
    """Planner that asks a chat model `samples` times for each state and takes the shares of plans as probabilities.

    After LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373), with prompts of our own and a strict grammar: a reply
    must name existing skills and objects, or the model is shown its error. Invalid samples are left out and counted. A
    state without a valid sample gets the domain's `fallback`.

    The plans of a state are kept for good. A fallback is not kept in the table. The state is asked for again at its
    next look-up, then ever more rarely: at every second look-up, every fourth, and so on up to `LONGEST_PAUSE`.

    Args:
        domain: domain of the states.
        llm: chat model that answers repeated questions independently, as `ChatClient` does.
        prompt_folder: folder of a user's own prompts; None: there is none.
        samples: replies for each state.
        repair_turns: chances to correct an invalid reply.
        folder: folder of the readable file of the plan table; None: no file is written.
        prompt: name of the prompt; None: the domain's own.
        horizon: steps of an episode, as stated in the prompt; None: not stated.
        reading: how replies are read; with `published` no reply is invalid, and no schema is requested.

    Raises:
        ConfigError: no chat model, no such prompt or one that cannot be rendered, or no published reading.
    """

    def __init__(
        self,
        domain: Domain,
        llm: ChatModel | None,
        prompt_folder: Path | None = None,
        samples: PositiveInt = 10,
        repair_turns: NonNegativeInt = 1,
        folder: Path | None = None,
        prompt: str | None = None,
        horizon: PositiveInt | None = None,
        reading: Reading = "shared",
    ) -> None:
        if llm is None:
            raise ConfigError(
                "teacher=llm needs a chat model, and llm=none is none: choose one of llm=, or teacher=offline (frozen "
                "plans) or teacher=oracle"
            )
        self.domain, self.samples, self.folder = domain, samples, folder
        self.prompt, self.horizon, self.reading = prompt or domain.prompt, horizon, reading
        self.label = llm.label
        self.prompts = PromptFamily(FAMILY, FOLDER, prompt_folder)
        if self.prompt not in self.prompts.names:
            raise ConfigError(
                f"the domain {domain.name} has no prompt {self.prompt}.j2; there are {', '.join(self.prompts.names)}"
                f"; put it into <folder>/{FAMILY}/ and set prompts=<folder>"
            )
        # Render now, so that faults of a template, or a missing reading, end the run before its first state.
        if reading == "published":
            domain.read_published("", "")
        self._render("Agent sees <thing>.", ("thing",))
        self._repair("a fault")
        schema = reply_schema(domain.skills, domain.vocabulary) if reading == "shared" else None
        self.asker: StructuredQuery[Plan] = StructuredQuery(
            llm, FAMILY, self._reader(""), self._repair, schema, repair_turns
        )
        self.known: dict[str, Distribution] = {}
        self.no_plan: Distribution = ((domain.fallback, 1.0),)
        """Answer for states without a valid plan, recognised by the identity of this object."""
        self.unknown: dict[str, tuple[int, int]] = {}
        """States without a valid plan so far: number of failed questions, and look-ups left before the next one."""
        self.counters = {"asked": 0, "fallbacks": 0}

    def plans(self, sentences: Sequence[str]) -> list[Distribution]:
        """Return the plans of each sentence, after one batch of questions about all new sentences.

        Raises:
            LLMError: the model failed for good, or the budget is exhausted; no new plan is kept then.
        """
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.known]
        due = [sentence for sentence in new if self.unknown.get(sentence, (0, 0))[1] == 0]
        if due:
            self._ask(due)
        for sentence in set(new) - set(due):
            times, left = self.unknown[sentence]
            self.unknown[sentence] = (times, left - 1)
        return [self.known.get(sentence, self.no_plan) for sentence in sentences]

    def question(self, sentence: str) -> Prompt:
        """Return the prompt for the state `sentence`."""
        return self._render(sentence, self.domain.objects(sentence))

    def describe(self) -> dict[str, str]:
        read = {} if self.reading == "shared" else {"replies": "read as published"}
        return {"planner": self.label, "samples": str(self.samples), **read}

    def metrics(self) -> dict[str, float]:
        """Return counts since the start of the run: teacher/asked (states asked for, counting repetitions),
        teacher/fallbacks (samples without a valid reply), those of `StructuredQuery`; and teacher/unknown, the number
        of states whose plan is the fallback now."""
        counted = {f"teacher/{name}": float(count) for name, count in self.counters.items()}
        return counted | {"teacher/unknown": float(len(self.unknown))} | self.asker.metrics()

    def state_dict(self) -> State:
        known = {sentence: [[plan_text(plan), p] for plan, p in plans] for sentence, plans in self.known.items()}
        return {
            "known": known,
            "unknown": {sentence: list(counts) for sentence, counts in self.unknown.items()},
            "counters": dict(self.counters),
            "asker": self.asker.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.known = {
            sentence: tuple((self.domain.read_plan(text, sentence), float(p)) for text, p in plans)
            for sentence, plans in state["known"].items()
        }
        self.unknown = {sentence: (int(times), int(left)) for sentence, (times, left) in state["unknown"].items()}
        self.counters = dict(state["counters"])
        self.asker.load_state_dict(state["asker"])

    def _ask(self, sentences: Sequence[str]) -> None:
        """Ask about all sentences and keep the valid plans."""
        questions = [self.question(sentence) for sentence in sentences for _ in range(self.samples)]
        parsers = [self._reader(sentence) for sentence in sentences for _ in range(self.samples)]
        replies = self.asker.ask(questions, parsers)
        self.counters["asked"] += len(sentences)
        for i, sentence in enumerate(sentences):
            asked = range(i * self.samples, (i + 1) * self.samples)
            valid = [(plan, 1.0) for plan in (replies[k] for k in asked) if plan is not None]
            self.counters["fallbacks"] += self.samples - len(valid)
            if valid:
                self.known[sentence] = distribution(valid)
                self.unknown.pop(sentence, None)
                continue
            times = self.unknown.get(sentence, (0, 0))[0]
            # A failed call is no evidence about the state and costs nothing, so it causes no pause.
            reached = self.asker.unreached.isdisjoint(asked)
            self.unknown[sentence] = (times + 1, min(2**times, LONGEST_PAUSE) - 1) if reached else (times, 0)
            logger.warning(
                "%s gave no valid plan for %r; the plan is %s until it does",
                self.label,
                sentence,
                plan_text(self.domain.fallback),
            )
        if self.folder is not None:
            about = f"Plans of {self.label}, {self.samples} samples for each state; none of those without a valid one."
            write_table(self.folder / TABLE, self.domain.name, about, self.known)

    def _reader(self, sentence: str) -> Callable[[ChatReply], Plan]:
        skills, objects = self.domain.skills, self.domain.objects(sentence)
        if self.reading == "published":
            return lambda reply: self.domain.read_published(reply.text, sentence)
        return lambda reply: parse_reply(reply.text, skills, objects, sentence, reply.cut)

    def _render(self, sentence: str, objects: Sequence[str]) -> Prompt:
        return self.prompts.render(
            self.prompt,
            domain=self.domain.name,
            skills=self.domain.skills,
            sentence=sentence,
            objects=objects,
            horizon=self.horizon,
        )

    def _repair(self, fault: str) -> Prompt:
        return self.prompts.render("_repair", fault=fault, skills=self.domain.skills)
