"""Probes: prompts, logged metrics, figures and invalid options."""

import json
import re

import pytest

from errands import Errands, Reader
from experiments import compose, find_run_folder, run_experiment
from llmrl.analysis.probes import draw_probes
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.loops.probing import Probes, builtin_probe_list_names
from llmrl.run.metrics import read_metrics

PROBES = """
- {name: key, goal: take the key, observations: [[0 steps], [1 steps]], actions: [sing], intended: take key}
- {name: raw, prompt: 'take the box, say I', intended: sing}
"""


def loaded(tmp_path, text, env=None, policy=None):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    env = env or Errands(Seeds(0))
    return Probes.load(str(path), env, policy or Reader(env.spec, 2.0))


@pytest.mark.slow
def test_probe_probabilities_change_with_learning(tmp_path, caplog):
    (tmp_path / "own.yaml").write_text(PROBES)
    config = compose(
        *("agent=random", "trusted_modules=[errands]", "learn.env_steps=24", "learn.rollout_steps=2"),
        *(f"learn.probes={tmp_path / 'own.yaml'}", "learn.probe_interval=2"),
    )
    config["env"] = {"_target_": "errands.Errands", "n_envs": 3}
    config["agent"] = {"_target_": "errands.ReaderAgent", "skill": 0.0}
    run_experiment({**config, "output_root": str(tmp_path / "runs"), "name": "errands"}, [])
    folder = find_run_folder(tmp_path / "runs")
    rows = read_metrics(folder / "metrics.jsonl", "probe")
    assert [(row["updates"], row["env_steps"]) for row in rows] == [(0, 0), (2, 12), (4, 24)]
    intended = [row["probe/key/take_key"] for row in rows]
    assert intended[0] == pytest.approx(1 / 3) and intended == sorted(intended) and intended[2] > 0.7
    assert rows[2]["probe/raw/take_box"] == pytest.approx(intended[2])
    for row in rows:
        for probe in ("key", "raw"):
            assert sum(x for name, x in row.items() if name.startswith(f"probe/{probe}/")) == pytest.approx(1)
    probes = json.loads((folder / "probes.json").read_text())
    assert probes["probes"][0] == {
        "name": "key",
        "prompt": "Goal: take the key. Seen: 0 steps. Seen: 1 steps. Done: sing",
        "intended": "take key",
    }
    assert probes["probes"][1]["intended"] is None  # there is no such action
    assert re.search(r"`intended` .*raw \(sing\) .*take key, take ball, take box", caplog.text)
    assert (folder / "probes.png").read_bytes().startswith(b"\x89PNG")
    (folder / "probes.png").unlink()
    assert draw_probes(folder) == folder / "probes.png" and draw_probes(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b", r"learn\.probes="),
        ("- {name: a b, prompt: x}", "`name`"),
        ("- {name: a, prompt: x}\n- {name: a, prompt: y}", "`name`"),
        ("- {name: a, promt: x}", "'promt'"),
        ("- {name: a}", "`prompt`.*`goal`"),
        ("- {name: a, goal: x, observations: [[y]], actions: [z]}", "`actions` .* 1 and 1$"),
        ("- {name: a, goal: x, observations: y}", "`observations` .*sentences"),
        ("- {name: a, goal: x, observations: null}", "`actions` .* 0 and 0$"),
        ("- {name: a, goal: x, observations: 3}", "`observations` .*sentences"),
        ("- {name: a, goal: x, observations: [[y], [z]], actions: s}", "`actions` .*names"),
        ("[", r"learn\.probes=.*read"),
    ],
)
def test_invalid_lists(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text)


def test_null_actions_are_empty(tmp_path):
    [probe] = loaded(tmp_path, "- {name: a, goal: x, observations: [[y]], actions: null}").probes
    assert probe.prompt == "Goal: x. Seen: y. Done: " and probe.intended is None


@pytest.mark.parametrize(("actions", "unknown"), [("synonyms", "turn right"), ("fr", "turn right")])
def test_unknown_probe_words_raise(actions, unknown):
    from llmrl.config.builder import Builder

    overrides = ("env.language=fr",) if actions == "fr" else (f"env.actions={actions}",)
    node = compose("env=babyai_text", "agent=random", *overrides)["env"]
    env = Builder({"seeds": Seeds(0)}).build({**node, "n_envs": 1}, "env")
    message = f"learn.probes=babyai_text, probe goto_ball_ahead: .*'{unknown}'.*learn.probes=null"
    with pytest.raises(ConfigError, match=message):
        Probes.load("babyai_text", env, Reader(env.spec, 1.0))


def test_unsupported_agents_raise(tmp_path, signal_game):
    with pytest.raises(ConfigError, match=r"no_such.* babyai_text"):
        Probes.load("no_such", Errands(Seeds(0)), None)
    env = signal_game()
    with pytest.raises(ConfigError, match="prompts"):
        loaded(tmp_path, PROBES, env)
    from llmrl.agents.random_agent import RandomPolicy

    with pytest.raises(ConfigError, match="prompts"):
        loaded(tmp_path, PROBES, None, RandomPolicy(Errands(Seeds(0)).spec))


def test_builtin_probes_are_environment_prompts():
    """Each probe is a prompt that the environment can produce."""
    from llmrl.config.builder import Builder
    from llmrl.envs.babyai.language import list_vocabulary, split_words

    assert builtin_probe_list_names() == ["babyai_text"]
    env = Builder({"seeds": Seeds(0)}).build({**compose("env=babyai_text", "agent=random")["env"], "n_envs": 1}, "env")
    probes = Probes.load("babyai_text", env, Reader(env.spec, 1.0)).probes
    assert len(probes) == 11 and all(probe.intended in env.spec.action_names for probe in probes)
    color, noun = "(red|green|blue|purple|yellow|grey)", "(key|ball|box)"
    place = r"(\d steps? (left|right) and \d steps? forward|\d steps? (left|right|forward))"
    sentence = re.compile(
        rf"You carry a {color} {noun}|You see a wall \d steps? (forward|left|right)"
        rf"|You see a {color} {noun} {place}|You see a (open|closed|locked) {color} door {place}"
    )
    words = set(list_vocabulary("en"))
    for probe in probes:
        lines = probe.prompt.split("\n")
        observations = [line for line in lines if "Observation" in line]
        assert observations and lines[-1].strip().startswith("Action ")
        for line in observations:
            sentences = line.partition(": ")[2].strip().removesuffix(",").split(", ")
            assert all(sentence.fullmatch(sentence_) for sentence_ in sentences), line
        assert not re.search(r"\b1 steps|\b([02-9]|\d\d) step\b", probe.prompt)
        assert set(split_words(probe.prompt)) <= words
