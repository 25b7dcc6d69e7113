"""Principal `principal=vote`, whose citizens vote on the numbers that apply for one generation."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import CallEstimate, ChatReply, Outcome, PrincipalBriefing
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.reading.answer_parser import REFUSAL, AnswerParser, CandidateAnswer, parse_answer
from llmrl.llms.reading.choice_parser import RECONSIDERATION, ChoiceParser
from llmrl.llms.reading.name_matcher import NameMatcher, negated, normalize_name
from llmrl.llms.reading.non_answer_text import is_doubtful
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import StructuredQuery
from llmrl.principals.llm_mechanism import numbers_model

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).with_name("prompts")
REPLY_TOKENS = 70
"""Approximate number of tokens of a vote or a nomination."""
Nominate = Literal["citizens", "random"]
VoteRule = Literal["plurality", "approval"]


@dataclass(frozen=True)
class VoteSettings:
    """Options of `VotePrincipal`; meanings, units and ranges are in `conf/principal/vote.yaml`."""

    nominate: Nominate
    nominations: PositiveInt
    rule: VoteRule
    voters: PositiveInt | None
    memory: PositiveInt
    repair_turns: NonNegativeInt


class VotePrincipal(StateFields):
    """Principal whose citizens, each a language model with its own returns, nominate vectors and vote on them.

    The ballot has the vector of the last generation (at first: no intervention) and the nominations, in an order that
    the seed determines for each vote. In a tie, the vector of the last generation wins if it is among the winners, else
    the first of them on the ballot. A citizen without a valid vote abstains.

    Args:
        settings: options.
        spec: spec of the environment, with a mechanism.
        llm: the chat model of all citizens.
        seeds: seed tree of random nominations, of the choice of nominators, and of the order of ballots.
        prompt_folder: folder of a user's own prompts, such as `principal/_ballot.j2`; None: there is none.

    Raises:
        ConfigError: no chat model, no mechanism, or more nominators or voters than citizens.
    """

    _state_fields = ("records", "votes", "last_metrics", "totals", "nominator", "voter")

    parallel = False

    def __init__(
        self,
        settings: VoteSettings,
        spec: EnvSpec,
        llm: ChatModel | None,
        seeds: Seeds,
        prompt_folder: Path | None = None,
    ) -> None:
        if llm is None:
            raise ConfigError(
                "principal=vote needs a chat model for the citizens, but llm=none is set; choose one with llm="
            )
        n_nominations = settings.nominations if settings.nominate == "citizens" else 1
        for name, n in (("voters", settings.voters or 1), ("nominations", n_nominations)):
            if n > spec.n_agents:
                raise ConfigError(
                    f"principal.{name}={n} exceeds the {spec.n_agents} agents of env={spec.name}; use at most that"
                )
        if spec.facts.get("budget_balanced") is False:
            logger.warning(
                "the incentives of env=%s cost the citizens nothing, so selfish citizens vote for the highest; with "
                "budget_balanced=true all citizens pay for them in equal shares",
                spec.name,
            )
        self.spec, self.space, self.llm, self.seeds = spec, spec.proposals, llm, seeds
        self.settings, self.voters = settings, settings.voters or spec.n_agents
        self.prompts = PromptFamily("principal", FOLDER, prompt_folder)
        self.briefing: PrincipalBriefing | None = None
        self.records: list[dict[str, Any]] = []
        self.votes = 0
        self.last_metrics: dict[str, float] = {}
        self.totals = {"abstentions": 0, "unchanged": 0}
        self.nominator: StructuredQuery[np.ndarray] = StructuredQuery(
            llm,
            "nomination",
            self._parse_nomination,
            self._repair_nomination,
            json_schema(numbers_model(self.space)),
            settings.repair_turns,
        )
        self.voter = self._vote_query(["option_1"])
        # Render every prompt once, so that errors in prompts are found before the run.
        self._render_ballot(0, None, self._build_options([self.space.neutral]))
        self._render_nomination_prompt(0, None)
        self.voter.repair("-")
        self.nominator.repair("-")

    def brief(self, briefing: PrincipalBriefing) -> None:
        """Store the facts about the run."""
        self.briefing = briefing

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.row(context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        vote_seeds = self.seeds.child("vote").child(self.votes)
        status_quo_vector = self._status_quo_vector(name)
        candidates = [status_quo_vector, *self._collect_nominations(vote_seeds, name)]
        ballot = np.array(
            list(dict.fromkeys(tuple(vector) for vector in self.space.rounded(np.array(candidates)).tolist()))
        )
        ballot = ballot[vote_seeds.numpy("order").permutation(len(ballot))]
        if len(ballot) == 1:  # only the present vector is on the ballot, so there is no vote
            self.totals["unchanged"] += 1
            self.last_metrics = {"vote/options": 1.0, "vote/winner_share": 1.0, "vote/turnout": 0.0}
            self.votes += 1
            return ballot
        options = self._build_options(list(ballot), status_quo_vector)
        voter = self._vote_query([option["name"] for option in options])
        voter.load_state_dict(self.voter.state_dict())
        self.voter = voter
        votes = voter.ask([self._render_ballot(agent, name, options) for agent in range(self.voters)])
        tally = count_votes(votes, len(ballot))
        winners = np.flatnonzero(tally == tally.max())
        status_quo_winners = [
            i for i in winners.tolist() if np.array_equal(ballot[i], self.space.rounded(status_quo_vector[None])[0])
        ]
        winner = status_quo_winners[0] if status_quo_winners else int(winners[0])
        n_abstentions = sum(vote is None for vote in votes)
        self.totals["abstentions"] += n_abstentions
        self.totals["unchanged"] += bool(status_quo_winners)
        self.last_metrics = {
            "vote/options": float(len(ballot)),
            "vote/winner_share": float(tally[winner] / max(self.voters - n_abstentions, 1)),
            "vote/turnout": 1 - n_abstentions / self.voters,
        }
        self.votes += 1
        return ballot[[winner]]

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Store the returns of each citizen; return the counts of votes and of the model's replies."""
        for outcome in outcomes:
            self.records.append(
                {
                    "generation": len(self.records) + 1,
                    "context": None if outcome.context is None else self.spec.contexts[outcome.context],
                    "vector": [float(x) for x in outcome.vector],
                    "returns": [float(x) for x in outcome.net_returns],
                }
            )
        call_metrics = {name: x + self.nominator.metrics()[name] for name, x in self.voter.metrics().items()}
        return call_metrics | self.last_metrics | {f"vote/{name}": float(n) for name, n in self.totals.items()}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector of the last vote in a context, [1, d]; [0, d] before the first vote."""
        row = self.space.row(context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        elected = [record["vector"] for record in self.records if record["context"] == name]
        vectors = [np.array(vector) for vector in elected[-1:]]
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Return the estimate for `steps` votes, from rendered prompts with half of the final memory."""
        vector = self.space.neutral
        n_records = min(self.settings.memory, (steps + n_earlier_outcomes) // 2)
        row = {"generation": 1, "context": None, "vector": vector.tolist(), "returns": [0.0] * self.spec.n_agents}
        records, self.records = self.records, [row] * n_records
        options = self._build_options([vector] * (self.settings.nominations + 1))
        ballot = estimate_tokens(self._render_ballot(0, None, options).text)
        proposal = estimate_tokens(self._render_nomination_prompt(0, None).text)
        self.records = records
        n_nominations = self.settings.nominations if self.settings.nominate == "citizens" else 0
        calls = steps * (self.voters + n_nominations)
        max_calls = calls * (1 + self.settings.repair_turns)
        return CallEstimate(
            calls, max_calls, steps * (self.voters * ballot + n_nominations * proposal), calls * REPLY_TOKENS
        )

    def _status_quo_vector(self, context: str | None) -> np.ndarray:
        """Return the vector of the last generation of a context, [d]; at first the neutral one."""
        records = [record for record in self.records if record["context"] == context]
        return np.array(records[-1]["vector"]) if records else self.space.neutral

    def _collect_nominations(self, seeds: Seeds, context: str | None) -> list[np.ndarray]:
        """Return the nominations, each [d]; citizens without a valid nomination are omitted."""
        space = self.space
        if self.settings.nominate == "random":
            vectors = seeds.numpy("nominations").uniform(space.low, space.high, (self.settings.nominations, space.dim))
            return list(vectors)
        agents = seeds.numpy("nominators").permutation(self.spec.n_agents)[: self.settings.nominations]
        replies = self.nominator.ask(
            [self._render_nomination_prompt(int(agent), context) for agent in sorted(agents.tolist())]
        )
        return [vector for vector in replies if vector is not None]

    def _build_options(
        self, vectors: Sequence[np.ndarray], status_quo_vector: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        return [
            {
                "name": f"option_{i + 1}",
                "values": list(zip(self.space.names, vector.tolist(), strict=True)),
                "words": self.space.in_a_sentence(vector),
                "holds": status_quo_vector is not None
                and bool(self.records)
                and np.array_equal(vector, status_quo_vector),
            }
            for i, vector in enumerate(vectors)
        ]

    def _vote_query(self, options: Sequence[str]) -> StructuredQuery[list[int]]:
        """Return the query for votes on `options`, whose parser, repair prompt and schema depend on them."""
        approval = self.settings.rule == "approval"
        return StructuredQuery(
            self.llm,
            "vote",
            partial(self._parse_vote, options),
            partial(self._repair_vote, options),
            build_vote_schema(options, approval),
            self.settings.repair_turns,
        )

    def _render_ballot(self, agent: int, context: str | None, options: list[dict[str, Any]]) -> Prompt:
        approval = self.settings.rule == "approval"
        return self.prompts.render("_ballot", options=options, approval=approval, **self._citizen_facts(agent, context))

    def _render_nomination_prompt(self, agent: int, context: str | None) -> Prompt:
        return self.prompts.render("_nomination", **self._citizen_facts(agent, context))

    def _citizen_facts(self, agent: int, context: str | None) -> dict[str, Any]:
        """Return the facts known to a citizen, as template fields."""
        spec = self.spec
        return {
            "name": spec.name,
            "n_agents": spec.n_agents,
            "agent": agent + 1,
            "actions": spec.action_names,
            "facts": spec.facts,
            "mechanism": self.space.name,
            "parameters": self.space.parameters,
            "context": context,
            "briefing": self.briefing,
            "generation": len(self.records) + 1,
            "history": [
                {
                    "generation": record["generation"],
                    "context": record["context"],
                    "values": list(zip(self.space.names, record["vector"], strict=True)),
                    "own": record["returns"][agent],
                    "mean": float(np.mean(record["returns"])),
                }
                for record in self.records[-self.settings.memory :]
            ],
        }

    def _parse_nomination(self, reply: ChatReply) -> np.ndarray:
        parameters = self.space.parameters
        question = VectorQuestion(turn=len(self.records) + 1)
        parser = VectorParser(self.space.names, [(p.low, p.high) for p in parameters], question)
        vector: np.ndarray = parse_answer(reply.text, parser, reply.cut).answer
        if (outside := self.space.outside(vector)).any():
            parameter = parameters[int(np.flatnonzero(outside)[0])]
            raise InvalidReply(f"{parameter.name} must be from {parameter.low:g} to {parameter.high:g}")
        return vector

    def _parse_vote(self, options: Sequence[str], reply: ChatReply) -> list[int]:
        if self.settings.rule == "approval":
            return parse_approvals(reply.text, options, reply.cut)
        return [parse_answer(reply.text, BallotParser(options), reply.cut).answer]

    def _repair_vote(self, options: Sequence[str], reason: str) -> Prompt:
        approval = self.settings.rule == "approval"
        return self.prompts.render("_repair_vote", fault=reason, options=options, approval=approval)

    def _repair_nomination(self, reason: str) -> Prompt:
        return self.prompts.render("_repair", fault=reason, parameters=self.space.parameters)


_APPROVAL_KEYS = ("choices", "choice", "approved", "approve", "approvals", "votes", "vote", "options", "choix", "wahl")
_BULLET = re.compile(r"^[ \t]*(?:[-*\u2022]|\d{1,2}[.)])[ \t]+([^\n]{1,60}?)[ \t.]*$", re.MULTILINE)
_NUMBERS = re.compile(
    r"\b(?:of|for|op[^\W\d]{3,6}|numbers?|pick|choose|support)\s+((?:\d{1,3}(?!\w|\.\d|%)(?:[\s,&]|and|und|et|y|e)*)+)",
    re.IGNORECASE,
)
_APPROVES = re.compile(
    r"\b(?:approve|approving|vote|voting|support|choose|pick|favou?r|accept|thumbs up)\b|"
    r"\bich stimme\b|\bje vote\b|\bvoto\b",
    re.IGNORECASE,
)


def build_vote_schema(options: Sequence[str], approval: bool) -> dict[str, Any]:
    """Return the JSON schema of a vote: one of the options, or a list of those that are approved of."""
    option_schema = {"type": "string", "enum": list(options)}
    vote = {"choices": {"type": "array", "items": option_schema}} if approval else {"choice": option_schema}
    properties = {"reasoning": {"type": "string"}, **vote}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class BallotParser(ChoiceParser):
    """Parser of one of the options of a ballot."""

    answer_name = "option"
    has_labels = True


class _Approvals(AnswerParser[list[int]]):
    """Parser of a list of options: under `choices`, as a bare list, as bullets, or in sentences of approval."""

    answer_name = "list of choices"
    has_labels = True

    def __init__(self, options: Sequence[str]) -> None:
        self._names, self._n = NameMatcher(options), len(options)

    def parse_value(self, value: Any) -> list[int] | None:
        if isinstance(value, Mapping):
            choices = next((x for key, x in value.items() if normalize_name(str(key)) in _APPROVAL_KEYS), None)
        else:
            choices = value if isinstance(value, list) and value and not isinstance(value[0], Mapping | list) else None
        if isinstance(choices, Mapping) and len(choices) == 1:
            [choices] = choices.values()  # <choices><choice>
        if isinstance(choices, Mapping) and all(isinstance(approval, bool) for approval in choices.values()):
            choices = [name for name, is_approved in choices.items() if is_approved]
        if choices is None:
            nested = value.values() if isinstance(value, Mapping) else ()
            parsed = [self.parse_value(inner) for inner in nested if isinstance(inner, Mapping)]
            return next((indices for indices in parsed if indices is not None), None)
        entries = choices if isinstance(choices, list) else [choices]
        indices = [self._option(entry) for entry in entries]
        if unknown := [entry for entry, i in zip(entries, indices, strict=True) if i is None]:
            raise InvalidReply(f"there is no option {str(unknown[0])[:40]!r}")
        return sorted({i for i in indices if i is not None})

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[list[int]]]:
        lines = [(match, self._names.exact(match[1])) for match in _BULLET.finditer(text)]
        matches = [(match, i) for match, i in lines if i is not None]
        if not matches or truncated or len(matches) < len(lines):
            return []
        start, end = matches[0][0].start(), matches[-1][0].end()
        heading = text[:start].strip().rsplit("\n", 1)[-1]
        # A list under another heading, or of all options without any, need not be of those approved.
        if negated(heading) or not (_APPROVES.search(heading) if heading else len(matches) < self._n):
            return []
        return [CandidateAnswer(start, end, sorted({i for _, i in matches}), form=1)]

    def parse_prose(self, text: str) -> list[int] | None:
        if REFUSAL.search(text) or RECONSIDERATION.search(text):
            return None
        indices: set[int] = set()
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", text)[:200]:
            mentioned = {i for _, _, i in self._names.mentions(sentence)}
            digits = [number for group in _NUMBERS.findall(sentence) for number in re.findall(r"\d+", group)]
            numbers = {self._option(int(number)) for number in digits}
            if _APPROVES.search(sentence):
                if is_doubtful(sentence) or re.search(r"\bover\b|\bor\b|\d of\b", sentence):
                    return None
                indices |= mentioned | {i for i in numbers if i is not None}
        return sorted(indices) or None

    def _option(self, entry: Any) -> int | None:
        if isinstance(entry, int) and not isinstance(entry, bool):
            return self._names.exact(f"option_{entry}")
        return self._names.meant(entry) if isinstance(entry, str) else None


def parse_approvals(text: str, options: Sequence[str], truncated: bool) -> list[int]:
    """Return the indices of the options that a reply approves of, possibly none.

    Raises:
        InvalidReply: the reply holds no such list, or names an option that does not exist.
    """
    return parse_answer(text, _Approvals(options), truncated).answer


def count_votes(votes: Sequence[Sequence[int] | None], options: int) -> np.ndarray:
    """Return the number of votes for each option, [options]; None is an abstention."""
    choices = [option for vote in votes if vote is not None for option in vote]
    return np.bincount(np.array(choices, dtype=np.int64), minlength=options)
