import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from corridor import Corridor
from experiments import compose, find_run_folder
from experiments import run as run_experiment
from llmrl.agents.cloning_agent import CloningAgent, CloningAgentSettings
from llmrl.agents.random_agent import RandomAgent
from llmrl.algorithms.cloning import BehavioralCloning, CloningSettings
from llmrl.config.loop_sections import get_loop_kind
from llmrl.core.errors import ConfigError, Diverged, RunFolderError
from llmrl.core.records import PolicyOutput
from llmrl.core.seeding import Seeds
from llmrl.core.text_array import TextArray
from llmrl.experiment.config_completion import groups_using_model
from llmrl.experiment.parts import check_values
from llmrl.loops.clone import CloneLoop, CloneSettings
from llmrl.loops.executor import serve
from llmrl.loops.loop_parts import LoopParts
from llmrl.networks.action_distributions import sample_categorical
from llmrl.networks.drrn import DRRN, Vocabulary, pad_texts
from llmrl.run.artifacts import load_saved_state, save_config
from llmrl.run.metrics import read_metrics
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.trajectories import Trajectories, TrajectoryFiles, read_trajectories
from stalling import TOTAL_STALL_S, StallingMethod, shorten_stop_timeouts

pytestmark = pytest.mark.slow

QUICK = CloningSettings(
    learning_rate=1e-2, weight_decay=0.0, adam_eps=1e-8, batch_size=16, warmup=0.1, schedule="cosine", max_grad_norm=1.0
)


class ReadingNetwork(nn.Module):
    """Logits and values of texts, in the format of a language model."""

    def __init__(self, names):
        super().__init__()
        self.q, self.words, self.names = DRRN(60, 16, Seeds(0).torch("weights")), Vocabulary(60), names
        self.critic = nn.Linear(1, 1)
        nn.init.zeros_(self.critic.weight), nn.init.zeros_(self.critic.bias)

    def compute_outputs(self, texts):
        rows = pad_texts([self.words.encode(text) for text in texts])
        return self.q(rows, pad_texts([self.words.encode(name) for name in self.names]))

    def forward(self, batch):
        assert isinstance(batch["prompt"], TextArray)
        prompts, places = batch["prompt"].unique()
        logits = self.compute_outputs(prompts)[places]
        return logits, self.critic(logits[:, :1]).squeeze(1)


class ReadingPolicy(nn.Module):
    channels, recurrent = ("prompt",), False

    def __init__(self, spec):
        super().__init__()
        self.network = ReadingNetwork(spec.action_names)

    def list_networks(self):
        return [(self.network, slice(0, 1))]

    @torch.no_grad()
    def act(self, observation, state=None, generator=None, greedy=False):
        texts = observation["prompt"]
        logits = self.network.compute_outputs(texts.ravel()).reshape(*texts.shape, -1)
        return PolicyOutput(logits.argmax(-1) if greedy else sample_categorical(logits, generator), logits=logits)

    def values(self, observation, state=None):
        return torch.zeros(observation["prompt"].shape)


class Student:
    """The required part of `agent=llm_ppo`."""

    loop = "learn"
    learns = True

    def __init__(self, spec):
        self.policy = ReadingPolicy(spec)

    def update(self, rollout, generator):
        return {}

    def reset(self):
        """Reset nothing."""

    def describe(self):
        return {"policy": "reads"}

    def state_dict(self):
        words = self.policy.network.words.state_dict()
        return {"policy": dict(self.policy.state_dict()), "words": words, "learner": None}

    def load_state_dict(self, state):
        self.policy.load_state_dict(state["policy"])
        self.policy.network.words.load_state_dict(state["words"])


