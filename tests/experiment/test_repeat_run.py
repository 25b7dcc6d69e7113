"""`--again <run>`: the arguments that repeat a run, with changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from experiments import only_run_folder, run
from llmrl.cli import train
from llmrl.core.errors import ConfigError
from llmrl.core.typed_values import written
from llmrl.experiment.composition import plain as plain_config
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.repeat_run import repeated
from llmrl.run.artifacts import read_config
from llmrl.run.folder_names import hash_of
from llmrl.run.status import read_status

TINY = ("env=escape_room", "principal=fixed", "principal.values=[1,0,0,0,0]", "design.steps=1", "design.adapt_rounds=1")
SMALL = ("design.validate_episodes=2", "env.n_envs=2", "design.evaluations=0", "design.confirm_steps=0")


@pytest.fixture(scope="module")
def repeatable(tmp_path_factory) -> Path:
    """The folder of a run; `compose` left out reference lines without their being typed."""
    root = tmp_path_factory.mktemp("again")
    run(*TINY, *SMALL, "seed=2", f"output_root={root}")
    return only_run_folder(root)


def hash_of_arguments(arguments: list[str]) -> str:
    return Experiment(plain_config("train", *arguments)).hash


def test_without_changes_it_is_the_same_run(repeatable, capsys):
    made = repeated("llmrl-train", ["--again", str(repeatable)])
    assert [*TINY, *SMALL, "seed=2"] == made[: len(TINY) + len(SMALL) + 1]
    assert "++design.references=0" in made, "it was no default"
    assert hash_of_arguments(made) == hash_of(repeatable)
    assert "the same as\nllmrl-train env=escape_room" in capsys.readouterr().err
    assert repeated("llmrl-train", [f"--again={repeatable.parent}", "-m"]) == [*made, "-m"]
    assert repeated("llmrl-train", ["seed=1"]) == ["seed=1"]


def test_what_is_typed_has_the_last_word(repeatable):
    made = repeated("llmrl-train", ["--again", str(repeatable), "seed=3,4", "design.references=1", "--multirun"])
    assert made.count("seed=2") == 0 and made[-3:] == ["seed=3,4", "design.references=1", "--multirun"]
    assert not any(each.startswith("++design.references") for each in made)
    changed = plain_config("train", *repeated("llmrl-train", ["--again", str(repeatable), "seed=5", "env.horizon=9"]))
    saved = read_config(repeatable, ())
    assert changed["env"] == {**saved["env"], "horizon": 9} and changed["seed"] == 5
    assert changed["design"] == saved["design"] and changed["agent"] == saved["agent"]


def test_a_part_that_is_chosen_anew_loses_its_options(repeatable, capsys):
    made = repeated("llmrl-train", ["--again", str(repeatable), "principal=random"])
    assert not any(each.startswith("principal.values") for each in made) and "principal=fixed" not in made
    assert "left out, as its part is chosen anew" in capsys.readouterr().err
    assert plain_config("train", *made)["principal"]["_target_"].endswith("RandomPrincipal")


def test_it_runs(repeatable, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["llmrl-train", "--again", str(repeatable), "seed=6"])
    GlobalHydra.instance().clear()
    train.main()
    again = repeatable.with_name("s6")
    assert read_status(again).state == "finished", capsys.readouterr().err
    assert read_config(again, ()) == {**read_config(repeatable, ()), "seed": 6}


def changed_copy(
    repeatable: Path, folder: Path, overrides: list[str] | None = None, command: list | None = None
) -> Path:
    run_folder = folder / "x-01234567" / "s2"
    run_folder.mkdir(parents=True)
    for name in ("config.yaml", "summary.json"):
        (run_folder / name).write_text((repeatable / name).read_text())
    status = json.loads((repeatable / "status.json").read_text())
    (run_folder / "status.json").write_text(json.dumps({**status, "overrides": overrides or status["overrides"]}))
    provenance = {"attempts": [{"command": command or ["llmrl-train", *TINY]}]}
    (run_folder / "provenance.json").write_text(json.dumps(provenance))
    return run_folder


def test_what_files_say_is_not_trusted(repeatable, tmp_path, capsys):
    evil = [
        "trusted_modules=[evil]",
        "hydra.callbacks.x._target_=evil.X",
        "hardware.backend.setup=[rm]",
        "hydra/launcher=x",
    ]
    made = repeated("llmrl-train", ["--again", str(changed_copy(repeatable, tmp_path, [*TINY, *evil]))])
    assert not any("evil" in each or "hardware" in each or "hydra" in each for each in made)
    assert "only what is typed is trusted" in capsys.readouterr().err
    typed = repeated("llmrl-train", ["--again", str(tmp_path), "trusted_modules=[mine]"])
    assert typed[-1] == "trusted_modules=[mine]"


def test_what_is_missing_is_said(repeatable, tmp_path):
    own = changed_copy(repeatable, tmp_path, command=["llmrl-train", "--config-dir", "mine", "experiment=x"])
    with pytest.raises(ConfigError, match=r"was composed with --config-dir mine, .*add --config-dir"):
        repeated("llmrl-train", ["--again", str(own)])
    (tmp_path / "options").mkdir()
    assert repeated("llmrl-train", ["--again", str(own), f"--config-dir={tmp_path / 'options'}"])
    other = changed_copy(repeatable, tmp_path / "b", ["env=escape_room", "principal=gone"])
    with pytest.raises(ConfigError, match=r"composes no config any more \(.*gone"):
        repeated("llmrl-train", ["--again", str(other)])
    with pytest.raises(ConfigError, match=r"is a run of llmrl-train: llmrl-train --again"):
        repeated("llmrl-finetune", ["--again", str(repeatable)])
    for typed in (["--again"], ["--again", "seed=3"], ["--again="]):
        with pytest.raises(ConfigError, match="which run"):
            repeated("llmrl-train", typed)


def test_weights_of_the_latest_run_stay_those(repeatable, tmp_path):
    """Whatever has been finished since."""
    own = changed_copy(repeatable, tmp_path, [*TINY, "agent.init_from=latest:pre"])
    config = (own / "config.yaml").read_text()
    assert "init_from: null" in config
    entry = "resolved_runs:\n  agent.init_from:\n    run: 0a1b2c3d/s0\n    as: run:0a1b2c3d/s0\n"
    (own / "config.yaml").write_text(config.replace("init_from: null", "init_from: /somewhere") + entry)
    made = repeated("llmrl-train", ["--again", str(own)])
    assert "++agent.init_from='run:0a1b2c3d/s0'" in made and made.index("agent.init_from=latest:pre") < made.index(
        "++agent.init_from='run:0a1b2c3d/s0'"
    )


WORDS = ("null", "true", "false", "nan", "inf")
KEY = st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True).filter(lambda key: key not in WORDS)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab'\\\" $=,{}()[]é#;:", max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.slow
@given(PLAIN)
def test_values_come_back_from_hydra_as_they_were(value):
    [override] = OverridesParser.create().parse_overrides([f"++a.b={written(value)}"])
    assert override.value() == value or (isinstance(value, str) and str(override.value()) == value)
