"""Principal `principal=vote`: the citizens put numbers to the vote, and what wins holds for one generation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import Briefing, CallEstimate, ChatReply, Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.provider import estimate_tokens
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.vector_parser import VectorParser
from llmrl.llms.structured import InvalidReply, json_schema
from llmrl.llms.structured_query import StructuredQuery
from llmrl.principals.ballots import BallotParser, approved, counted, vote_schema
from llmrl.principals.llm_mechanism import numbers_model

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).with_name("prompts")
REPLY_TOKENS = 70
"""Approximate tokens of a vote or a nomination."""
Nominate = Literal["citizens", "random"]
VoteRule = Literal["plurality", "approval"]


class VotePrincipal:
    """Citizens, each a language model that knows what it got so far, nominate vectors and vote on them.

    On the ballot are the vector of the last generation (at first: no intervention) and the nominations, in an order
    that the seed draws anew for each vote. A tie is won by the vector of the last generation if it is among the
    winners, else by the first of them on the ballot. A citizen that gives no valid vote abstains.

    Args:
        spec: spec of the environment, with a mechanism.
        llm: the chat model of all citizens.
        seeds: stream of random nominations, of who nominates, and of the order of ballots.
        prompt_folder: the user's own prompts, `principal/_ballot.j2` and others in it; None: there are none.
        nominate: who nominates: `citizens` the model speaks for, or chance (`random`, uniform within the bounds).
        nominations: number of nominations for each vote.
        rule: `plurality` (one vote each) or `approval` (any number of options each).
        voters: number of citizens who vote, the first ones; None: all.
        memory: number of last generations that a citizen is told.
        repair_turns: chances to correct an invalid reply.

    Raises:
        ConfigError: no chat model, no mechanism, or more nominators or voters than citizens.
    """

    parallel = False

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel | None,
        seeds: Seeds,
        prompt_folder: Path | None = None,
        nominate: Nominate = "citizens",
        nominations: PositiveInt = 3,
        rule: VoteRule = "plurality",
        voters: PositiveInt | None = None,
        memory: PositiveInt = 20,
        repair_turns: NonNegativeInt = 1,
    ) -> None:
        if llm is None:
            raise ConfigError("principal=vote needs a chat model that speaks for the citizens; choose one with llm=")
        for name, n in (("voters", voters or 1), ("nominations", nominations if nominate == "citizens" else 1)):
            if n > spec.n_agents:
                raise ConfigError(f"principal.{name}={n}: env={spec.name} has only {spec.n_agents} agents")
        if spec.facts.get("budget_balanced") is False:
            logger.warning(
                "nobody pays for the incentives of env=%s, so that citizens who vote for their own good vote for the "
                "highest; with budget_balanced=true all pay for them in equal shares",
                spec.name,
            )
        self.spec, self.space, self.llm, self.seeds = spec, spec.proposals, llm, seeds
        self.nominate, self.nominations, self.rule = nominate, nominations, rule
        self.voters, self.memory, self.repair_turns = voters or spec.n_agents, memory, repair_turns
        self.prompts = PromptFamily("principal", FOLDER, prompt_folder)
        self.briefing: Briefing | None = None
        self.records: list[dict[str, Any]] = []
        self.votes = 0
        self.last: dict[str, float] = {}
        self.totals = {"abstentions": 0, "kept": 0}
        self.nominator: StructuredQuery[np.ndarray] = StructuredQuery(
            llm,
            "nomination",
            self._nomination,
            self._repair_nomination,
            json_schema(numbers_model(self.space)),
            repair_turns,
        )
        self.voter = self._vote_query(["option_1"])
        # Render every prompt once, so that faults in prompts are found before the run.
        self._ballot(0, None, self._named([self.space.neutral]))
        self._nominated(0, None)
        self.voter.repair("-")
        self.nominator.repair("-")

    def brief(self, briefing: Briefing) -> None:
        """Store the facts about the run."""
        self.briefing = briefing

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.row(context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        own = self.seeds.child("vote").child(self.votes)
        holds = self._holding(name)
        found = [holds, *self._nominees(own, name)]
        ballot = np.array(list(dict.fromkeys(tuple(vector) for vector in self.space.rounded(np.array(found)).tolist())))
        ballot = ballot[own.numpy("order").permutation(len(ballot))]
        if len(ballot) == 1:  # what holds is all there is, so nobody is asked
            self.totals["kept"] += 1
            self.last = {"vote/options": 1.0, "vote/winner_share": 1.0, "vote/turnout": 0.0}
            self.votes += 1
            return ballot
        options = self._named(list(ballot), holds)
        voter = self._vote_query([option["name"] for option in options])
        voter.load_state_dict(self.voter.state_dict())
        self.voter = voter
        votes = voter.ask([self._ballot(agent, name, options) for agent in range(self.voters)])
        tally = counted(votes, len(ballot))
        winners = np.flatnonzero(tally == tally.max())
        kept = [i for i in winners.tolist() if np.array_equal(ballot[i], self.space.rounded(holds[None])[0])]
        winner = kept[0] if kept else int(winners[0])
        abstained = sum(vote is None for vote in votes)
        self.totals["abstentions"] += abstained
        self.totals["kept"] += bool(kept)
        self.last = {
            "vote/options": float(len(ballot)),
            "vote/winner_share": float(tally[winner] / max(self.voters - abstained, 1)),
            "vote/turnout": 1 - abstained / self.voters,
        }
        self.votes += 1
        return ballot[[winner]]

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Store what each citizen got; return the counts of votes and of the model's replies."""
        for outcome in outcomes:
            self.records.append(
                {
                    "generation": len(self.records) + 1,
                    "context": None if outcome.context is None else self.spec.contexts[outcome.context],
                    "vector": [float(x) for x in outcome.vector],
                    "returns": [float(x) for x in outcome.net_returns],
                }
            )
        asked = {name: x + self.nominator.metrics()[name] for name, x in self.voter.metrics().items()}
        return asked | self.last | {f"vote/{name}": float(n) for name, n in self.totals.items()}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector that was elected last in a context, [1, d]; [0, d] before the first vote."""
        row = self.space.row(context)
        name = self.spec.contexts[row] if self.spec.contexts else None
        elected = [record["vector"] for record in self.records if record["context"] == name]
        first = [np.array(vector) for vector in elected[-1:]]
        return np.array(first[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def estimate(self, steps: int, n: int, known: int = 0) -> CallEstimate:
        """Return the estimate for `steps` votes, from rendered prompts with half of the final memory."""
        vector = self.space.neutral
        middle = min(self.memory, (steps + known) // 2)
        row = {"generation": 1, "context": None, "vector": vector.tolist(), "returns": [0.0] * self.spec.n_agents}
        before, self.records = self.records, [row] * middle
        options = self._named([vector] * (self.nominations + 1))
        ballot = estimate_tokens(self._ballot(0, None, options).text)
        proposal = estimate_tokens(self._nominated(0, None).text)
        self.records = before
        asked = self.nominations if self.nominate == "citizens" else 0
        calls = steps * (self.voters + asked)
        most = calls * (1 + self.repair_turns)
        return CallEstimate(calls, most, steps * (self.voters * ballot + asked * proposal), calls * REPLY_TOKENS)

    def state_dict(self) -> State:
        return {
            "records": [dict(record) for record in self.records],
            "votes": self.votes,
            "last": dict(self.last),
            "totals": dict(self.totals),
            "nominator": self.nominator.state_dict(),
            "voter": self.voter.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.records, self.votes = [dict(record) for record in state["records"]], state["votes"]
        self.last, self.totals = dict(state["last"]), dict(state["totals"])
        self.nominator.load_state_dict(state["nominator"])
        self.voter.load_state_dict(state["voter"])

    def _holding(self, context: str | None) -> np.ndarray:
        """Return the vector of the last generation of a context, [d]; at first the one that sets nothing."""
        own = [record for record in self.records if record["context"] == context]
        return np.array(own[-1]["vector"]) if own else self.space.neutral

    def _nominees(self, seeds: Seeds, context: str | None) -> list[np.ndarray]:
        """Return the nominations, each [d]; of citizens without a valid one there are fewer."""
        space = self.space
        if self.nominate == "random":
            drawn = seeds.numpy("nominations").uniform(space.low, space.high, (self.nominations, space.dim))
            return list(drawn)
        who = seeds.numpy("nominators").permutation(self.spec.n_agents)[: self.nominations]
        found = self.nominator.ask([self._nominated(int(agent), context) for agent in sorted(who.tolist())])
        return [vector for vector in found if vector is not None]

    def _named(self, vectors: Sequence[np.ndarray], holds: np.ndarray | None = None) -> list[dict[str, Any]]:
        return [
            {
                "name": f"option_{i + 1}",
                "values": list(zip(self.space.names, vector.tolist(), strict=True)),
                "words": self.space.in_a_sentence(vector),
                "holds": holds is not None and bool(self.records) and np.array_equal(vector, holds),
            }
            for i, vector in enumerate(vectors)
        ]

    def _vote_query(self, options: Sequence[str]) -> StructuredQuery[list[int]]:
        """Return the query for votes on `options`, whose parser, repair prompt and schema depend on them."""
        approval = self.rule == "approval"
        return StructuredQuery(
            self.llm,
            "vote",
            partial(self._vote, options),
            partial(self._repair_vote, options),
            vote_schema(options, approval),
            self.repair_turns,
        )

    def _ballot(self, agent: int, context: str | None, options: list[dict[str, Any]]) -> Prompt:
        approval = self.rule == "approval"
        return self.prompts.render("_ballot", options=options, approval=approval, **self._told(agent, context))

    def _nominated(self, agent: int, context: str | None) -> Prompt:
        return self.prompts.render("_nomination", **self._told(agent, context))

    def _told(self, agent: int, context: str | None) -> dict[str, Any]:
        """Return what a citizen knows, as the prompts take it."""
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
                for record in self.records[-self.memory :]
            ],
        }

    def _nomination(self, reply: ChatReply) -> np.ndarray:
        parameters = self.space.parameters
        parser = VectorParser(self.space.names, 1, [(p.low, p.high) for p in parameters], turn=len(self.records) + 1)
        vector: np.ndarray = parse_answer(reply.text, parser, reply.cut).answer[0]
        if (outside := self.space.outside(vector)).any():
            wrong = parameters[int(np.flatnonzero(outside)[0])]
            raise InvalidReply(f"{wrong.name} must be from {wrong.low:g} to {wrong.high:g}")
        return vector

    def _vote(self, options: Sequence[str], reply: ChatReply) -> list[int]:
        if self.rule == "approval":
            return approved(reply.text, options, reply.cut)
        return [parse_answer(reply.text, BallotParser(options), reply.cut).answer]

    def _repair_vote(self, options: Sequence[str], fault: str) -> Prompt:
        approval = self.rule == "approval"
        return self.prompts.render("_repair_vote", fault=fault, options=options, approval=approval)

    def _repair_nomination(self, fault: str) -> Prompt:
        return self.prompts.render("_repair", fault=fault, parameters=self.space.parameters)