def record(env=None, steps=60, names=None, teacher=lambda env, rng: env.expert(), success=None):
    """Record the actions of `teacher` in a corridor."""
    env = env or Corridor(n_envs=4)
    rng = np.random.default_rng(0)
    observation, rows, episode = env.reset(seed=3), [], np.arange(env.spec.n_envs)
    places = {}
    for _ in range(steps):
        action = teacher(env, rng)
        texts = [places.setdefault(text, len(places)) for text in observation["prompt"][:, 0]]
        step = env.step(action[:, None])
        done = step.terminated | step.truncated
        rows += [
            (texts[i], action[i], step.reward[i, 0], step.terminated[i], step.truncated[i], episode[i], i)
            for i in range(env.spec.n_envs)
        ]
        observation = env.reset(mask=done) if done.any() else step.observation
        episode = np.where(done, episode.max() + 1 + np.cumsum(done), episode)
    prompt, action, reward, terminated, truncated, episodes, game = (np.array(x) for x in zip(*rows, strict=True))
    succeeded = {e: bool(reward[episodes == e].sum() > 0) for e in np.unique(episodes)}
    unknown = np.full(len(rows), np.nan, dtype=np.float32)
    none = np.full(len(rows), "", dtype=object)
    success_column = np.array([succeeded[e] for e in episodes], dtype=np.float32)
    return Trajectories(
        prompts=list(places),
        action_names=list(names or env.spec.action_names),
        prompt=prompt.astype(np.int64),
        action=action.astype(np.int64),
        log_prob=unknown,
        value=unknown,
        reward=reward.astype(np.float32),
        base_reward=reward.astype(np.float32),
        terminated=terminated.astype(bool),
        truncated=truncated.astype(bool),
        episode=episodes.astype(np.int64),
        step=np.zeros(len(rows), dtype=np.int64),
        game=game.astype(np.int64),
        agent=np.zeros(len(rows), dtype=np.int64),
        success=success_column if success is None else success,
        kind=none,
        mission=none,
    )


@pytest.fixture
def data(tmp_path):
    """Return a function that saves trajectories and returns their folder."""

    def save(trajectories):
        TrajectoryFiles(tmp_path / "bot").write(trajectories)
        return str(tmp_path / "bot")

    return save


SETTINGS = CloningAgentSettings("x", "all", None, 0.1, QUICK)


def cloner(folder, env=None, held_out=0.2, limit=None, episodes="all", settings=QUICK, env_options=None):
    spec = (env or Corridor()).spec
    student = Student(spec)
    cloning_settings = CloningAgentSettings(folder, episodes, limit, held_out, settings)
    return CloningAgent(spec, cloning_settings, Seeds(1), "cpu", student, None, env_options)


def make_loop(folder, epochs=8, env=None, **options):
    env = env or Corridor(n_envs=8, seed=9)
    fields = {
        "log_interval": 5,
        "validation_interval": 10,
        "evaluation_interval": 0,
        "evaluate_episodes": 16,
        **options,
    }
    return CloneLoop(LoopParts(env, [cloner(folder, env)], Seeds(2)), CloneSettings(epochs, **fields))


def open_run(tmp_path, name="clone", interval=1000.0):
    return Run.open(tmp_path, name, {"what": name, "checkpoint_seconds": interval}, [], 0)


def test_student_imitates_teacher(data, tmp_path):
    loop = make_loop(data(record()), evaluation_interval=20)
    with open_run(tmp_path) as run:
        result = serve(loop.requests(run), run)
        folder = run.folder
    assert result == 1.0
    rows = read_metrics(folder / "metrics.jsonl")
    assert rows[0]["clone/accuracy"] < 0.9 < rows[-2]["clone/accuracy"]
    assert rows[-1]["held_out/accuracy"] == 1.0 and rows[-1]["held_out/loss"] < 0.2
    assert rows[-1]["evaluation/won"] == 1.0 and rows[-1]["updates"] == loop.cloning.n_updates
    assert any("evaluation/won" in row for row in rows[:-1])
    assert [row["kind"] for row in rows[-2:]] == ["update", "evaluation"] and {row["x"] for row in rows} == {"updates"}
    assert rows[-1]["samples"] == 8 * loop.cloning.n_train
    weights = load_saved_state(folder)[1]["agents"][0]["policy"]
    student_copy = Student(Corridor().spec)
    student_copy.load_state_dict(load_saved_state(folder)[1]["agents"][0])
    assert set(weights) == set(student_copy.policy.state_dict())


