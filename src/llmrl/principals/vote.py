"""Principal `principal=vote`: language-model citizens elect the mechanism vector of each step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
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
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import StructuredQuery
from llmrl.principals.llm_mechanism import create_reply_model

logger = logging.getLogger(__name__)

PROMPTS_DIR = Path(__file__).with_name("prompts")
TYPICAL_REPLY_TOKENS = 70
"""Approximate number of tokens of a vote or a nomination."""
Nominate = Literal["citizens", "random"]


@dataclass(frozen=True)
class VoteSettings:
    """Options of `VotePrincipal`; meanings, units and ranges are in `conf/principal/vote.yaml`."""

    nominate: Nominate
    nominations: PositiveInt
    voters: PositiveInt | None
    memory: PositiveInt
    repair_turns: NonNegativeInt


class VotePrincipal(StateFields):
    """Principal that proposes vectors elected by citizens, language models that represent the agents of the society.

    A citizen's prompts contain the returns of its agent. The ballot lists the status quo, which is the vector of the
    context's last election (at first the neutral vector), and the nominations, in random order. If several vectors have
    the most votes, the status quo wins if it is one of them, else the first of them on the ballot. A citizen without a
    valid vote abstains.

    Args:
        settings: options.
        spec: specification of an environment with a mechanism.
        llm: the chat model of all citizens.
        seeds: seed tree of random nominations, of the choice of nominators, and of the order of ballots.
        prompt_folder: folder of user-defined prompts, such as `principal/_ballot.j2`; None: only the shipped prompts.

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
        for option, n in (("voters", settings.voters or 1), ("nominations", n_nominations)):
            if n > spec.n_agents:
                raise ConfigError(
                    f"principal.{option}={n} exceeds the {spec.n_agents} agents of env={spec.name}; use at most that"
                )
        if spec.facts.get("budget_balanced") is False:
            logger.warning(
                "the incentives of env=%s cost the citizens nothing, so selfish citizens vote for the highest; with "
                "budget_balanced=true all citizens pay for them in equal shares",
                spec.name,
            )
        self.spec, self.space, self.llm, self.seeds = spec, spec.proposal_space, llm, seeds
        self.settings, self.n_voters = settings, settings.voters or spec.n_agents
        self.prompts = PromptFamily("principal", PROMPTS_DIR, prompt_folder)
        self.briefing: PrincipalBriefing | None = None
        self.records: list[dict[str, Any]] = []  # generation, context, vector and returns of each outcome
        self.votes = 0  # number of elections so far, also of those without a vote
        self.last_metrics: dict[str, float] = {}  # metrics of the last election
        self.totals = {"abstentions": 0, "unchanged": 0}
        self.nominator: StructuredQuery[np.ndarray] = StructuredQuery(
            llm,
            "nomination",
            self._parse_nomination,
            lambda reason: self.prompts.render("_repair", fault=reason, parameters=self.space.parameters),
            json_schema(create_reply_model(self.space)),
            settings.repair_turns,
        )
        self.voter = self._make_vote_query(["option_1"])
        # Render every prompt once, so that errors in prompts are found before the run.
        self._render_ballot(0, None, self._build_option_fields([self.space.neutral]))
        self._render_nomination_prompt(0, None)
        self.voter.render_repair_prompt("-")
        self.nominator.render_repair_prompt("-")

    def brief(self, briefing: PrincipalBriefing) -> None:
        """Store the briefing, which prompts contain."""
        self.briefing = briefing

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        self.space.find_context_row(context)
        context_name = self.spec.get_context_name(context)
        vote_seeds = self.seeds.child("vote").child(self.votes)
        records = [record for record in self.records if record["context"] == context_name]
        status_quo_vector = np.array(records[-1]["vector"]) if records else self.space.neutral
        candidates = [status_quo_vector, *self._collect_nominations(vote_seeds, context_name)]
        ballot = np.array(
            list(dict.fromkeys(tuple(vector) for vector in self.space.round_values(np.array(candidates)).tolist()))
        )
        ballot = ballot[vote_seeds.numpy("order").permutation(len(ballot))]
        if len(ballot) == 1:  # only the status quo is on the ballot, so there is no vote
            self.totals["unchanged"] += 1
            self.last_metrics = {"vote/options": 1.0, "vote/winner_share": 1.0, "vote/turnout": 0.0}
            self.votes += 1
            return ballot
        options = self._build_option_fields(list(ballot), status_quo_vector)
        vote_query = self._make_vote_query([option["name"] for option in options])
        vote_query.load_state_dict(self.voter.state_dict())
        self.voter = vote_query
        prompts = [self._render_ballot(agent, context_name, options) for agent in range(self.n_voters)]
        citizen_votes = vote_query.ask(prompts)
        valid_votes = [vote for vote in citizen_votes if vote is not None]
        vote_counts = np.bincount(np.array(valid_votes, dtype=np.int64), minlength=len(ballot))
        winner_indices = np.flatnonzero(vote_counts == vote_counts.max())
        is_status_quo = (ballot[winner_indices] == self.space.round_values(status_quo_vector)).all(axis=1)
        winner_index = int(winner_indices[is_status_quo.argmax()])  # the first winner if none is the status quo
        n_abstentions = len(citizen_votes) - len(valid_votes)
        self.totals["abstentions"] += n_abstentions
        self.totals["unchanged"] += int(is_status_quo.any())
        self.last_metrics = {
            "vote/options": float(len(ballot)),
            "vote/winner_share": float(vote_counts[winner_index] / max(len(valid_votes), 1)),
            "vote/turnout": 1 - n_abstentions / self.n_voters,
        }
        self.votes += 1
        return ballot[[winner_index]]

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Store the outcomes; return metrics of the last election and, since the start, of calls and abstentions."""
        for outcome in outcomes:
            self.records.append(
                {
                    "generation": len(self.records) + 1,
                    "context": self.spec.get_context_name(outcome.context),
                    "vector": [float(x) for x in outcome.vector],
                    "returns": [float(x) for x in outcome.net_returns],
                }
            )
        call_metrics = {name: x + self.nominator.metrics()[name] for name, x in self.voter.metrics().items()}
        return call_metrics | self.last_metrics | {f"vote/{name}": float(n) for name, n in self.totals.items()}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector of the last election in a context, [1, d]; [0, d] before the first outcome."""
        self.space.find_context_row(context)
        context_name = self.spec.get_context_name(context)
        elected_vectors = [record["vector"] for record in self.records if record["context"] == context_name]
        return np.array(elected_vectors[-1:][:n], dtype=np.float64).reshape(-1, self.space.dim)

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Return the estimate for `steps` elections, from prompts with the average number of records."""
        vector = self.space.neutral
        n_records = min(self.settings.memory, n_earlier_outcomes + steps // 2)
        record = {"generation": 1, "context": None, "vector": vector.tolist(), "returns": [0.0] * self.spec.n_agents}
        records, self.records = self.records, [record] * n_records
        options = self._build_option_fields([vector] * (self.settings.nominations + 1))
        ballot_tokens = estimate_tokens(self._render_ballot(0, None, options).text)
        nomination_tokens = estimate_tokens(self._render_nomination_prompt(0, None).text)
        self.records = records
        n_nominations = self.settings.nominations if self.settings.nominate == "citizens" else 0
        n_calls = steps * (self.n_voters + n_nominations)
        max_calls = n_calls * (1 + self.settings.repair_turns)
        prompt_tokens = steps * (self.n_voters * ballot_tokens + n_nominations * nomination_tokens)
        return CallEstimate(n_calls, max_calls, prompt_tokens, n_calls * TYPICAL_REPLY_TOKENS)

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

    def _build_option_fields(
        self, vectors: Sequence[np.ndarray], status_quo_vector: np.ndarray | None = None
    ) -> list[dict[str, Any]]:
        return [
            {
                "name": f"option_{i + 1}",
                "values": list(zip(self.space.names, vector.tolist(), strict=True)),
                "words": self.space.describe_effects(vector),
                "holds": status_quo_vector is not None
                and bool(self.records)
                and np.array_equal(vector, status_quo_vector),
            }
            for i, vector in enumerate(vectors)
        ]

    def _make_vote_query(self, options: Sequence[str]) -> StructuredQuery[int]:
        """Return the query for votes on `options`, whose parser, repair prompt and schema depend on them."""
        return StructuredQuery(
            self.llm,
            "vote",
            lambda reply: parse_answer(reply.text, BallotParser(options), reply.is_truncated).answer,
            lambda reason: self.prompts.render("_repair_vote", fault=reason, options=options),
            build_vote_schema(options),
            self.settings.repair_turns,
        )

    def _render_ballot(self, agent: int, context: str | None, options: list[dict[str, Any]]) -> Prompt:
        return self.prompts.render("_ballot", options=options, **self._build_prompt_fields(agent, context))

    def _render_nomination_prompt(self, agent: int, context: str | None) -> Prompt:
        return self.prompts.render("_nomination", **self._build_prompt_fields(agent, context))

    def _build_prompt_fields(self, agent: int, context: str | None) -> dict[str, Any]:
        """Return the template fields of a citizen's prompts; `agent` is its index, from 0."""
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
        vector: np.ndarray = parse_answer(reply.text, parser, reply.is_truncated).answer
        if (is_outside := self.space.is_out_of_bounds(vector)).any():
            parameter = parameters[int(np.flatnonzero(is_outside)[0])]
            raise InvalidReply(f"{parameter.name} must be from {parameter.low:g} to {parameter.high:g}")
        return vector


def build_vote_schema(options: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of a vote for one of the options."""
    properties = {"reasoning": {"type": "string"}, "choice": {"type": "string", "enum": list(options)}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class BallotParser(ChoiceParser):
    """Parser of a vote, the name of one of the options on a ballot."""

    answer_name = "option"
    question_labels_options = True
