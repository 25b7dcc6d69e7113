"""Societies of several kinds of agents: seats, and learning from the steps of an agent's own players."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from environments import make_env
from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.agents.mixed.mixed_agent import MixedAgent, MixedPolicy, SeatedPolicy, assign_seats, slice_rollout
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.records import CHOSEN_MODEL, CallEstimate, ChatReply, PolicyOutput
from llmrl.core.seeding import Seeds, make_generators
from llmrl.experiment.config_completion import with_full_members, with_text_channel
from llmrl.experiment.experiment import Experiment
from llmrl.llms.call_log import read_calls
from llmrl.llms.client import ChatClient
from llmrl.rollout.collector import Collector
from models import EchoProvider

MIXED_OPTIONS = ("env=escape_room", "agent=mixed", "env.n_envs=4")
KINDS = "agent.members=[{count:3,agent:ppo},{count:1,agent:llm_player},{count:1,agent:random}]"


def config(*overrides):
    return with_full_members(compose(*MIXED_OPTIONS, *overrides))


def make_agent(members, n_agents=5, observe=("vector",), llm=None, **injected):
    env = make_env("escape_room", n_envs=4, n_agents=n_agents, observe=observe, horizon=6)
    node = config(f"agent.members={members}")["agent"]
    arguments = {"spec": env.spec, "seeds": Seeds(1), "device": "cpu", "has_principal": False, "teacher": None}
    arguments |= {"llm": llm, "prompt_folder": None, "env_factory": None, "one_game": None, **injected}
    return env, Builder(arguments).build(node, "agent")


class Constant:
    """An agent that repeats one action in every seat and counts its steps in its state."""

    def __init__(self, action, width=0, notes=False):
        self.action, self.width, self.notes, self.channels = action, width, notes, ("vector",)
        self.feedback = []

    def act(self, observation, state=None, generator=None, greedy=False):
        n, k = observation["vector"].shape[:2]
        initial_state = torch.zeros(n, k, self.width) if state is None else state
        return PolicyOutput(
            torch.full((n, k), self.action),
            state=initial_state + self.action if self.width else None,
            value=torch.full((n, k), float(self.action)),
            notes=[[{"said": self.action}] * k for _ in range(n)] if self.notes else None,
        )

    def values(self, observation, state=None):
        return torch.full(observation["vector"].shape[:2], float(self.action))


class FeedbackAgent(Constant):
    def on_reset(self, games, observation):
        self.feedback.append({name: x.shape for name, x in observation.items()})

    def on_step(self, transition):
        self.feedback.append((transition.step.reward.shape, transition.output.action.tolist()))


class TestPolicy:
    def test_members_act_in_their_seats(self):
        first, second = Constant(1, width=1), Constant(2, width=3, notes=True)
        policy = MixedPolicy([SeatedPolicy(first, (0, 3)), SeatedPolicy(second, (1, 2))], 4)
        inputs = {"vector": torch.zeros(2, 4, 5)}
        act = policy.act(inputs)
        assert act.action.tolist() == [[1, 2, 2, 1]] * 2
        assert act.value.tolist() == [[1, 2, 2, 1]] * 2
        assert act.state.shape == (2, 4, 3) and act.state[0].tolist() == [[1, 0, 0], [2] * 3, [2] * 3, [1, 0, 0]]
        assert act.notes[0] == [{}, {"said": 2}, {"said": 2}, {}]
        second_act = policy.act(inputs, act.state)
        assert second_act.state[0].tolist() == [[2, 0, 0], [4] * 3, [4] * 3, [2, 0, 0]]
        assert policy.values(inputs, act.state).tolist() == [[1, 2, 2, 1]] * 2
        assert policy.state_widths == {0: 1, 1: 3}

    def test_missing_outputs_are_merged(self):
        policy = MixedPolicy([SeatedPolicy(Constant(1), (0,)), SeatedPolicy(Constant(2), (1,))], 2)
        act = policy.act({"vector": torch.zeros(1, 2, 5)})
        assert act.log_prob is None and act.logits is None and act.notes is None
        env, agent = make_agent("[{count:4,agent:ppo},{count:1,agent:random}]")
        inputs = {name: torch.as_tensor(x) for name, x in env.reset(seed=0).items()}
        act = agent.policy.act(inputs, generator=torch.Generator())
        assert act.log_prob.shape == (4, 5)

    def test_observers_receive_their_players(self):
        env = make_env("escape_room", n_envs=2, n_agents=3, horizon=3, min_agents_per_lever=1)
        watcher = FeedbackAgent(0)
        policy = MixedPolicy([SeatedPolicy(Constant(3), (0, 1)), SeatedPolicy(watcher, (2,))], 3)
        collector = Collector(env, policy, "cpu")
        collector.reset(0)
        collector.collect(2, torch.Generator(), learn=False)
        assert watcher.feedback[0]["vector"][:2] == (2, 1)
        assert watcher.feedback[1:] == [((2, 1), [[0], [0]])] * 2


class TestLearning:
    def test_member_learns_as_in_isolation(self):
        """Compare the update of a member with that of its agent on the member's own steps."""
        env, mixed_agent = make_agent("[{slots:[0,2,4],agent:ppo},{slots:[1,3],agent:random}]")
        _, twin = make_agent("[{slots:[0,2,4],agent:ppo},{slots:[1,3],agent:random}]")
        collector = Collector(env, mixed_agent.policy, "cpu")
        collector.reset(3)
        rollout = collector.collect(12, torch.Generator().manual_seed(1))
        part = slice_rollout(rollout, (0, 2, 4), ("vector",), None)
        assert part.reward.shape == (12, 4, 3)
        assert (part.action == rollout.action[:, :, [0, 2, 4]]).all()
        [first_generator], [second_generator] = make_generators([7]), make_generators([7])
        metrics = mixed_agent.update(rollout, first_generator)
        single_metrics = twin.agents[0].update(part, second_generator)
        assert metrics == {f"ppo/{name}": x for name, x in single_metrics.items()}
        for name, weights in mixed_agent.agents[0].policy.state_dict().items():
            assert torch.equal(weights, twin.agents[0].policy.state_dict()[name])

    def test_foreign_steps_have_no_effect(self):
        env, mixed_agent = make_agent("[{slots:[0,2,4],agent:ppo},{slots:[1,3],agent:random}]")
        initial_state = mixed_agent.state_dict()["members"][0]["policy"]
        initial_state = {name: x.clone() for name, x in initial_state.items()}
        collector = Collector(env, mixed_agent.policy, "cpu")
        collector.reset(3)
        rollout = collector.collect(12, torch.Generator().manual_seed(1)).copy()
        member_states = []
        for noise in (0.0, 100.0):
            mixed_agent.agents[0].reset()
            for name, x in mixed_agent.agents[0].policy.state_dict().items():
                assert torch.equal(x, initial_state[name])
            rollout.reward[:, :, [1, 3]] += noise
            [draws] = make_generators([7])
            mixed_agent.update(rollout, draws)
            member_states.append({name: x.clone() for name, x in mixed_agent.agents[0].policy.state_dict().items()})
        assert all(torch.equal(member_states[0][name], member_states[1][name]) for name in member_states[0])

    def test_players_keep_pretrained_weights(self):
        _, mixed_agent = make_agent("[{slots:[1,4],agent:ppo},{slots:[0,2,3],agent:random}]")
        policy = mixed_agent.agents[0].policy
        assert policy.player_one_hots.tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
        _, full_agent = make_agent("[{count:5,agent:ppo}]")
        assert {name: x.shape for name, x in full_agent.agents[0].policy.state_dict().items()} == {
            name: x.shape for name, x in policy.state_dict().items()
        }


