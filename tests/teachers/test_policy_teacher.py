import inspect
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drawn_rooms import draw
from llmrl.config.builder import Builder
from llmrl.core import option_files
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.protocols import Policy, Teacher
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.envs.rooms.tasks import ColoredDoorKey, SimpleDoorKey, UnlockPickup
from llmrl.envs.rooms.vec_env import RoomsEnv
from llmrl.llms.client import ChatClient
from llmrl.rollout.collector import Collector
from llmrl.teachers.domain import Domain
from llmrl.teachers.offline_planner import OfflinePlanner
from llmrl.teachers.planners import OraclePlanner
from llmrl.teachers.plans import PlanStep, Skill
from llmrl.teachers.policy_teacher import PlanPolicy, PolicyTeacher, TeacherPolicy
from llmrl.teachers.schedules import Constant, LinearFloorCutoff
from llmrl.teachers.teacher_factory import DOMAIN_CLASS_PATHS, check_domain, find_domain
from models import EchoProvider, make_scripted_client
from shipped import build_llm_planner

CONF = Path(__file__).parents[2] / "conf"
N_ENVS = 8


def environment(task=ColoredDoorKey, n_envs=N_ENVS, seed=0):
    return RoomsEnv(Seeds(seed), task(), n_envs=n_envs)


def build(option, env=None, llm=None, **changes):
    node = option_files.load_option("teacher", option) | changes
    injected = {
        "spec": (env or environment()).spec,
        "seeds": Seeds(5),
        "llm": llm,
        "prompt_folder": None,
        "folder": None,
    }
    return Builder(injected).build(node, "teacher")


def teacher(mode="soft", parity=False, weight=1.0, task="colored_doorkey"):
    domain = find_domain(task, parity)
    planner = OfflinePlanner(domain, "published" if parity else "corrected")
    return PolicyTeacher(PlanPolicy(planner, mode), Constant(weight), Seeds(3))


class Player(TeacherPolicy):
    """A teacher's policy that can be learned from."""

    def act(self, *args, **kwargs):
        act = super().act(*args, **kwargs)
        return replace(act, value=torch.zeros(act.action.shape))


class Rollouts:
    """Rollouts of a lenient teacher's play, one after the other."""

    def __init__(self, seed=0, env=None):
        env = env or environment()
        self.collector = Collector(env, Player(teacher("hard", parity=True, task=env.spec.name).plan_policy), "cpu")
        self.collector.reset(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, n_steps=12):
        return self.collector.collect(n_steps, self.generator).copy()


@pytest.fixture(scope="module")
def rollouts():
    play = Rollouts()
    return [play() for _ in range(15)]


