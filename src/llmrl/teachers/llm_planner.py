"""Planner that requests several replies of a language model for each abstract state (sentence), once per state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import ChatReply, State
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.structured_query import StructuredQuery
from llmrl.teachers.domain import Domain
from llmrl.teachers.offline_planner import save_plan_table
from llmrl.teachers.planners import PlanDistribution, normalize_weights
from llmrl.teachers.plans import Plan, build_reply_schema, format_plan, parse_reply

logger = logging.getLogger(__name__)

PROMPT_FAMILY = "teacher"
PROMPT_FOLDER = Path(__file__).with_name("prompts")
PLANS_FILE_NAME = "plans.json"
"""File in the run folder with the plans of all states that have valid plans, for `teacher=offline
teacher.table=<file>`."""

ReplyParser = Literal["shared", "published"]
"""Parser of replies: `shared`: that of `llmrl.llms.reading`; `published`: that of LLM4Teach as released."""

MAX_REQUEST_INTERVAL = 64
"""Maximum number of look-ups of a state without a valid plan from one request to the next, including the latter."""


@dataclass(frozen=True)
class LLMPlannerSettings:
    """Options of `LLMPlanner`; meanings, units and ranges are in `conf/teacher/llm.yaml`."""

    samples: PositiveInt
    repair_turns: NonNegativeInt
    prompt: str | None
    parser: ReplyParser


class LLMPlanner:
    """Planner with `samples` replies of a chat model for each state; probabilities of plans are their frequencies.

    It follows LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373), with other prompts and a strict grammar: a reply
    must name existing skills and objects, else the model receives an error message. Invalid samples are omitted and
    counted. A state without a valid sample gets the domain's `fallback`.

    Plans are stored permanently, except a fallback. Plans of a state with a fallback are requested again at its next
    look-up, then less often: after 1, 3, 7, ... look-ups without a request, at most `MAX_REQUEST_INTERVAL` - 1.

    Args:
        settings: options; with the parser `published` no reply is invalid, and no schema is requested.
        domain: domain of the states.
        llm: chat model that answers repeated requests independently, as `ChatClient` does.
        prompt_folder: folder with prompts of the user; None: there is none.
        folder: folder of the file `PLANS_FILE_NAME`; None: no file is written.
        horizon: number of steps of an episode, which the prompt contains; None: the prompt does not contain it.

    Raises:
        ConfigError: there is no chat model or no such prompt, the prompt cannot be rendered, or the domain has no
            published parser.
    """

    def __init__(
        self,
        settings: LLMPlannerSettings,
        domain: Domain,
        llm: ChatModel | None,
        prompt_folder: Path | None = None,
        folder: Path | None = None,
        horizon: int | None = None,
    ) -> None:
        if llm is None:
            raise ConfigError(
                "teacher=llm needs a chat model, but llm=none is set; choose one with llm=, or use teacher=offline "
                "(frozen plans) or teacher=oracle"
            )
        self.settings, self.domain, self.folder, self.horizon = settings, domain, folder, horizon
        self.prompt_name = settings.prompt or domain.prompt
        self.label = llm.label
        self.prompts = PromptFamily(PROMPT_FAMILY, PROMPT_FOLDER, prompt_folder)
        if self.prompt_name not in self.prompts.names:
            raise ConfigError(
                f"teacher.prompt: the domain {domain.name} has no prompt {self.prompt_name}.j2; available: "
                f"{', '.join(self.prompts.names)}. Put new ones into <folder>/{PROMPT_FAMILY}/ and set prompts=<folder>"
            )
        # Render now, so that errors of a template, or a missing parser, end the run before its first state.
        if settings.parser == "published":
            domain.read_published("", "")
        self._render_question("Agent sees <thing>.", ("thing",))
        self._render_repair("a fault")
        schema = build_reply_schema(domain.skills, domain.vocabulary) if settings.parser == "shared" else None
        self.structured_query: StructuredQuery[Plan] = StructuredQuery(
            llm, PROMPT_FAMILY, self._make_parser(""), self._render_repair, schema, settings.repair_turns
        )
        self.plans_by_sentence: dict[str, PlanDistribution] = {}
        self.fallback_plans: PlanDistribution = ((domain.fallback, 1.0),)
        """Plans of states without a valid plan; other code compares with `is`."""
        self.retries_by_sentence: dict[str, tuple[int, int]] = {}
        """Sentence without a valid plan -> number of failed requests, and number of look-ups before the next one."""
        self.counters = {"requested_states": 0, "fallbacks": 0}

    def plans(self, sentences: Sequence[str]) -> list[PlanDistribution]:
        """Return the plans of each sentence, after one batch of requests for all new sentences.

        Raises:
            LLMError: the model failed permanently, or the budget is exhausted; no new plan is then stored.
        """
        new_sentences = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self.plans_by_sentence]
        due_sentences = [s for s in new_sentences if self.retries_by_sentence.get(s, (0, 0))[1] == 0]
        if due_sentences:
            self._request_plans(due_sentences)
        for sentence in set(new_sentences) - set(due_sentences):
            n_failures, n_skips = self.retries_by_sentence[sentence]
            self.retries_by_sentence[sentence] = (n_failures, n_skips - 1)
        return [self.plans_by_sentence.get(sentence, self.fallback_plans) for sentence in sentences]

    def render_question(self, sentence: str) -> Prompt:
        """Return the prompt for the state `sentence`."""
        return self._render_question(sentence, self.domain.objects(sentence))

    def describe(self) -> dict[str, str]:
        parser_description = {} if self.settings.parser == "shared" else {"replies": "read as published"}
        return {"planner": self.label, "samples": str(self.settings.samples), **parser_description}

    def metrics(self) -> dict[str, float]:
        """Return counts since the start of the run.

        They are teacher/requested_states (number of requested states, including repetitions), teacher/fallbacks (number
        of samples without a valid plan), teacher/unknown (number of states whose current plan is the fallback), and
        those of `StructuredQuery`.
        """
        counts = {f"teacher/{name}": float(count) for name, count in self.counters.items()}
        return counts | {"teacher/unknown": float(len(self.retries_by_sentence))} | self.structured_query.metrics()

    def state_dict(self) -> State:
        table = {
            sentence: [[format_plan(plan), p] for plan, p in plans]
            for sentence, plans in self.plans_by_sentence.items()
        }
        return {
            "plans": table,
            "unknown": {sentence: list(counts) for sentence, counts in self.retries_by_sentence.items()},
            "counters": dict(self.counters),
            "structured_query": self.structured_query.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.plans_by_sentence = {
            sentence: tuple((self.domain.read_plan(text, sentence), float(p)) for text, p in plans)
            for sentence, plans in state["plans"].items()
        }
        self.retries_by_sentence = {
            sentence: (int(n_failures), int(n_skips)) for sentence, (n_failures, n_skips) in state["unknown"].items()
        }
        self.counters = dict(state["counters"])
        self.structured_query.load_state_dict(state["structured_query"])

    def _request_plans(self, sentences: Sequence[str]) -> None:
        """Request plans for all sentences and store the valid ones."""
        questions = [self.render_question(sentence) for sentence in sentences for _ in range(self.settings.samples)]
        parsers = [self._make_parser(sentence) for sentence in sentences for _ in range(self.settings.samples)]
        replies = self.structured_query.ask(questions, parsers)
        self.counters["requested_states"] += len(sentences)
        for i, sentence in enumerate(sentences):
            indices = range(i * self.settings.samples, (i + 1) * self.settings.samples)
            valid_plans = [(plan, 1.0) for plan in (replies[k] for k in indices) if plan is not None]
            self.counters["fallbacks"] += self.settings.samples - len(valid_plans)
            if valid_plans:
                self.plans_by_sentence[sentence] = normalize_weights(valid_plans)
                self.retries_by_sentence.pop(sentence, None)
                continue
            n_failures = self.retries_by_sentence.get(sentence, (0, 0))[0]
            # A call that failed for other reasons than the state does not delay the next request.
            was_answered = self.structured_query.failed_indices.isdisjoint(indices)
            self.retries_by_sentence[sentence] = (
                (n_failures + 1, min(2**n_failures, MAX_REQUEST_INTERVAL) - 1) if was_answered else (n_failures, 0)
            )
            logger.warning(
                "%s gave no valid plan for %r; the plan is %s until it does",
                self.label,
                sentence,
                format_plan(self.domain.fallback),
            )
        if self.folder is not None:
            samples = self.settings.samples
            caption = f"Plans of {self.label}, {samples} samples per state; states without a valid plan are omitted."
            save_plan_table(self.folder / PLANS_FILE_NAME, self.domain.name, caption, self.plans_by_sentence)

    def _make_parser(self, sentence: str) -> Callable[[ChatReply], Plan]:
        skills, objects = self.domain.skills, self.domain.objects(sentence)
        if self.settings.parser == "published":
            return lambda reply: self.domain.read_published(reply.text, sentence)
        return lambda reply: parse_reply(reply.text, skills, objects, sentence, reply.is_truncated)

    def _render_question(self, sentence: str, objects: Sequence[str]) -> Prompt:
        return self.prompts.render(
            self.prompt_name,
            domain=self.domain.name,
            skills=self.domain.skills,
            sentence=sentence,
            objects=objects,
            horizon=self.horizon,
        )

    def _render_repair(self, reason: str) -> Prompt:
        return self.prompts.render("_repair", fault=reason, skills=self.domain.skills)