def test_society_state_is_restorable():
    """Restore kinds whose memories have different widths into a new society."""
    members = "[{slots:[0,2],agent:ppo,memory:5},{slots:[1],agent:heuristic},{slots:[3,4],agent:ppo,memory:3}]"
    env, agent = make_agent(members)
    inputs = {name: torch.as_tensor(x) for name, x in env.reset(seed=0).items()}
    first = agent.policy.act(inputs, generator=torch.Generator().manual_seed(0))
    assert first.state.shape[-1] == max(agent.policy.state_widths.values())
    _, restored_agent = make_agent(members)
    restored_agent.load_state_dict(agent.state_dict())
    first_output, second_output = (
        agent_copy.policy.act(inputs, first.state, torch.Generator().manual_seed(1))
        for agent_copy in (agent, restored_agent)
    )
    assert torch.equal(first_output.state, second_output.state) and torch.equal(
        first_output.logits, second_output.logits
    )
    fresh = restored_agent.policy.act(inputs, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(first_output.state, fresh.state)


def test_estimates_add_up():
    total = CallEstimate.add_up(
        [CallEstimate(10, 20, 300, 30, 3), CallEstimate(5, 5, 100, 10, 1, {"small": 0.5, CHOSEN_MODEL: 0.5})]
    )
    assert total == CallEstimate(15, 25, 400, 40, 4, {CHOSEN_MODEL: 0.875, "small": 0.125})
    assert CallEstimate.add_up([]) == CallEstimate(0, 0, 0, 0)


class TestSeats:
    @given(st.data())
    def test_players_have_unique_seats(self, data):
        n = data.draw(st.integers(1, 8))
        env = make_env("escape_room", n_envs=1, n_agents=n + 2)
        seats, members = list(range(n + 2)), []
        while seats:
            k = data.draw(st.integers(1, len(seats)))
            if data.draw(st.booleans()):
                seats_drawn = data.draw(st.permutations(seats))[:k]
                members.append(Member(None, list(seats_drawn)))
                seats = [seat for seat in seats if seat not in seats_drawn]
            else:
                members.append(Member(k, None))
                seats = seats[:-k]
        fixed = [slot for member in members for slot in member.slots or ()]
        if sum(member.count or 0 for member in members) + len(fixed) != n + 2 or len(set(fixed)) < len(fixed):
            return
        seats_found = assign_seats(members, env.spec)
        assert sorted(seat for seats_drawn in seats_found for seat in seats_drawn) == list(range(n + 2))
        for member, seats_drawn in zip(members, seats_found, strict=True):
            assert list(seats_drawn) == sorted(seats_drawn)
            assert (
                set(seats_drawn) == set(member.slots) if member.slots is not None else len(seats_drawn) == member.count
            )

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ("[{count:3,agent:random}]", "3.*env=escape_room.*5.*1.*2"),
            ("[{slots:[0,5],agent:random},{count:3,agent:random}]", r"agent\.members: .* 5 .*env=escape_room"),
            ("[{slots:[0,1],agent:random},{slots:[1,2,3],agent:random}]", r"agent\.members: player 1 "),
            ("[{agent:random}]", r"agent\.members\[0\].*count.*slots"),
            ("[{count:2,slots:[0],agent:random},{count:3,agent:random}]", r"agent\.members\[0\].*count.*slots"),
        ],
    )
    def test_seat_counts_must_match(self, members, message):
        with pytest.raises(ConfigError, match=message):
            make_agent(members)