class TestAdvice:
    @pytest.mark.parametrize("parity", [False, True])
    @pytest.mark.parametrize("mode", ["soft", "hard"])
    def test_distributions(self, rollouts, mode, parity):
        advice = teacher(mode, parity).advise(rollouts[0])["advice"]
        assert advice.shape == (12, N_ENVS, 1, 7) and advice.dtype == torch.float32
        torch.testing.assert_close(advice.sum(-1), torch.ones(12, N_ENVS, 1))
        assert (advice >= 0).all()
        assert ((advice == 1).any(-1)).all() == (mode == "hard")

    def test_soft_advice_sums_plans(self):
        domain = find_domain("simple_doorkey", parity=True)
        plan_policy = PlanPolicy(OfflinePlanner(domain, "published"))
        # A key is in reach of none: `go to` walks (.98) and `pick up` alone acts at once (.02).
        grid = draw("#####", "#>.K#", "#####")[None, None]
        advice = plan_policy.advise(plan_policy.scenes({"grid": grid}, np.zeros((1, 1, 4))))
        np.testing.assert_allclose(advice, [[0, 0, 0.98, 0.02, 0, 0, 0]], atol=1e-6)

    def test_hard_advice_samples_plans(self):
        domain = find_domain("simple_doorkey", parity=True)
        plan_policy = PlanPolicy(OfflinePlanner(domain, "published"), "hard")
        grid = draw("#####", "#>.K#", "#####")[None, None]
        scenes = plan_policy.scenes({"grid": grid}, np.zeros((1, 1, 4))) * 4
        advice = plan_policy.advise(scenes, np.array([0.0, 0.97, 0.981, 0.999999]))
        assert advice.argmax(1).tolist() == [2, 2, 3, 3]
        with pytest.raises(ValueError, match="random number"):
            plan_policy.advise(scenes)

    def test_empty_plan_is_idle(self):
        domain = find_domain("simple_doorkey")
        plan_policy = PlanPolicy(OfflinePlanner(domain))
        empty_room = draw("#####", "#>..#", "#####")[None, None]
        assert plan_policy.advise(plan_policy.scenes({"grid": empty_room})).tolist() == [[0, 0, 0, 0, 0, 0, 1]]

    def test_teacher_memory_resets_per_episode(self, rollouts):
        """In one piece or in two, with the games that ended in between forgotten."""
        assert any(r.episode_start[1:].any() for r in rollouts)
        parts = teacher(parity=True)
        actual = [parts.advise(r)["advice"] for r in rollouts]
        domain = find_domain("colored_doorkey", parity=True)
        plan_policy = PlanPolicy(OfflinePlanner(domain, "published"))
        memory = np.zeros((N_ENVS, 1, domain.memory_size))
        for r, advice in zip(rollouts, actual, strict=True):
            for t in range(12):
                memory[r.episode_start[t].numpy()] = 0
                single_step = plan_policy.advise(plan_policy.scenes({"grid": r.observation["grid"][t].numpy()}, memory))
                np.testing.assert_array_equal(advice[t, :, 0].numpy(), single_step)

    def test_counters(self, rollouts):
        judge = teacher()
        judge.advise(rollouts[0])
        counts = judge.metrics()
        assert counts["teacher/queries"] == 12 * N_ENVS and counts["teacher/weight"] == 1.0
        assert 1 <= counts["teacher/states"] <= 30 and counts["teacher/fallbacks"] == 0
        judge.advise(rollouts[0])
        assert judge.metrics()["teacher/states"] == counts["teacher/states"]
        assert judge.metrics()["teacher/queries"] == 2 * counts["teacher/queries"]

    def test_zero_weight_skips_advice(self, rollouts):
        class Silent(EchoProvider):
            def complete(self, requests):
                raise AssertionError("asked")

        domain = find_domain("colored_doorkey")
        judge = PolicyTeacher(
            PlanPolicy(build_llm_planner(domain, ChatClient(Silent()))), LinearFloorCutoff(cutoff=0), Seeds(0)
        )
        assert judge.advise(rollouts[0]) == {}
        assert judge.metrics()["teacher/weight"] == judge.metrics()["teacher/queries"] == 0
        logits = torch.randn(5, 7, requires_grad=True)
        loss, metrics = judge.loss({"action": torch.zeros(5)}, logits)
        assert loss == 0 and loss.shape == () and metrics == {}

    def test_model_failure_keeps_state(self, rollouts):
        class Broken(EchoProvider):
            def complete(self, requests):
                raise LLMError("no")

        domain = find_domain("colored_doorkey")
        judge = PolicyTeacher(PlanPolicy(build_llm_planner(domain, ChatClient(Broken()))), Constant(), Seeds(0))
        state = judge.state_dict()
        with pytest.raises(LLMError):
            judge.advise(rollouts[0])
        assert judge.updates == 0 and judge.state_dict()["plan_policy"] == state["plan_policy"]


class TestLoss:
    def minibatch(self, n=40, **extra):
        generator = torch.Generator().manual_seed(0)
        advice = torch.rand(n, 7, generator=generator).square()
        return {"advice": advice / advice.sum(-1, keepdim=True), **extra}, torch.randn(n, 7, generator=generator)

    def judge(self, weight):
        judge = teacher()
        judge.weight = weight
        return judge

    @pytest.mark.parametrize("weight", [0.1, 10.0])
    def test_against_torch(self, weight):
        batch, logits = self.minibatch()
        logits_, reference_logits = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        loss, metrics = self.judge(weight).loss(batch, logits_)
        reference = torch.nn.functional.cross_entropy(reference_logits, batch["advice"])
        torch.testing.assert_close(loss, weight * reference)
        assert metrics["teacher/cross_entropy"] == pytest.approx(reference.item())
        loss.backward()
        (weight * reference).backward()
        torch.testing.assert_close(logits_.grad, reference_logits.grad)

    def test_agreement(self):
        advice = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        logits = torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 0.5], [3.0, 0.0, 0.0], [0.0, 0.1, 0.2]])
        assert self.judge(1.0).loss({"advice": advice}, logits)[1]["teacher/agreement"] == 0.5

    def test_forbidden_actions_are_no_advice(self):
        batch, logits = self.minibatch()
        mask = torch.ones(40, 7, dtype=torch.bool)
        mask[:, 3] = False
        mask[5] = torch.tensor([False] * 6 + [True])
        batch["advice"][5] = torch.tensor([1.0] + [0.0] * 6)  # nothing is left of it
        lowest = torch.finfo(torch.float32).min
        logits_ = logits.masked_fill(~mask, lowest).requires_grad_()
        loss, _ = self.judge(1.0).loss({**batch, "action_mask": mask}, logits_)
        keep = torch.arange(40) != 5
        allowed = [0, 1, 2, 4, 5, 6]
        advice = batch["advice"][keep][:, allowed]
        reference = torch.nn.functional.cross_entropy(logits[keep][:, allowed], advice / advice.sum(-1, keepdim=True))
        torch.testing.assert_close(loss, reference)
        loss.backward()
        assert torch.isfinite(logits_.grad).all() and (logits_.grad[5] == 0).all()


