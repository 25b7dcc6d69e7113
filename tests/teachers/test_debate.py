"""Debate: agents that exchange messages agree on compatible plans."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from experiments import compose, find_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.envs.particles.mpe_scenarios import SimpleSpeakerListener, SimpleSpread
from llmrl.envs.particles.vec_env import ParticlesEnv
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from llmrl.teachers.debate import Debate
from llmrl.teachers.domain import ANNOUNCEMENT_PREFIX
from llmrl.teachers.policy_teacher import PlanPolicy
from llmrl.teachers.schedules import Constant
from llmrl.teachers.teacher_factory import find_domain
from shipped import build_llm_planner, build_option


class Covetous(Provider):
    """Model that wants the first landmark that no agent with a lower number announced.

    `doubt` of ten answers are `stay`, and the agent `mute` gets no valid answer.
    """

    label = "covetous"
    identity = {"model": "covetous"}
    remote = False

    def __init__(self, doubt: int = 0) -> None:
        super().__init__(input_price=0.0, output_price=0.0)
        self.doubt, self.states, self.mute = doubt, [], ""

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [ChatReply(self._plan(request)) for request in requests]

    def _plan(self, request: ChatRequest) -> str:
        state = re.findall(r"^State: (.+)$", request.messages[0]["content"], re.MULTILINE)[-1]
        self.states.append(state)
        sentence, _, announcements = state.partition(ANNOUNCEMENT_PREFIX)
        me = re.match(r"The agent is (\w+)", sentence).group(1)
        if me == self.mute:
            return "Hm."
        occupied = {
            landmark for name, landmark in re.findall(r"(\w+): go to (landmark \d)", announcements) if name < me
        }
        first = next(name for name in re.findall(r"<(landmark \d)>", sentence) if name not in occupied)
        step = {"skill": "stay", "object": ""} if request.repeat < self.doubt else {"skill": "go to", "object": first}
        return json.dumps({"reasoning": "mine", "plan": [step]})


NAMES = ("agent_0", "agent_1", "agent_2")
STATE = "Nearest to <landmark 0> is agent_0, nearest to <landmark 1> is agent_0 and nearest to <landmark 2> is agent_0."
GAME = tuple(f"The agent is {name}. {STATE}" for name in NAMES)


def make_teacher(spec, seeds, llm, **arguments):
    """`teacher=llm` with some schedule."""
    return build_option("teacher/llm", spec=spec, seeds=seeds, llm=llm, schedule=Constant(1.0), **arguments)


def make_spec(n: int = 3):
    return ParticlesEnv(Seeds(0), SimpleSpread(n), n_envs=1).spec


def debate(rounds: int, samples: int = 1, doubt: int = 0) -> tuple[Debate, Covetous]:
    model = Covetous(doubt)
    planner = build_llm_planner(find_domain("simple_spread", spec=make_spec()), ChatClient(model), samples=samples)
    return Debate(planner, NAMES, rounds), model


def goals(plans) -> list[str]:
    return [normalize_weights[0][0][0].object for normalize_weights in plans]


def test_agents_with_equal_goals_diverge() -> None:
    """One changes its mind in a round: the third learns in the second round only where the second goes."""
    everyone = ["landmark 0"] * 3
    assert goals(debate(1)[0].plans(GAME)) == everyone
    single_round, two_rounds = (goals(debate(rounds)[0].deliberate([GAME])[0]) for rounds in (1, 2))
    assert single_round == ["landmark 0", "landmark 1", "landmark 1"]
    assert two_rounds == ["landmark 0", "landmark 1", "landmark 2"]


def test_questions_include_announcements() -> None:
    debating, model = debate(1)
    debating.deliberate([GAME])
    assert model.states[:3] == list(GAME)
    assert model.states[3:] == [
        f"{GAME[0]} The others mean to do this: agent_1: go to landmark 0; agent_2: go to landmark 0.",
        f"{GAME[1]} The others mean to do this: agent_0: go to landmark 0; agent_2: go to landmark 0.",
        f"{GAME[2]} The others mean to do this: agent_0: go to landmark 0; agent_1: go to landmark 0.",
    ]


def test_default_action_is_not_announced() -> None:
    debating, model = debate(1)
    model.mute = "agent_1"
    debating.deliberate([GAME])
    assert "agent_1: has no plan yet; agent_2: go to landmark 0." in next(
        state for state in model.states if state.startswith(f"{GAME[0]} The others")
    )


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_questions_are_cached(rounds: int) -> None:
    """The questions of all games of a round are sent together, and known questions are not sent."""
    debating, model = debate(rounds, samples=4)
    changed = tuple(sentence.replace("<landmark 2> is agent_0", "<landmark 2> is agent_1") for sentence in GAME)
    result = debating.deliberate([GAME, changed, GAME, GAME])
    assert result[0] == result[2] == result[3] and len(result) == 4
    # In the third round agent_0 hears what it heard in the second but for agent_2; agent_1 hears something new too.
    assert len(model.states) == 4 * len(set(model.states))
    assert len(set(model.states)) == {1: 12, 2: 18, 3: 22}[rounds]
    n_questions = len(model.states)
    assert debating.deliberate([changed, GAME]) == [result[1], result[0]]
    assert len(model.states) == n_questions


def test_distributions_use_last_round() -> None:
    debating, _ = debate(1, samples=10, doubt=4)
    [plans] = debating.deliberate([GAME])
    for normalize_weights, landmark in zip(plans, (0, 1, 1), strict=True):
        assert {str(plan[0]): share for plan, share in normalize_weights} == {
            f"go to <landmark {landmark}>": 0.6,
            "stay": 0.4,
        }
    env = ParticlesEnv(Seeds(1), SimpleSpread(), n_envs=5)
    plan_policy = PlanPolicy(debating)
    rows = plan_policy.advise(plan_policy.scenes({"vector": env.reset(seed=1)["vector"]}))
    assert rows.shape == (15, 5)
    np.testing.assert_allclose(rows.sum(-1), 1.0, atol=1e-6)


def test_plan_changes_are_logged_per_game() -> None:
    debating, _ = debate(1)
    assert debating.metrics()["teacher/debate_changes"] == 0.0
    debating.deliberate([GAME] * 3)
    assert debating.metrics()["teacher/debate_changes"] == pytest.approx(2 / 3)
    assert debating.metrics()["teacher/requested_states"] == 6.0


def test_state_round_trip() -> None:
    debating, _ = debate(2, samples=5, doubt=2)
    result = debating.deliberate([GAME])
    restored, model = debate(2, samples=5, doubt=2)
    restored.load_state_dict(json.loads(json.dumps(debating.state_dict())))
    assert restored.deliberate([GAME]) == debating.deliberate([GAME]) == result
    assert model.states == []
    assert restored.state_dict() == debating.state_dict() and restored.metrics() == debating.metrics()


def test_announcements_add_no_objects() -> None:
    debating, model = debate(1)
    lone = ("The agent is agent_0. Nearest to <landmark 0> is agent_0.", *GAME[1:])
    debating.deliberate([lone])
    assert debating.domain.objects(model.states[-3]) == ("landmark 0",)


def test_agents_share_mixture() -> None:
    env = ParticlesEnv(Seeds(1), SimpleSpread(), n_envs=7)
    observation = {"vector": env.reset(seed=1)["vector"]}
    separate, mixture = (
        make_teacher(env.spec, Seeds(0), ChatClient(Covetous(3)), sharing=sharing).plan_policy
        for sharing in ("own", "mixture")
    )
    rows = separate.advise(separate.scenes(observation)).reshape(7, 3, 5)
    shared = mixture.advise(mixture.scenes(observation)).reshape(7, 3, 5)
    np.testing.assert_allclose(shared, np.broadcast_to(rows.mean(1, keepdims=True), shared.shape), atol=1e-6)
    assert np.abs(rows - rows.mean(1, keepdims=True)).max() > 0.1


def test_single_agent_debate_raises() -> None:
    with pytest.raises(ConfigError, match=r"teacher\.debate_rounds=0"):
        make_teacher(make_spec(1), Seeds(0), ChatClient(Covetous()), debate_rounds=1)
    with pytest.raises(ConfigError, match="sharing=mixture"):
        make_teacher(make_spec(1), Seeds(0), ChatClient(Covetous()), sharing="mixture")
    make_teacher(make_spec(1), Seeds(0), ChatClient(Covetous()), debate_rounds=0)


def test_agents_with_different_actions_have_no_mixture() -> None:
    spec = ParticlesEnv(Seeds(0), SimpleSpeakerListener(), n_envs=1).spec
    with pytest.raises(ConfigError, match="equal actions"):
        make_teacher(spec, Seeds(0), ChatClient(Covetous()), sharing="mixture")


def test_playing_teacher_uses_agreement() -> None:
    """The thoughts of one agent show the agreement of its game."""
    teacher = make_teacher(make_spec(), Seeds(0), ChatClient(Covetous()), debate_rounds=2)
    vector = ParticlesEnv(Seeds(0), SimpleSpread(), n_envs=2).reset(seed=0)["vector"]
    teacher.policy.act({"vector": torch.from_numpy(vector)}, greedy=True)
    thoughts = [teacher.policy.thoughts(1, agent) for agent in range(3)]
    assert [lines[0][:20] for lines in thoughts] == [f"The agent is {name}" for name in NAMES]
    assert [lines[1] for lines in thoughts] == [f"1.00 go to <landmark {k}>" for k in range(3)]


def test_zero_rounds_disable_debate() -> None:
    teacher = make_teacher(make_spec(), Seeds(0), ChatClient(Covetous()), debate_rounds=0)
    assert "teacher/debate_changes" not in teacher.metrics()
    teacher = make_teacher(make_spec(), Seeds(0), ChatClient(Covetous()), debate_rounds=2)
    assert isinstance(teacher.plan_policy.planner, Debate) and teacher.plan_policy.planner.n_rounds == 2
    assert compose("env=simple_spread", "agent=mappo", "teacher=llm")["teacher"]["debate_rounds"] == 0


@pytest.mark.slow
def test_student_learns_from_debate(tmp_path) -> None:
    run(
        "env=simple_spread",
        "agent=mappo",
        "teacher=llm",
        "llm=scripted",
        "teacher.debate_rounds=1",
        "env.n_envs=16",
        "learn.env_steps=400",
        "learn.evaluation_interval=0",
        "learn.evaluate_episodes=4",
        f"output_root={tmp_path}",
    )
    folder = find_run_folder(tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(rows) if "teacher/debate_changes" in row)
    assert 0.0 < last["teacher/debate_changes"] < 0.5
    assert last["teacher/fallbacks"] == 0
    assert any(
        "The others mean to do this" in state for state in json.loads((folder / "plans.json").read_text())["plans"]
    )