class Member:
    def __init__(self, count, slots):
        self.count, self.slots = count, slots


class TestConfig:
    def test_members_are_resolved_once(self):
        resolved = config(KINDS)
        ppo, reader, _ = resolved["agent"]["members"]
        assert ppo["name"] == "ppo" and ppo["agent"]["ppo"]["epochs"] >= 1 and ppo["count"] == 3
        assert reader["agent"]["players"] is None
        assert with_full_members(resolved) == resolved

    def test_member_options_override_agent(self):
        [member] = config("agent.members=[{count:5,agent:ppo,name:learners,ppo:{gamma:0.5},core_hidden:[8]}]")["agent"][
            "members"
        ]
        assert member["name"] == "learners" and member["agent"]["ppo"]["gamma"] == 0.5
        assert member["agent"]["core_hidden"] == [8] and member["agent"]["ppo"]["epochs"] >= 1

    def test_initial_run_belongs_to_society(self):
        resolved = with_full_members(
            compose("env=cleanup", "agent=mixed", "agent.members=[{count:5,agent:cleanup_society},{count:2,agent:ppo}]")
        )
        assert resolved["agent"]["init_from"] == "preset:regimes/cleanup_pretrain"
        assert [member["begins"] for member in resolved["agent"]["members"]] == [True, False]
        assert resolved["agent"]["members"][0]["agent"]["init_from"] is None
        assert resolved["agent"]["init_from_seed"] == "own"

    @pytest.mark.parametrize(
        ("option", "members"),
        [
            ("agent.init_from_seed=2", "[{count:7,agent:cleanup_society}]"),
            (
                "agent.init_from_seed=own",
                "[{count:6,agent:cleanup_society,init_from_seed:2},{count:1,agent:cleanup_society}]",
            ),
        ],
    )
    def test_seed_of_initial_run_is_that_of_society_or_member(self, option, members):
        resolved = with_full_members(compose("env=cleanup", "agent=mixed", f"agent.members={members}", option))
        assert resolved["agent"]["init_from_seed"] == 2

    def test_text_is_added_for_readers(self):
        assert with_text_channel(config(KINDS))["env"]["observe"] == ["vector", "text"]
        assert with_text_channel(config("agent.members=[{count:5,agent:ppo}]"))["env"]["observe"] == ["vector"]
        assert with_text_channel(compose("env=harvest", "agent=llm_player"))["env"]["observe"] == ["grid", "text"]
        two_channels = compose("env=harvest", "agent=llm_player", "env.observe=[pixels,text]")
        assert with_text_channel(two_channels)["env"]["observe"] == ["pixels", "text"]
        assert with_text_channel(compose("env=fishery", "agent=drrn"))["env"]["observe"] == ["vector", "text"]
        rooms = compose("env=simple_doorkey", "agent=llm_player")
        assert with_text_channel(rooms)["env"]["observe"] == ["grid"], (
            "that rooms have no words is for the player to say"
        )

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ("[{count:5,agent:pqo}]", r"agent\.members\[0\]\.agent=pqo.*bc, bot"),
            ("[{count:5,agent:ppo,llm:gpt4o}]", r"agent\.members\[0\]\.llm=gpt4o: agent=ppo"),
            ("[5]", r"agent\.members\[0\]=5"),
            ("[]", r"agent\.members.*\[\]"),
            ("[{count:5,agent:linear}]", r"agent\.members\[0\]\.agent.*search"),
        ],
    )
    def test_rejects_invalid_members(self, members, message):
        with pytest.raises(ConfigError, match=message):
            experiment = Experiment(compose(*MIXED_OPTIONS, f"agent.members={members}"), [])
            experiment.check()
            experiment.plan()

    def test_member_option_error_gives_path(self):
        with pytest.raises(ConfigError, match=r"agent\.members\[0\]\.agent\.ppo\.gamma"):
            Experiment(compose(*MIXED_OPTIONS, "agent.members=[{count:5,agent:ppo,ppo:{gamma:3}}]"), []).check()

    def test_rejects_teacher(self):
        with pytest.raises(ConfigError, match=r"agent=mixed.*teacher=none"):
            make_agent("[{count:5,agent:ppo}]", teacher=object())