class TestSchedules:
    def test_paper_schedule(self):
        """10 - .005 i for i <= 1980, .1 up to 2999, then no teacher."""
        schedule = LinearFloorCutoff()
        for i in range(3100):
            reference = 10 - 0.005 * i if i <= 1980 else 0.1 if i < 3000 else 0.0
            assert schedule(i) == pytest.approx(reference, abs=1e-9), i
        assert LinearFloorCutoff(cutoff=None)(10**6) == 0.1

    def test_constant(self):
        assert Constant(0.25)(0) == Constant(0.25)(10**6) == 0.25

    @given(st.floats(0, 20), st.floats(0, 1), st.integers(1, 50), st.integers(0, 100))
    def test_weights_are_monotonic(self, start, floor, anneal, cutoff):
        weights = [LinearFloorCutoff(max(start, floor), floor, anneal, cutoff)(i) for i in range(120)]
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(weights)) and min(weights) >= 0

    def test_floor_exceeding_start_raises(self):
        with pytest.raises(ConfigError, match=r"floor=0\.2 .*start=0\.1"):
            LinearFloorCutoff(start=0.1, floor=0.2)


class TestRestoring:
    @pytest.mark.parametrize(("mode", "parity"), [("soft", False), ("hard", False), ("hard", True)])
    def test_bit_for_bit(self, rollouts, mode, parity):
        uninterrupted, first, second = (teacher(mode, parity) for _ in range(3))
        reference = [uninterrupted.advise(r)["advice"] for r in rollouts]
        for r in rollouts[:7]:
            first.advise(r)
        second.load_state_dict(first.state_dict())
        for r, advice in zip(rollouts[7:], reference[7:], strict=True):
            assert torch.equal(second.advise(r)["advice"], advice)
        assert second.metrics() == uninterrupted.metrics()

    def test_saved_state_is_immutable(self, rollouts):
        judge = teacher(parity=True)
        judge.advise(rollouts[0])
        state = judge.state_dict()
        memory = state["memory"].copy()
        judge.advise(rollouts[1])
        np.testing.assert_array_equal(state["memory"], memory)

    def test_model_plans_are_not_requested_twice(self, rollouts):
        def judge(llm):
            domain = find_domain("colored_doorkey")
            return PolicyTeacher(PlanPolicy(build_llm_planner(domain, llm, samples=2)), Constant(), Seeds(0))

        first = judge(make_scripted_client())
        reference = first.advise(rollouts[0])["advice"]
        second = judge(ChatClient(EchoProvider()))  # whose replies are no plans
        state = first.state_dict()
        state["plan_policy"] = json.loads(json.dumps(state["plan_policy"]))
        second.load_state_dict(state)
        assert torch.equal(second.advise(rollouts[0])["advice"], reference)


