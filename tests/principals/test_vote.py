"""Nominations and votes of citizens on mechanisms."""

import json
import re
from itertools import takewhile

import numpy as np
import pytest

import shipped
from environments import make_env
from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.records import ChatReply, Outcome, PrincipalBriefing
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import Incentives
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.experiment.experiment import Experiment
from llmrl.llms.client import ChatClient
from llmrl.principals.vote import build_vote_schema
from models import EchoProvider, make_scripted_client

GAMES = ("cleanup", "escape_room")
OPTIONS = ("option_1", "option_2", "option_3")


class Citizens(EchoProvider):
    """Model that answers nominations with `numbers` and ballots with the function `vote` of options, agent and text."""

    def __init__(self, numbers, vote):
        super().__init__()
        self.numbers, self.vote = numbers, vote

    def complete(self, requests):
        replies = []
        for request in requests:
            text = request.messages[0]["content"]
            self.asked.append((request.purpose, text))
            agent = int(re.search(r"You are agent (\d+) of", text)[1])
            if request.purpose == "nomination":
                replies.append(ChatReply(json.dumps(self.numbers(agent))))
                continue
            options = dict(re.findall(r"^- (option_\d+)(?: \(as in the last generation\))?: (.+?)\. ", text, re.M))
            replies.append(ChatReply(self.vote(options, agent, text)))
        return replies


class Unusable(EchoProvider):
    """Model that answers every query with an unknown option whose name quotes the error of a nomination."""

    def __init__(self):
        super().__init__(remote=False)
        self.requests, self.repairs = [], []

    def complete(self, requests):
        self.requests += requests
        self.repairs += [(r.purpose, r.messages[-1]["content"]) for r in requests if len(r.messages) > 1]
        return [ChatReply('{"choice": "must be from"}') for _ in requests]


def numbers(value):
    names = make_env("escape_room", n_envs=1).spec.mechanism.names
    return {"reasoning": "x"} | dict.fromkeys(names, value)


def room(**options):
    return make_env("escape_room", n_envs=1, fixed_context=0, **options).spec


def principal(citizens, seed=0, spec=None, **options):
    return shipped.build_principal("vote", spec or room(), Seeds(seed), llm=ChatClient(citizens), **options)


def tell_returns(proposer, vector, returns):
    outcome = Outcome(vector, 0.0, np.zeros(1), context=0, net_returns=np.array(returns))
    return proposer.tell([outcome])


def largest(options, agent, text):
    best = max(options, key=lambda name: float(options[name].split("=")[1].split(",")[0]))
    return json.dumps({"reasoning": "more", "choice": best})


def test_unfunded_payment_vote_warns(caplog):
    principal(Unusable())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    principal(Unusable(), spec=room(budget_balanced=True))
    assert not caplog.records


def test_citizens_fund_payments():
    for proposer, balanced in (("vote", True), ("ucb", False)):
        cleanup, escape_room = (Experiment.compose(f"env={env}", f"principal={proposer}") for env in GAMES)
        assert cleanup.config["env"]["mechanism"]["budget_balanced"] is balanced
        assert escape_room.config["env"]["budget_balanced"] is balanced


def test_schema_has_option_names():
    assert build_vote_schema(OPTIONS)["properties"]["choice"]["enum"] == list(OPTIONS)