class Door(EchoProvider):
    """A model that goes to the door and records the first message of each request."""

    def complete(self, requests):
        self.asked += [request.messages[0]["content"] for request in requests]
        return [ChatReply('{"reflection": "x", "action": "go_to_door"}') for _ in requests]


def test_readers_receive_global_player_index():
    door = Door()
    env, agent = make_agent(
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


def test_run_combines_agent_kinds(tmp_path):
    """Check that each row with returns has those of each kind, and that the plan counts only requests of readers."""
    options = (*MIXED_OPTIONS, KINDS, "learn.env_steps=60", "learn.rollout_steps=5", "learn.evaluate_episodes=4")
    rows = dict(Experiment(compose(*options), []).plan())
    assert "3 x ppo" in rows["agent"] and "1 x llm_player" in rows["agent"]
    run(*options, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    last = load_comparable_metrics(folder, "evaluation")[-1]
    kinds = [last[f"evaluation/return_{kind}"] for kind in ("ppo", "llm_player", "random")]
    assert np.average(kinds, weights=[3, 1, 1]) == pytest.approx(last["evaluation/return"], abs=1e-5)
    update = load_comparable_metrics(folder, "update")[-1]
    assert "ppo/policy_loss" in update or any(name.startswith("ppo/") for name in update)
    assert len(list(read_calls(folder / "llm_calls.jsonl"))) == 15 * 4 + 5 * 4


@pytest.mark.parametrize("study", ["harvest", "mixed", "vote"])
def test_citizen_presets_build(study):
    """Build all parts, including requests to a model."""
    rows = dict(Experiment(compose(f"experiment=citizens/{study}", "env.map=own"), []).plan())
    assert rows["loop"] == "DesignLoop" and int(rows["LLM calls"].split(",")[0].split()[0]) >= 1