class TestPolicy:
    @pytest.mark.slow
    def test_plays_advice(self):
        env = environment(SimpleDoorKey, 32)
        player = TeacherPolicy(teacher(task="simple_doorkey").plan_policy)
        assert isinstance(player, Policy)
        collector = Collector(env, player, "cpu")
        collector.reset(0)
        episodes = collector.collect(100, torch.Generator().manual_seed(0), learn=False).episodes
        assert len(episodes) > 32 and all(e.summaries["success"] == 1 for e in episodes)

    def test_acts(self, rollouts):
        observation = {"grid": rollouts[0].observation["grid"][3]}
        for parity in (False, True):
            player = TeacherPolicy(teacher("soft", parity).plan_policy)
            act = player.act(observation, None, torch.Generator().manual_seed(1))
            assert act.action.shape == (N_ENVS, 1) and act.action.dtype == torch.int64
            assert act.logits.shape == (N_ENVS, 1, 7) and torch.isfinite(act.logits).all()
            torch.testing.assert_close(act.logits.exp().sum(-1), torch.ones(N_ENVS, 1))
            assert (act.log_prob > -20).all()  # never an action without probability
            assert (act.state is None) == (not parity)
            greedy = player.act(observation, act.state, greedy=True)
            assert torch.equal(greedy.action, greedy.logits.argmax(-1))
            assert torch.equal(player.values(observation), torch.zeros(N_ENVS, 1))

    def test_greedy_teacher_uses_mode(self):
        domain = find_domain("simple_doorkey", parity=True)
        player = TeacherPolicy(PlanPolicy(OfflinePlanner(domain, "published"), "hard"))
        # As above: 0.98 of the plans walk.
        grid = torch.as_tensor(draw("#####", "#>.K#", "#####")[None, None].repeat(200, axis=0))
        stream = torch.Generator().manual_seed(0)
        sampled, greedy = (player.act({"grid": grid}, None, stream, greedy).action for greedy in (False, True))
        assert set(sampled.flatten().tolist()) == {2, 3} and (greedy == 2).all()

    def test_memory_is_not_modified(self, rollouts):
        player = TeacherPolicy(teacher("hard", parity=True).plan_policy)
        state = torch.zeros(N_ENVS, 1, 24, dtype=torch.float64)
        act = player.act({"grid": rollouts[0].observation["grid"][8]}, state, torch.Generator().manual_seed(1))
        assert (state == 0).all() and (act.state != 0).any()


class TwoAgents(Domain):
    """Agents that are told to do as they see; whoever wants another world taught writes this much."""

    name = prompt = "echo"
    channels = ("vector",)
    skills = (Skill("follow", False, "do as you see"),)
    n_actions = 3
    idle = 0
    fallback = (PlanStep("follow"),)

    def scene(self, observation, agent, memory):
        class SceneStub:
            sentence = f"Agent {agent}"

            def act(self, step):
                return int(observation["vector"].argmax()) if agent == 0 else None

        return SceneStub()

    def best_plan(self, sentence):
        return (PlanStep("follow"),)


