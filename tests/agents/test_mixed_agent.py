"""A society of several kinds of agents: each plays in its own seats, and learns from its own players' steps."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import comparable_metrics, compose, only_run_folder, run
from llmrl.agents.mixed.mixed_agent import MixedAgent, seats_of
from llmrl.agents.mixed.mixed_policy import MixedPolicy, Seated, rollout_of
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.records import CHOSEN, CallEstimate, ChatReply, PolicyOutput
from llmrl.core.seeding import Seeds, generators
from llmrl.envs.escape_room import EscapeRoom
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.members import with_members, with_texts
from llmrl.llms.call_log import read_calls
from llmrl.llms.client import ChatClient
from llmrl.rollout.collector import Collector
from models import Echo

MIXED = ("env=escape_room", "agent=mixed", "env.n_envs=4")
KINDS = "agent.members=[{count:3,agent:ppo},{count:1,agent:llm_player},{count:1,agent:random}]"


def config(*overrides):
    return with_members(compose(*MIXED, *overrides))


def agent_of(members, n_agents=5, observe=("vector",), llm=None, **injected):
    env = EscapeRoom(Seeds(0), n_envs=4, n_agents=n_agents, observe=observe, horizon=6)
    node = config(f"agent.members={members}")["agent"]
    given = {"spec": env.spec, "seeds": Seeds(1), "device": "cpu", "has_principal": False, "teacher": None}
    given |= {"llm": llm, "prompt_folder": None, "env_factory": None, "one_game": None, **injected}
    return env, Builder(given).build(node, "agent")


class Constant:
    """Does the same action in every seat, with a memory that counts."""

    def __init__(self, action, width=0, notes=False):
        self.action, self.width, self.notes, self.channels = action, width, notes, ("vector",)
        self.told = []

    def act(self, observation, state=None, generator=None, greedy=False):
        n, k = observation["vector"].shape[:2]
        before = torch.zeros(n, k, self.width) if state is None else state
        return PolicyOutput(
            torch.full((n, k), self.action),
            state=before + self.action if self.width else None,
            value=torch.full((n, k), float(self.action)),
            notes=[[{"said": self.action}] * k for _ in range(n)] if self.notes else None,
        )

    def values(self, observation, state=None):
        return torch.full(observation["vector"].shape[:2], float(self.action))


class Told(Constant):
    def on_reset(self, games, observation):
        self.told.append({name: x.shape for name, x in observation.items()})

    def on_step(self, transition):
        self.told.append((transition.step.reward.shape, transition.output.action.tolist()))


class TestPolicy:
    def test_everybody_acts_in_its_seats(self):
        first, second = Constant(1, width=1), Constant(2, width=3, notes=True)
        policy = MixedPolicy([Seated("a", first, (0, 3)), Seated("b", second, (1, 2))], 4)
        seen = {"vector": torch.zeros(2, 4, 5)}
        act = policy.act(seen)
        assert act.action.tolist() == [[1, 2, 2, 1]] * 2
        assert act.value.tolist() == [[1, 2, 2, 1]] * 2
        assert act.state.shape == (2, 4, 3) and act.state[0].tolist() == [[1, 0, 0], [2] * 3, [2] * 3, [1, 0, 0]]
        assert act.notes[0] == [{}, {"said": 2}, {"said": 2}, {}]
        again = policy.act(seen, act.state)
        assert again.state[0].tolist() == [[2, 0, 0], [4] * 3, [4] * 3, [2, 0, 0]]
        assert policy.values(seen, act.state).tolist() == [[1, 2, 2, 1]] * 2
        assert (policy.memory_of("a"), policy.memory_of("b"), policy.memory_of("c")) == (1, 3, None)

    def test_what_nobody_has_is_none_and_what_some_lack_is_blank(self):
        policy = MixedPolicy([Seated("a", Constant(1), (0,)), Seated("b", Constant(2), (1,))], 2)
        act = policy.act({"vector": torch.zeros(1, 2, 5)})
        assert act.log_prob is None and act.logits is None and act.entropy is None and act.notes is None
        env, agent = agent_of("[{count:4,agent:ppo},{count:1,agent:random}]")
        seen = {name: torch.as_tensor(x) for name, x in env.reset(seed=0).items()}
        act = agent.policy.act(seen, generator=torch.Generator())
        assert torch.isfinite(act.entropy[:, :4]).all()
        assert act.log_prob.shape == (4, 5)

    def test_those_who_watch_are_told_of_their_own_players(self):
        env = EscapeRoom(Seeds(0), n_envs=2, n_agents=3, horizon=3, min_at_lever=1)
        watcher = Told(0)
        policy = MixedPolicy([Seated("a", Constant(3), (0, 1)), Seated("b", watcher, (2,))], 3)
        collector = Collector(env, policy, "cpu")
        collector.reset(0)
        collector.collect(2, torch.Generator(), learn=False)
        assert watcher.told[0]["vector"][:2] == (2, 1)
        assert watcher.told[1:] == [((2, 1), [[0], [0]])] * 2


class TestLearning:
    def test_a_kind_learns_what_it_would_learn_alone(self):
        """From the same rollout, a member's update is that of its agent given only its own steps."""
        env, mixed = agent_of("[{slots:[0,2,4],agent:ppo},{slots:[1,3],agent:random}]")
        _, twin = agent_of("[{slots:[0,2,4],agent:ppo},{slots:[1,3],agent:random}]")
        collector = Collector(env, mixed.policy, "cpu")
        collector.reset(3)
        rollout = collector.collect(12, torch.Generator().manual_seed(1))
        part = rollout_of(rollout, (0, 2, 4), ("vector",), None)
        assert part.reward.shape == (12, 4, 3)
        assert (part.action == rollout.action[:, :, [0, 2, 4]]).all()
        [one], [other] = generators([7]), generators([7])
        metrics = mixed.update(rollout, one)
        alone = twin.agents[0].update(part, other)
        assert metrics == {f"ppo/{name}": x for name, x in alone.items()}
        for name, weights in mixed.agents[0].policy.state_dict().items():
            assert torch.equal(weights, twin.agents[0].policy.state_dict()[name])

    def test_other_players_steps_change_nothing(self):
        env, mixed = agent_of("[{slots:[0,2,4],agent:ppo},{slots:[1,3],agent:random}]")
        before = mixed.state_dict()["members"][0]["policy"]
        before = {name: x.clone() for name, x in before.items()}
        collector = Collector(env, mixed.policy, "cpu")
        collector.reset(3)
        rollout = collector.collect(12, torch.Generator().manual_seed(1)).copy()
        found = []
        for noise in (0.0, 100.0):
            mixed.agents[0].reset()
            for name, x in mixed.agents[0].policy.state_dict().items():
                assert torch.equal(x, before[name])
            rollout.reward[:, :, [1, 3]] += noise
            [draws] = generators([7])
            mixed.update(rollout, draws)
            found.append({name: x.clone() for name, x in mixed.agents[0].policy.state_dict().items()})
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])

    def test_players_keep_their_index_and_weights_of_a_whole_society_fit(self):
        _, mixed = agent_of("[{slots:[1,4],agent:ppo},{slots:[0,2,3],agent:random}]")
        policy = mixed.agents[0].policy
        assert policy.identity.tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
        _, whole = agent_of("[{count:5,agent:ppo}]")
        assert {name: x.shape for name, x in whole.agents[0].policy.state_dict().items()} == {
            name: x.shape for name, x in policy.state_dict().items()
        }