class TestVotes:
    def test_plurality_wins(self):
        citizens = Citizens(lambda agent: numbers(agent / 2), largest)
        proposer = principal(citizens, nominations=5)
        [vector] = proposer.ask(0)
        assert vector.tolist() == [2.5] * 5
        purposes = [purpose for purpose, _ in citizens.asked]
        assert purposes.count("nomination") == 5 and purposes.count("vote") == 5
        metrics = tell_returns(proposer, vector, [1, 2, 3, 4, 5])
        assert metrics["vote/turnout"] == 1 and metrics["vote/winner_share"] == 1 and metrics["vote/options"] == 6

    def test_tie_keeps_status_quo(self):
        def split(options, agent, text):
            names = sorted(options, key=lambda name: options[name])
            return json.dumps({"choice": names[0] if agent <= 2 else names[-1]})

        proposer = principal(Citizens(lambda agent: numbers(4.0), split), voters=4, nominations=1)
        assert proposer.ask(0)[0].tolist() == [0.0] * 5
        assert tell_returns(proposer, np.zeros(5), [0] * 5)["vote/unchanged"] == 1

    def test_invalid_ballot_is_abstention(self):
        def single_vote(options, agent, text):
            return largest(options, agent, text) if agent == 3 else "I would rather not."

        proposer = principal(Citizens(lambda agent: numbers(4.0), single_vote))
        assert proposer.ask(0)[0].tolist() == [4.0] * 5
        metrics = tell_returns(proposer, np.zeros(5), [0] * 5)
        assert metrics["vote/turnout"] == pytest.approx(0.2) and metrics["vote/abstentions"] == 4

    def test_out_of_bounds_nomination_is_dropped(self):
        proposer = principal(Citizens(lambda agent: numbers(9.0), largest))
        assert proposer.ask(0)[0].tolist() == [0.0] * 5
        assert proposer.last_metrics["vote/options"] == 1

    def test_citizen_sees_individual_reward(self):
        citizens = Citizens(lambda agent: numbers(1.0), largest)
        proposer = principal(citizens, nominate="random", memory=1)
        for vector, returns in (([1.0] * 5, [9] * 5), ([2.0] * 5, [1, 2, 3, 4, 5])):
            tell_returns(proposer, np.array(vector), returns)
        proposer.ask(0)
        for _, text in citizens.asked:
            agent = int(re.search(r"You are agent (\d+) of", text)[1])
            assert f"an episode, payments included: {agent} in generation 2." in text
            assert "Generation 2 [" in text and "-> all agents on average 3 an episode" in text
            assert "Generation 1 " not in text and "(as in the last generation): lever_0=2" in text

    def test_ballots_share_prefix(self):
        """The provider's cache can reuse the prefix for all citizens."""
        citizens = Citizens(lambda agent: numbers(agent / 2), largest)
        proposer = principal(citizens)
        for generation in range(8):
            tell_returns(proposer, np.full(5, float(generation)), [generation + k for k in range(5)])
        proposer.ask(0)
        for kind in ("nomination", "vote"):
            texts = [text for purpose, text in citizens.asked if purpose == kind]
            shared = sum(1 for _ in takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False)))
            assert shared > 0.9 * max(map(len, texts))

    def test_seed_shuffles_ballots(self):
        orders = set()
        for seed in range(6):
            citizens = Citizens(lambda agent: numbers(agent / 2), largest)
            principal(citizens, seed=seed).ask(0)
            orders.add(next(text for purpose, text in citizens.asked if purpose == "vote").partition("## The vote")[2])
        assert len(orders) > 2

    def test_games_have_descriptions(self):
        settings = SubstrateSettings("cleanup", 1, n_agents=3, mechanism=Incentives(), observe=["grid"], map="own")
        spec = NativeEnv(settings, Seeds(0), tile_source="plain").spec
        proposer = principal(Citizens(lambda agent: {}, largest), spec=spec)
        proposer.brief(PrincipalBriefing(7, 1, 1, 1, True))
        text = proposer._render_ballot(0, None, proposer._build_option_fields([spec.mechanism.neutral])).text
        assert "a river at one end and an orchard" in text and "This is generation 1 of 7" in text

    @pytest.mark.parametrize(("nominate", "repair_purpose"), [("citizens", "nomination"), ("random", "vote")])
    def test_repair_prompt_belongs_to_query(self, nominate, repair_purpose):
        """The repair prompt of a malformed nomination or vote refers to its query, also after a resume."""
        llm = Unusable()
        proposer = principal(llm, nominate=nominate)
        for _ in range(2):
            tell_returns(proposer, proposer.ask(0)[0], [0.0] * 5)
        checkpoint = proposer.state_dict()
        for purpose, repair in llm.repairs:
            assert ("lever_0" in repair) == (purpose == "nomination") == ("option_1" not in repair)
            assert "action" not in repair
        assert {purpose for purpose, _ in llm.repairs} == {repair_purpose}
        requests = []
        restored = principal(llm, nominate=nominate)
        restored.load_state_dict(checkpoint)
        for principal_ in (proposer, restored):
            n_requests = len(llm.requests)
            principal_.ask(0)
            requests.append([(request.messages, request.schema) for request in llm.requests[n_requests:]])
        assert requests[0] == requests[1]

    def test_single_option_skips_ballot(self):
        llm = Unusable()
        proposer = principal(llm)
        assert proposer.ask(0).tolist() == [[0.0] * 5]
        assert {request.purpose for request in llm.requests} == {"nomination"}

    @pytest.mark.parametrize("options", [{"voters": 6}, {"nominations": 6}])
    def test_excess_options(self, options):
        with pytest.raises(ConfigError, match=rf"principal\.{next(iter(options))}=6 .* 5 agents"):
            principal(Citizens(lambda agent: {}, largest), **options)

    def test_missing_model(self):
        with pytest.raises(ConfigError, match=r"principal=vote .*llm=none"):
            shipped.build_principal("vote", room(), Seeds(0), llm=None)

    def test_estimates_match_requests(self):
        llm = make_scripted_client()
        proposer = shipped.build_principal("vote", room(), Seeds(0), llm=llm)
        estimate = proposer.estimate(4, 1)
        for _ in range(4):
            tell_returns(proposer, proposer.ask(0)[0], [0.0] * 5)
        assert estimate.calls == 4 * (5 + 3) == llm.metrics()["llm/calls"]
        # The earlier outcomes are in all prompts, so that the average number of records is 4 + 2 // 2.
        assert proposer.estimate(2, 1, 4).prompt_tokens * 5 == proposer.estimate(10, 1).prompt_tokens


def test_society_vote_resumes_after_budget(tmp_path):
    options = (
        "env=escape_room",
        "principal=vote",
        "env.n_envs=4",
        "design.evaluations=1",
        "design.steps=4",
        "design.adapt_rounds=2",
    )
    options = (*options, "design.validate_episodes=4", "llm.cache=off", "env.fixed_context=1")
    run(*options, f"output_root={tmp_path / 'whole'}")
    with pytest.raises(BudgetExhausted):
        run(*options, "llm.budget.calls=13", f"output_root={tmp_path / 'parts'}")
    run(*options, "llm.budget.calls=1000", f"output_root={tmp_path / 'parts'}")

    def unpaid(folder):
        return [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]

    reference, parts = (find_run_folder(tmp_path / name) for name in ("whole", "parts"))
    assert unpaid(reference) == unpaid(parts)
    assert [row["vote/turnout"] for row in unpaid(reference) if row["kind"] == "proposal"] == [1] * 4