class TestOptions:
    @pytest.mark.parametrize("option", ["llm", "offline", "oracle"])
    def test_options_build(self, rollouts, option):
        judge = build(option, llm=make_scripted_client())
        assert isinstance(judge, Teacher) and judge.channels == ("grid",)
        assert isinstance(judge.policy, TeacherPolicy)
        assert judge.advise(rollouts[0])["advice"].shape == (12, N_ENVS, 1, 7)
        assert judge.metrics()["teacher/weight"] == 1.0

    def test_missing_schedule_raises(self):
        with pytest.raises(ConfigError, match=r"teacher\.schedule=null"):
            build("oracle", schedule=None)

    def test_only_llm_teacher_needs_model(self):
        nodes = {name: option_files.load_option("teacher", name) for name in ("llm", "offline", "oracle")}
        assert [name for name, node in nodes.items() if Builder().needs(node, "llm", "teacher")] == ["llm"]

    def test_parity_matches_paper(self):
        judge = build("offline", parity=True, mode="hard")
        assert (
            judge.plan_policy.domain.parity
            and judge.plan_policy.planner._table_name == "published"
            and judge.plan_policy.mode == "hard"
        )
        assert build("offline").plan_policy.planner._table_name == "corrected"

    def test_custom_schedule(self):
        node = {"_target_": "llmrl.teachers.schedules.Constant", "weight": 0.5}
        assert build("oracle", schedule=node).schedule == Constant(0.5)
        with pytest.raises(ConfigError, match="greater than 0"):
            build("oracle", schedule={"_target_": "llmrl.teachers.schedules.LinearFloorCutoff", "anneal": 0})

    @pytest.mark.parametrize("option", ["llm", "offline", "oracle"])
    def test_environments_lacking_domain(self, option):
        spec = EnvSpec("chess", 1, 1, {"grid": Channel((3, 3, 4), "uint8")}, 7, tuple("abcdefg"), 10)

        class Env:
            pass

        env = Env()
        env.spec = spec
        with pytest.raises(ConfigError, match=f"env=chess;.*{', '.join(DOMAIN_CLASS_PATHS)}"):
            build(option, env, make_scripted_client())

    def test_incompatible_environments(self):
        env = RoomsEnv(Seeds(0), SimpleDoorKey(), n_envs=2, observe=["view"])
        with pytest.raises(ConfigError, match=r"'grid'.*env=simple_doorkey"):
            build("oracle", env)
        with pytest.raises(ConfigError, match=r"3 actions.*env=two.*7"):
            self.two_agents(n_actions=7)

    def two_agents(self, n_actions=3):
        class Env:
            spec = EnvSpec(
                "two", 2, 2, {"vector": Channel((3,), "float32")}, n_actions, tuple("abcdefg"[:n_actions]), 10
            )

        injected = {"spec": Env.spec, "seeds": Seeds(0), "prompt_folder": None, "folder": None}
        node = {
            "_target_": "llmrl.teachers.teacher_factory.oracle_teacher",
            "domain": TwoAgents(),
            "schedule": Constant(1.0),
        }
        return Builder(injected).build(node, "teacher")

    def test_custom_domain_with_two_agents(self):
        judge = self.two_agents()
        vector = np.zeros((2, 2, 3), dtype=np.float32)
        vector[0, 0, 1] = vector[1, 0, 2] = vector[:, 1, 1] = 1
        plan_policy = judge.plan_policy
        assert plan_policy.advise(plan_policy.scenes({"vector": vector})).argmax(1).tolist() == [1, 0, 2, 0]
        assert plan_policy.sentences == {"Agent 0", "Agent 1"}

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"prompt": None}, "domain Mine has no prompt; set name, channels, prompt"),
            ({"fallback": None, "idle": None}, "no idle, fallback"),
        ],
    )
    def test_domain_errors_state_class(self, changes, complaint):
        members = {name: value for name, value in vars(TwoAgents).items() if not name.startswith("__")}
        wrong = {**members, **{name: value for name, value in changes.items() if value is not None}}
        mine = type("Mine", (Domain,), {n: v for n, v in wrong.items() if n not in changes or changes[n] is not None})()
        spec = EnvSpec("two", 2, 2, {"vector": Channel((3,), "float32")}, 3, tuple("abc"), 10)
        with pytest.raises(ConfigError, match=complaint):
            check_domain(mine, spec)

    def test_manual_example_matches_code(self):
        root = Path(__file__).parents[2]
        text = (root / "docs" / "extending.md").read_text()
        domain = find_domain("unlock_pickup")
        check_domain(domain, environment(UnlockPickup).spec)
        assert domain.best_plan("Agent sees <box>, holds <key>.") == (PlanStep("drop", "key"),)
        source = Path(inspect.getsourcefile(type(domain)))
        source_path, prompt = re.findall(r"`(src/llmrl/teachers/[\w/.]*unlock_pickup\.\w+)`", text)
        assert source.samefile(root / source_path) and f"<!-- copy: {source_path} -->" in text
        assert (source.parents[1] / "prompts" / f"{domain.prompt}.j2").samefile(root / prompt)

    @pytest.mark.parametrize("action", [3, -1, 1.5])
    def test_invalid_action_is_reported(self, action):
        class Mine(TwoAgents):
            def action(self, scene, plan):
                return action

        plan_policy = PlanPolicy(OraclePlanner(Mine()))
        with pytest.raises(ConfigError, match=rf"Mine .*action {action} .*'follow'"):
            plan_policy.advise(plan_policy.scenes({"vector": np.zeros((1, 2, 3), dtype=np.float32)}))

    def test_invalid_domain_class(self):
        with pytest.raises(ConfigError, match=r"teacher.domain=.*Constant"):
            build("oracle", domain={"_target_": "llmrl.teachers.schedules.Constant"})

    def test_parity_outside_paper(self):
        with pytest.raises(ConfigError, match="unlock_pickup"):
            find_domain("unlock_pickup", parity=True)
        node = {"_target_": "llmrl.teachers.rooms.room_domains.ColoredDoorKeyDomain"}
        with pytest.raises(ConfigError, match="contradict"):
            build("offline", parity=True, domain=node)

    def test_domain_options(self):
        env = environment(SimpleDoorKey)
        node = {"_target_": "llmrl.teachers.rooms.room_domains.LavaDoorKeyDomain", "view_size": 5}
        assert build("oracle", env, domain=node).plan_policy.domain.view_size == 5