def test_resume_between_minibatches_is_identical(data, tmp_path):
    folder = data(record(steps=20))
    ends = []
    for name, stops in (("whole", ()), ("stopped", (3, 7, 8))):
        for after in (*stops, None):
            loop = make_loop(folder, epochs=3)
            with suppress(Stopped), open_run(tmp_path, name, interval=0.0) as run:
                update, run_folder = loop.cloning.update, run.folder

                def stopping(i, update=update, run_folder=run_folder, after=after):
                    if i == after:
                        raise Stopped(run_folder, 15)
                    return update(i)

                loop.cloning.update = stopping
                serve(loop.requests(run), run)
        rows = read_metrics(run_folder / "metrics.jsonl")
        numbers = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]
        ends.append((numbers, load_saved_state(run_folder)[1]["agents"][0]))
    (numbers, state), (resumed_numbers, after) = ends
    assert numbers == resumed_numbers
    assert all(torch.equal(x, after["policy"][name]) for name, x in state["policy"].items())
    first, second = (s["cloning"]["optimizer"]["state"] for s in (state, after))
    assert all(torch.equal(first[i]["exp_avg"], second[i]["exp_avg"]) for i in first)


@pytest.mark.parametrize(
    ("owner", "method", "at"),
    [
        (BehavioralCloning, "update", 3),
        pytest.param(BehavioralCloning, "validate", 0, marks=pytest.mark.long),
        pytest.param(Corridor, "step", 5, marks=pytest.mark.long),
    ],
)
def test_stop_signal_ends_stalled_run(data, tmp_path, monkeypatch, owner, method, at):
    lessons = data(record(steps=20))

    def results(name):
        with open_run(tmp_path, name, interval=0.0) as run:
            serve(make_loop(lessons, evaluation_interval=12).requests(run), run)
        rows = read_metrics(run.folder / "metrics.jsonl")
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]

    with monkeypatch.context() as patch:
        shorten_stop_timeouts(patch)
        stall = StallingMethod(patch, owner, method, at, whole=True)
        with pytest.raises(Stopped):
            results("stalled")
        assert time.monotonic() - stall.signaled < TOTAL_STALL_S / 2
    assert results("stalled") == results("whole")


