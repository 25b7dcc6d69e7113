"""Custom observers of a run, which do not change it."""

import json
from pathlib import Path

import pytest

from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError
from llmrl.core.observers import Observer
from llmrl.experiment.parts import check_values
from llmrl.run.config_hash import config_hash

DOCS = Path(__file__).parents[2] / "docs"
TRUSTED = f"trusted_modules=[{__name__}]"
WATCH = f"observers=[{{_target_: {__name__}.Lengths, name: steps.json}}]"
LEARN = (
    "env=escape_room",
    "env.n_envs=4",
    "learn.env_steps=40",
    "learn.evaluation_interval=1",
    "learn.evaluate_episodes=4",
)


def example():
    """Return the class of the manual."""
    section = (DOCS / "extending.md").read_text().split("## An observer")[1]
    names: dict = {"__name__": __name__}
    exec(section.split("```python\n")[1].split("```")[0], names)
    return names["Lengths"]


Lengths = example()


class Stranger:
    """A class that observes nothing."""


def test_learner_observer_receives_training_episodes(tmp_path):
    run(*LEARN, TRUSTED, WATCH, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    lines = (folder / "training_episodes.tsv").read_text().splitlines()
    columns = next(i for i, line in enumerate(lines) if line.startswith("game\t"))
    lengths = [int(line.split("\t")[2]) for line in lines[columns + 1 :] if not line.startswith("#")]
    assert json.loads((folder / "steps.json").read_text()) == lengths != []


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("env=taxi", "agent=random", "env.horizon=3", "env.n_envs=2", "play.episodes=4"),
        (
            *("env=escape_room", "principal=fixed", "env.n_envs=4", "design.steps=1", "design.adapt_rounds=1"),
            *("design.validate_episodes=4", "design.references=0", "design.confirm_steps=0", "design.evaluations=0"),
        ),
    ],
)
def test_observers_do_not_change_hash(tmp_path, overrides):
    for name, extra in (("alone", ()), ("watched", (TRUSTED, WATCH))):
        run(*overrides, *extra, f"output_root={tmp_path / name}")
    plain_run, observed_run = (find_run_folder(tmp_path / name) for name in ("alone", "watched"))
    assert plain_run.relative_to(tmp_path / "alone") == observed_run.relative_to(tmp_path / "watched")
    assert load_comparable_metrics(plain_run) == load_comparable_metrics(observed_run)
    lengths = json.loads((observed_run / "steps.json").read_text())
    assert len(lengths) == (4 if "agent=random" in overrides else 8) and not (plain_run / "steps.json").exists()
    assert config_hash(compose(*overrides)) == config_hash({**compose(*overrides), "observers": [{"_target_": "x"}]})


def test_rejects_invalid_observers(tmp_path):
    with pytest.raises(ConfigError, match=r"observers\[0\]: Stranger"):
        run(*LEARN, TRUSTED, f"observers=[{{_target_: {__name__}.Stranger}}]", f"output_root={tmp_path}")
    with pytest.raises(ConfigError, match=r"0.*'color'"):
        check_values({**compose(*LEARN, TRUSTED), "observers": [{"_target_": f"{__name__}.Lengths", "color": 1}]})
    with pytest.raises(ConfigError, match=r"trusted_modules"):
        check_values({**compose(*LEARN), "observers": [{"_target_": f"{__name__}.Lengths"}]})


def test_search_has_no_observer_events(tmp_path):
    search = ("env=cartpole", "agent=linear", "principal=random", "search.iterations=1", "search.episodes=1")
    with pytest.raises(ConfigError, match="loop search"):
        run(*search, TRUSTED, WATCH, f"output_root={tmp_path}")


def test_observer_methods_default_to_noop():
    """Check that an observer overrides only the methods that it needs."""
    observer = Observer()
    assert observer.on_reset(None, {}) is observer.on_step(None) is observer.on_episode_end(None) is None
    assert observer.on_rollout(None) is observer.close() is None and observer.channels == ()