def test_a_restored_society_remembers():
    """Of kinds with memories of different widths, whoever made the society anew."""
    members = "[{slots:[0,2],agent:ppo,memory:5},{slots:[1],agent:heuristic},{slots:[3,4],agent:ppo,memory:3}]"
    env, agent = agent_of(members)
    seen = {name: torch.as_tensor(x) for name, x in env.reset(seed=0).items()}
    first = agent.policy.act(seen, generator=torch.Generator().manual_seed(0))
    assert first.state.shape[-1] == max(agent.policy.widths.values())
    _, again = agent_of(members)
    again.load_state_dict(agent.state_dict())
    one, other = (each.policy.act(seen, first.state, torch.Generator().manual_seed(1)) for each in (agent, again))
    assert torch.equal(one.state, other.state) and torch.equal(one.logits, other.logits)
    fresh = again.policy.act(seen, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(one.state, fresh.state)


def test_estimates_add_up_and_shares_follow_the_tokens():
    total = CallEstimate.total(
        [CallEstimate(10, 20, 300, 30, 3), CallEstimate(5, 5, 100, 10, 1, {"small": 0.5, CHOSEN: 0.5})]
    )
    assert total == CallEstimate(15, 25, 400, 40, 4, {CHOSEN: 0.875, "small": 0.125})
    assert CallEstimate.total([]) == CallEstimate(0, 0, 0, 0)


class TestSeats:
    @given(st.data())
    def test_everybody_has_one_seat(self, data):
        n = data.draw(st.integers(1, 8))
        env = EscapeRoom(Seeds(0), n_envs=1, n_agents=n + 2)
        seats, members = list(range(n + 2)), []
        while seats:
            k = data.draw(st.integers(1, len(seats)))
            if data.draw(st.booleans()):
                own = data.draw(st.permutations(seats))[:k]
                members.append(Member(None, list(own)))
                seats = [seat for seat in seats if seat not in own]
            else:
                members.append(Member(k, None))
                seats = seats[:-k]
        fixed = [slot for member in members for slot in member.slots or ()]
        if sum(member.count or 0 for member in members) + len(fixed) != n + 2 or len(set(fixed)) < len(fixed):
            return
        found = seats_of(members, env.spec)
        assert sorted(seat for own in found for seat in own) == list(range(n + 2))
        for member, own in zip(members, found, strict=True):
            assert list(own) == sorted(own)
            assert set(own) == set(member.slots) if member.slots is not None else len(own) == member.count

    @pytest.mark.parametrize(
        ("members", "said"),
        [
            ("[{count:3,agent:random}]", r"are 3 players, and env=escape_room has 5: player 1, player 2"),
            ("[{slots:[0,5],agent:random},{count:3,agent:random}]", "there is no player 5"),
            ("[{slots:[0,1],agent:random},{slots:[1,2,3],agent:random}]", "player 1 .from 0. is given twice"),
            ("[{agent:random}]", "either how many they are"),
            ("[{count:2,slots:[0],agent:random},{count:3,agent:random}]", "either how many they are"),
        ],
    )
    def test_seats_that_do_not_add_up(self, members, said):
        with pytest.raises(ConfigError, match=said):
            agent_of(members)


class Member:
    def __init__(self, count, slots):
        self.count, self.slots = count, slots


class TestConfig:
    def test_members_become_whole_options_once(self):
        made = config(KINDS)
        ppo, reader, _ = made["agent"]["members"]
        assert ppo["name"] == "ppo" and ppo["agent"]["ppo"]["epochs"] >= 1 and ppo["count"] == 3
        assert reader["agent"]["players"] is None
        assert with_members(made) == made

    def test_options_of_a_member_override_its_agents(self):
        [one] = config("agent.members=[{count:5,agent:ppo,name:learners,ppo:{gamma:0.5},core_hidden:[8]}]")["agent"][
            "members"
        ]
        assert one["name"] == "learners" and one["agent"]["ppo"]["gamma"] == 0.5
        assert one["agent"]["core_hidden"] == [8] and one["agent"]["ppo"]["epochs"] >= 1

    def test_the_run_to_begin_from_is_that_of_the_society(self):
        made = with_members(
            compose("env=cleanup", "agent=mixed", "agent.members=[{count:5,agent:cleanup_society},{count:2,agent:ppo}]")
        )
        assert made["agent"]["init_from"] == "preset:regimes/cleanup_pretrain"
        assert [member["begins"] for member in made["agent"]["members"]] == [True, False]
        assert made["agent"]["members"][0]["agent"]["init_from"] is None

    def test_words_are_added_where_somebody_reads(self):
        assert with_texts(config(KINDS))["env"]["observe"] == ["vector", "text"]
        assert with_texts(config("agent.members=[{count:5,agent:ppo}]"))["env"]["observe"] == ["vector"]
        assert with_texts(compose("env=harvest", "agent=llm_player"))["env"]["observe"] == ["grid", "text"]
        both = compose("env=harvest", "agent=llm_player", "env.observe=[pixels,text]")
        assert with_texts(both)["env"]["observe"] == ["pixels", "text"]
        assert with_texts(compose("env=fishery", "agent=drrn"))["env"]["observe"] == ["vector", "text"]
        rooms = compose("env=simple_doorkey", "agent=llm_player")
        assert with_texts(rooms)["env"]["observe"] == ["grid"], "that rooms have no words is for the player to say"

    @pytest.mark.parametrize(
        ("members", "said"),
        [
            ("[{count:5,agent:pqo}]", r"agent\.members\[0\]\.agent=pqo: choose one of bc, bot"),
            ("[{count:5,agent:ppo,llm:gpt4o}]", "asks no language model"),
            ("[5]", "a mapping is needed"),
            ("[]", "is a list of who plays"),
            ("[{count:5,agent:linear}]", "learns in a loop of its own"),
        ],
    )
    def test_what_cannot_be_a_member(self, members, said):
        with pytest.raises(ConfigError, match=said):
            experiment = Experiment(compose(*MIXED, f"agent.members={members}"), [])
            experiment.check()
            experiment.plan()

    def test_a_wrong_option_of_a_member_is_named_where_it_stands(self):
        with pytest.raises(ConfigError, match=r"agent\.members\[0\]\.agent\.ppo\.gamma"):
            Experiment(compose(*MIXED, "agent.members=[{count:5,agent:ppo,ppo:{gamma:3}}]"), []).check()

    def test_a_teacher_is_refused(self):
        with pytest.raises(ConfigError, match="use teacher=none"):
            agent_of("[{count:5,agent:ppo}]", teacher=object())


class Door(Echo):
    """Goes to the door, and keeps the first message of each question."""

    def complete(self, requests):
        self.asked += [request.messages[0]["content"] for request in requests]
        return [ChatReply('{"reflection": "x", "action": "go_to_door"}') for _ in requests]


def test_readers_know_who_they_are_among_all():
    door = Door()
    env, agent = agent_of(
        "[{slots:[0,1,3],agent:random},{slots:[2,4],agent:llm_player}]",
        observe=("vector", "text"),
        llm=ChatClient(door),
    )
    assert isinstance(agent, MixedAgent) and not agent.learns
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    rollout = collector.collect(2, torch.Generator(), learn=False)
    assert all("There are 5 players" in text for text in door.asked)
    assert {text.rpartition("You are ")[2].strip() for text in door.asked} == {"player 3.", "player 5."}
    door = env.spec.action_names.index("go_to_door")
    assert (rollout.action[:, :, [2, 4]] == door).all() and not (rollout.action[:, :, [0, 1, 3]] == door).all()


def test_a_run_with_learners_readers_and_chance(tmp_path):
    """Returns of each kind are in every row that has returns, and the plan counts the readers' questions alone."""
    options = (*MIXED, KINDS, "learn.env_steps=60", "learn.rollout_steps=5", "learn.evaluate_episodes=4")
    rows = dict(Experiment(compose(*options), []).plan())
    assert "3 x ppo" in rows["agent"] and "1 x llm_player" in rows["agent"]
    run(*options, f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    last = comparable_metrics(folder, "evaluation")[-1]
    kinds = [last[f"evaluation/return_{kind}"] for kind in ("ppo", "llm_player", "random")]
    assert np.average(kinds, weights=[3, 1, 1]) == pytest.approx(last["evaluation/return"], abs=1e-5)
    update = comparable_metrics(folder, "update")[-1]
    assert "ppo/policy_loss" in update or any(name.startswith("ppo/") for name in update)
    assert len(list(read_calls(folder / "llm_calls.jsonl"))) == 15 * 4 + 5 * 4


@pytest.mark.parametrize("study", ["harvest", "mixed", "vote"])
def test_the_presets_of_citizens_are_built(study):
    """With all parts, and with what they would ask of a model."""
    rows = dict(Experiment(compose(f"experiment=citizens/{study}", "env.map=own"), []).plan())
    assert rows["loop"] == "DesignLoop" and int(rows["LLM calls"].split(",")[0].split()[0]) >= 1
