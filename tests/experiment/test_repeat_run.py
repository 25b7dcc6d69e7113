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
from llmrl.core.typed_values import override_value
from llmrl.experiment.composition import plain as plain_config
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.repeat_run import repeat_arguments
from llmrl.run.artifacts import read_config
from llmrl.run.folder_names import hash_of
from llmrl.run.status import read_status

TINY = ("env=escape_room", "principal=fixed", "principal.values=[1,0,0,0,0]", "design.steps=1", "design.adapt_rounds=1")
SMALL = ("design.validate_episodes=2", "env.n_envs=2", "design.evaluations=0", "design.confirm_steps=0")


@pytest.fixture(scope="module")
def repeatable(tmp_path_factory) -> Path:
    """Run an experiment and return its folder; `compose` omits reference lines by default."""
    root = tmp_path_factory.mktemp("again")
    run(*TINY, *SMALL, "seed=2", f"output_root={root}")
    return only_run_folder(root)


def hash_of_arguments(arguments: list[str]) -> str:
    return Experiment(plain_config("train", *arguments)).hash


def test_unchanged_rerun_is_equal(repeatable, capsys):
    arguments = repeat_arguments("llmrl-train", ["--again", str(repeatable)])
    assert [*TINY, *SMALL, "seed=2"] == arguments[: len(TINY) + len(SMALL) + 1]
    assert "++design.references=0" in arguments, "it was no default"
    assert hash_of_arguments(arguments) == hash_of(repeatable)
    assert "the same as\nllmrl-train env=escape_room" in capsys.readouterr().err
    assert repeat_arguments("llmrl-train", [f"--again={repeatable.parent}", "-m"]) == [*arguments, "-m"]
    assert repeat_arguments("llmrl-train", ["seed=1"]) == ["seed=1"]


def test_explicit_overrides_take_precedence(repeatable):
    arguments = repeat_arguments(
        "llmrl-train", ["--again", str(repeatable), "seed=3,4", "design.references=1", "--multirun"]
    )
    assert arguments.count("seed=2") == 0 and arguments[-3:] == ["seed=3,4", "design.references=1", "--multirun"]
    assert not any(argument.startswith("++design.references") for argument in arguments)
    changed = plain_config(
        "train", *repeat_arguments("llmrl-train", ["--again", str(repeatable), "seed=5", "env.horizon=9"])
    )
    saved = read_config(repeatable, ())
    assert changed["env"] == {**saved["env"], "horizon": 9} and changed["seed"] == 5
    assert changed["design"] == saved["design"] and changed["agent"] == saved["agent"]


def test_replaced_part_drops_options(repeatable, capsys):
    arguments = repeat_arguments("llmrl-train", ["--again", str(repeatable), "principal=random"])
    assert (
        not any(argument.startswith("principal.values") for argument in arguments)
        and "principal=fixed" not in arguments
    )
    assert "left out, because another part is chosen" in capsys.readouterr().err
    assert plain_config("train", *arguments)["principal"]["_target_"].endswith("RandomPrincipal")


def test_rerun_completes(repeatable, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["llmrl-train", "--again", str(repeatable), "seed=6"])
    GlobalHydra.instance().clear()
    train.main()
    rerun_folder = repeatable.with_name("s6")
    assert read_status(rerun_folder).state == "finished", capsys.readouterr().err
    assert read_config(rerun_folder, ()) == {**read_config(repeatable, ()), "seed": 6}


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


def test_files_are_not_trusted(repeatable, tmp_path, capsys):
    evil = [
        "trusted_modules=[evil]",
        "hydra.callbacks.x._target_=evil.X",
        "hardware.backend.setup=[rm]",
        "hydra/launcher=x",
    ]
    arguments = repeat_arguments("llmrl-train", ["--again", str(changed_copy(repeatable, tmp_path, [*TINY, *evil]))])
    assert not any("evil" in argument or "hardware" in argument or "hydra" in argument for argument in arguments)
    assert "only typed options are trusted" in capsys.readouterr().err
    rerun_words = repeat_arguments("llmrl-train", ["--again", str(tmp_path), "trusted_modules=[mine]"])
    assert rerun_words[-1] == "trusted_modules=[mine]"


def test_reports_runs_that_cannot_be_repeated(repeatable, tmp_path):
    (tmp_path / "options").mkdir()
    assert repeat_arguments("llmrl-train", ["--again", str(repeatable), f"--config-dir={tmp_path / 'options'}"])
    second_run = changed_copy(repeatable, tmp_path / "b", ["env=escape_room", "principal=gone"])
    with pytest.raises(ConfigError, match=r"compose no config.*gone"):
        repeat_arguments("llmrl-train", ["--again", str(second_run)])
    with pytest.raises(ConfigError, match="llmrl-train --again"):
        repeat_arguments("llmrl-finetune", ["--again", str(repeatable)])
    for words in (["--again"], ["--again", "seed=3"], ["--again="]):
        with pytest.raises(ConfigError, match="needs a run"):
            repeat_arguments("llmrl-train", words)


def test_latest_weights_remain_fixed(repeatable, tmp_path):
    """Finish other runs meanwhile."""
    changed_run = changed_copy(repeatable, tmp_path, [*TINY, "agent.init_from=latest:pre"])
    config = (changed_run / "config.yaml").read_text()
    assert "init_from: null" in config
    entry = "resolved_runs:\n  agent.init_from:\n    run: 0a1b2c3d/s0\n    as: run:0a1b2c3d/s0\n"
    (changed_run / "config.yaml").write_text(config.replace("init_from: null", "init_from: /somewhere") + entry)
    arguments = repeat_arguments("llmrl-train", ["--again", str(changed_run)])
    assert "++agent.init_from='run:0a1b2c3d/s0'" in arguments and arguments.index(
        "agent.init_from=latest:pre"
    ) < arguments.index("++agent.init_from='run:0a1b2c3d/s0'")


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
def test_hydra_values_round_trip(value):
    [override] = OverridesParser.create().parse_overrides([f"++a.b={override_value(value)}"])
    assert override.value() == value or (isinstance(value, str) and str(override.value()) == value)