def test_epoch_visits_all_steps():
    class RecordingModule(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs, self.weight = [], nn.Parameter(torch.zeros(2))

        def forward(self, batch):
            self.inputs.append(batch["x"])
            return self.weight.expand(len(batch["x"]), 2), torch.zeros(len(batch["x"]))

    samples = {"x": torch.arange(37), "action": torch.zeros(37, dtype=torch.int64)}
    network = RecordingModule()
    cloning = BehavioralCloning(network, QUICK, samples, {n: x[:5] for n, x in samples.items()}, Seeds(0), epochs=2)
    assert cloning.n_updates == 6 and cloning.n_updates_per_epoch == 3
    for i in range(6):
        cloning.update(i)
    epochs = [torch.cat(network.inputs[k : k + 3]).tolist() for k in (0, 3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(37))] * 2 and epochs[0] != epochs[1]
    network.inputs.clear()
    metrics = cloning.validate()
    assert torch.cat(network.inputs).tolist() == [0, 1, 2, 3, 4]
    assert metrics["loss"] == pytest.approx(-network.weight.detach().log_softmax(0)[0].item(), abs=1e-6)


def test_learning_rate_follows_schedule():
    samples = {"x": torch.zeros(100, 1), "action": torch.zeros(100, dtype=torch.int64)}
    settings = replace(QUICK, learning_rate=1.0, batch_size=1, warmup=0.1)
    rates = BehavioralCloning(nn.Linear(1, 2), settings, samples, samples, Seeds(0), 1).compute_learning_rate
    assert [rates(i) for i in (0, 4, 9, 10)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert rates(55) == pytest.approx(0.5) and 0 < rates(99) < 0.001
    constant = replace(settings, schedule="constant", warmup=0.0)
    assert BehavioralCloning(nn.Linear(1, 2), constant, samples, samples, Seeds(0), 1).compute_learning_rate(99) == 1.0


def test_validation_set_has_complete_episodes(data):
    folder = data(record(steps=40))
    agent = cloner(folder, held_out=0.25)
    losses = agent.imitate(1)
    trajectories = agent._select_steps(record(steps=40))
    validation_mask = agent._sample_validation_mask(trajectories)
    episodes = [set(trajectories.episode[mask]) for mask in (validation_mask, ~validation_mask)]
    assert not episodes[0] & episodes[1]
    assert len(episodes[0]) == round(0.25 * len(set(trajectories.episode)))
    assert (losses.n_validation, losses.n_train) == (validation_mask.sum(), (~validation_mask).sum())
    assert cloner(folder, held_out=0.0).imitate(1).validate() == {}


def test_only_successful_episodes_are_imitated(data):
    def stumbling(env, rng):
        return rng.integers(2, size=env.spec.n_envs)

    trajectories = record(teacher=stumbling)
    folder = data(trajectories)
    wins = int((trajectories.success > 0).sum())
    assert 0 < wins < len(trajectories)
    assert cloner(folder, held_out=0.0, episodes="successful").imitate(1).n_train == wins
    assert cloner(folder, held_out=0.0).imitate(1).n_train == len(trajectories)
    assert cloner(folder, held_out=0.0, limit=17).imitate(1).n_train == 17


def test_actions_are_matched_by_name(data):
    names = ("wait", "go west", "go east")
    env = Corridor(names=("go east", "go west", "wait"))
    mirrored = record(names=("go west", "go east"))
    agent = cloner(data(mirrored), env=Corridor(names=names))
    assert set(mirrored.action) == {0, 1}
    assert (agent._map_actions(mirrored) == np.where(mirrored.action == 0, 1, 2)).all()
    with pytest.raises(ConfigError, match=r"'walk'.*env=corridor.*go east, go west, wait"):
        cloner("bot", env=env)._map_actions(record(names=("walk", "go west")))


def test_rejects_different_prompts(data, tmp_path):
    folder = data(record())
    description = {
        "language": "en",
        "actions": ["go east"],
        "history": 3,
        "template": "glam",
        "replace": {},
        "level": "a",
    }
    save_config(tmp_path / "bot" / "config.yaml", {"env": description})
    settings_copy = {**description, "level": "b", "horizon": 7}

    def imitate(options, place=folder):
        return cloner(place, env_options=options).imitate(1)

    assert imitate(settings_copy).n_train > 0 and imitate({}).n_train > 0
    assert imitate({"n_envs": 3, "history": 3}).n_train > 0
    for name, value, override in (
        ("language", "fr", "fr"),
        ("actions", "canonical", "canonical"),
        ("history", 1, "1"),
        ("template", None, "null"),
        ("replace", {"key": "a chair", "ball": "x"}, "{key: a chair, ball: x}"),
    ):
        with pytest.raises(ConfigError) as error:
            imitate({**settings_copy, name: value})
        assert f"env.{name}={override}; use env.{name}=" in str(error.value)
    with pytest.raises(ConfigError, match=r"env.actions=\[go east\].*env.actions=\[\]"):
        imitate({**settings_copy, "actions": []})
    for place in ("trajectories", "trajectories/0.npz"):
        with pytest.raises(ConfigError, match=r"env\.history=3"):
            imitate({**settings_copy, "history": 2}, f"{folder}/{place}")
    # A run of an environment without them, and one whose config says nothing of an environment.
    for config in ({"env": {"horizon": 9}}, {"method": {}}):
        save_config(tmp_path / "bot" / "config.yaml", config)
        assert imitate(settings_copy).n_train > 0
    (tmp_path / "bot" / "config.yaml").write_text("env: [")
    with pytest.raises(RunFolderError, match=r"config.yaml"):
        imitate(settings_copy)


def test_rejects_uninformative_episodes(data, tmp_path):
    with pytest.raises(ConfigError, match=r"agent.data=<"):
        cloner(None).imitate(1)
    with pytest.raises(RunFolderError, match="trajectories"):
        cloner(str(tmp_path / "nothing")).imitate(1)
    unread = replace(record(), prompt=np.full(240, -1))
    with pytest.raises(ConfigError, match="has a text"):
        cloner("x")._select_steps(unread)
    with pytest.raises(ConfigError, match="several numbers"):
        cloner("x")._select_steps(replace(record(), action_names=[]))
    with pytest.raises(ConfigError, match="240 steps"):
        cloner("x", episodes="successful")._select_steps(record(success=np.full(240, np.nan)))
    with pytest.raises(ConfigError, match="learn from"):
        cloner(data(record()), held_out=1.0).imitate(1)


def test_rejects_incompatible_students():
    spec = Corridor().spec
    student = Student(spec)
    student.policy.channels = ("number",)
    with pytest.raises(ConfigError, match=r"Student.*number; use agent@agent.student="):
        CloningAgent(spec, SETTINGS, Seeds(0), "cpu", student)
    with pytest.raises(ConfigError, match=r"agent\.student: .*RandomAgent"):
        CloningAgent(spec, SETTINGS, Seeds(0), "cpu", RandomAgent(spec))
    with pytest.raises(ConfigError, match="teacher=none"):
        CloningAgent(spec, SETTINGS, Seeds(0), "cpu", Student(spec), teacher=object())
    with pytest.raises(ConfigError, match=r"RandomAgent.*agent=bc"):
        CloneLoop(LoopParts(Corridor(), [RandomAgent(spec)], Seeds(0)), CloneSettings(1, 1, 1, 1, 1))
    with pytest.raises(ConfigError, match=r"agent\.student: Student.*=llm_ppo"):
        CloningAgent(spec, SETTINGS, Seeds(0), "cpu", Student(spec)).adapt(spec)


def test_non_finite_loss_ends_run():
    samples = {"x": torch.full((8, 1), torch.nan), "action": torch.zeros(8, dtype=torch.int64)}

    class Broken(nn.Linear):
        def forward(self, batch):
            return super().forward(batch["x"]), None

    with pytest.raises(Diverged, match=r"1: .*loss nan"):
        BehavioralCloning(Broken(1, 2), QUICK, samples, samples, Seeds(0), 1).update(0)


GAME = ("env=goto_red_ball", "env.n_envs=4", "env.history=1", "env.actions=restricted")


def test_language_model_imitates_and_reinforces(tmp_path):
    from llmrl.llms.local.small import SmallModelShape, make_small_model

    def find_folder(name):
        return find_run_folder(tmp_path / name)

    run_experiment(*GAME, "agent=bot", "play.episodes=12", "play.trajectories=true", f"output_root={tmp_path}/bot")
    prompts = read_trajectories(find_folder("bot")).prompts
    make_small_model(
        tmp_path / "model", prompts, "seq2seq", shape=SmallModelShape(width=32, layers=1, heads=2, vocabulary=400)
    )
    model = ("llm=local_scorer_seq2seq", f"llm.model={tmp_path}/model")
    heads = "head_hidden=[8]"
    options = (f"agent.data='{find_folder('bot')}'", "agent.cloning.batch_size=16", f"agent.student.{heads}")
    fast = (
        "agent.cloning.learning_rate=0.01",
        "agent.limit=30",
        "agent.held_out=0.3",
        "clone.epochs=30",
        "clone.log_interval=5",
        "clone.evaluate_episodes=4",
    )
    clone = (*GAME, "agent=bc", *model, *options, *fast)
    run_experiment(*clone, f"output_root={tmp_path}/bc")
    rows = read_metrics(find_folder("bc") / "metrics.jsonl")
    assert rows[-2]["clone/loss"] < 0.5 * rows[0]["clone/loss"] and rows[-2]["clone/epoch"] == 30
    assert rows[-1]["held_out/loss"] > 0 and 0 <= rows[-1]["evaluation/success"] <= 1
    cloned = load_saved_state(find_folder("bc"))[1]["agents"][0]["policy"]
    with pytest.raises(ConfigError, match=r"env.history=1.*goto_red_ball.*env.history=2"):
        run_experiment(*clone, "env.history=2", "dry_run=true")
    learn = ("learn.env_steps=1", "learn.rollout_steps=2", "learn.evaluate_episodes=1", "agent.ppo.learning_rate=1e-12")
    start = (f"agent.init_from='{find_folder('bc')}'", f"agent.{heads}")
    run_experiment(*GAME, "agent=llm_ppo", *model, *start, *learn, f"output_root={tmp_path}/ppo")
    trained_policy = load_saved_state(find_folder("ppo"))[1]["agents"][0]["policy"]
    assert cloned.keys() == trained_policy.keys()
    assert all(torch.allclose(cloned[name], trained_policy[name], atol=1e-9) for name in cloned)


@pytest.mark.parametrize(
    ("study", "treatment", "env"), [("goto_local", "small_bc", "goto_local"), ("mixed", "bc", "mixed_train")]
)
def test_treatments_build(study, treatment, env):
    config = compose(f"experiment=grounding/{study}", f"treatment={treatment}", "agent.data=somewhere")
    check_values(config)
    assert get_loop_kind(config) == "clone" and groups_using_model(config)
    assert config["env"]["name"] == env


def test_imitation_rejects_principal():
    with pytest.raises(ConfigError, match="principal=none"):
        check_values(compose("env=goto_red_ball", "agent=bc", "principal=random"))
