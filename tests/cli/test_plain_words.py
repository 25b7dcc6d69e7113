"""What goes wrong is one message that says what would work, and no traceback."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commands
from experiments import compose, only_run_folder, run_experiment
from faulty_env import Faulty
from llmrl.analysis.runs import read_run
from llmrl.cli import command
from llmrl.config.suggestions import hint, removed, saved_config, ungrammatical
from llmrl.core import ram
from llmrl.core.arguments import checked
from llmrl.core.errors import BudgetExhausted, ConfigError, EngineError, RunInUse
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.envs.env_errors import guarded
from llmrl.experiment.parts import check_values
from llmrl.experiment.run_job import compute as run_reporting
from llmrl.run.command_exit import ending

SMALL = (
    "env=escape_room", "env.n_envs=2", "agent=random", "principal=random", "design.steps=2", "design.adapt_rounds=0",
    "design.validate_episodes=2",
)  # fmt: skip
FAULTY = (*SMALL, "trusted_modules=[faulty_env]", "env._target_=faulty_env.Faulty")


def end(overrides: Sequence[str]) -> int:
    """Run an experiment as a command does; its exit code."""
    try:
        run_reporting(compose(*overrides), list(overrides))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


@pytest.mark.parametrize("where", ["reset", "step", "close"])
def test_an_environment_that_raises_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    monkeypatch.setattr(Faulty, "fault", where)
    overrides = (*FAULTY, f"output_root={tmp_path}")
    assert end(overrides) == 1
    said = capsys.readouterr().err
    folder = only_run_folder(tmp_path)
    told = f"the environment escape_room raised in {where}(): ZeroDivisionError: a defect of mine"
    assert told in said and f"The whole traceback is in {folder / 'traceback.txt'}" in said
    assert "Traceback (most recent call last)" not in said
    assert "in _or_fail" in (folder / "traceback.txt").read_text()
    record = read_run(folder)
    assert record.state == "failed" and record.error == told
    monkeypatch.setattr(Faulty, "fault", "")
    assert end(overrides) == 0 and read_run(folder).state == "finished"


def test_the_traceback_is_shown_to_who_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "fault", "step")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    overrides = (*FAULTY, f"output_root={tmp_path}")
    with pytest.raises(EngineError) as caught:
        run_reporting(compose(*overrides), list(overrides))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_work_done_before_the_fault_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = (*FAULTY, f"output_root={tmp_path}", "design.steps=6", "checkpoint_seconds=0")
    steps = 0
    step = Faulty.step

    def late(self: Faulty, action: object) -> object:
        nonlocal steps
        steps += 1
        monkeypatch.setattr(Faulty, "fault", "step" if steps > 20 else "")
        return step(self, action)

    monkeypatch.setattr(Faulty, "step", late)
    with pytest.raises(EngineError):
        run_experiment(compose(*overrides), list(overrides), quiet=True)
    folder = only_run_folder(tmp_path)
    assert list((folder / "checkpoints").glob("*.pt"))
    steps = -10_000
    run_experiment(compose(*overrides), list(overrides), quiet=True)
    record = read_run(folder)
    assert record.state == "finished" and record.attempt == 2


def test_an_error_in_closing_does_not_hide_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    from llmrl.core.seeding import Seeds

    env = Faulty(Seeds(0), n_envs=1)
    Faulty.fault = "close"
    try:
        env = guarded(env)
        with pytest.raises(KeyError, match="first"):
            try:
                raise KeyError("first")
            finally:
                env.close()
        assert "a defect of mine" in caplog.text
        with pytest.raises(EngineError, match=r"raised in close\(\)"):
            env.close()
    finally:
        Faulty.fault = ""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_game_that_raises_in_a_worker_or_here_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    overrides = (
        "env=gymnasium", "env.id=faulty_env:faulty_env/Game-v0", "trusted_modules=[faulty_env]",
        "agent=linear", "principal=random",
        "search.iterations=1", "search.episodes=2", f"hardware.cores={workers}", f"output_root={tmp_path}",
    )  # fmt: skip
    assert end(overrides) == 1
    said = capsys.readouterr().err
    folder = only_run_folder(tmp_path)
    assert "Game-v0 raised in " in said and "ZeroDivisionError" in said and "Traceback (most" not in said, said
    assert f"The whole traceback is in {folder / 'traceback.txt'}" in said
    assert "faulty_env.py" in (folder / "traceback.txt").read_text()


def test_unforeseen_errors_are_one_message(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    for error, code, told in (
        (KeyError("spam"), 1, "KeyError: 'spam'"),
        (MemoryError("Unable to allocate 37.3 GiB"), 1, "there is not enough memory"),
        (OSError(28, "No space left on device", "/tmp/x"), 1, "cannot write /tmp/x: No space left on device"),
        (ConfigError("too large"), 1, "too large"),
        (BudgetExhausted("all is spent"), 3, "all is spent"),
        (RunInUse("busy"), 4, "busy"),
    ):
        with pytest.raises(SystemExit) as stop, ending("llmrl-test"):
            raise error
        said = capsys.readouterr().err
        assert stop.value.code == code and f"llmrl-test: {told}" in said and "Traceback" not in said
    with pytest.raises(SystemExit) as stop, ending("llmrl-test"):
        raise KeyboardInterrupt
    assert stop.value.code == 130


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("design.spending_cost=inf", "design.spending_cost=inf: input should be a finite number"),
        ("design.spending_cost=nan", "design.spending_cost=nan: input should be"),
        ("design.spending_cost=-1", "design.spending_cost=-1"),
        ("design.spending_cost=1e308", "design.spending_cost=1e+308: input should be less than or equal to 1000000"),
        ("env.n_envs=1e9", "write 1000000000"),
        ("env.n_envs=1000000000000", "the games need about"),
        ("agent.ppo.learning_rate=inf", "learning_rate=inf: input should be a finite number"),
        ("agent.ppo.gamma=nan", "gamma=nan"),
        ("hardware.memory_gb=inf", "hardware.memory_gb=inf: input should be a finite number"),
    ],
)
@pytest.mark.parametrize("kind", ["principal=ucb", "principal=none"])
def test_what_cannot_be_computed_with_is_refused_before_anything_is_made(override: str, told: str, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_values(compose("env=escape_room", kind, override))
    assert told in str(caught.value)


@given(st.sampled_from([float, NonNegativeFloat, PositiveFloat, float | None, list[float], dict[str, float]]))
def test_no_option_is_infinite(hint: object) -> None:
    for wrong in (float("inf"), float("-inf"), float("nan")):
        for value in (wrong, [wrong], {"a": wrong}):
            with pytest.raises(ConfigError):
                checked(value, hint, "x")


@given(st.integers(1, 10**15))
def test_a_whole_number_in_scientific_notation_is_told_how_to_be_written(number: int) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(float(number), PositiveInt, "x")
    assert f"write {number}" in str(caught.value)


def test_memory_is_asked_for_games_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "free_memory", lambda device: 1 << 20)
    ram.check_games(3000)
    with pytest.raises(ConfigError, match=r"env\.n_envs=5000: the games need about 0\.0 GiB.*at the very most 3,686"):
        ram.check_games(5000)
    for other in (None, "many"):
        ram.check_games(other)


def test_options_that_are_taken_out_are_told_what_to_write() -> None:
    assert removed(["~principal"]) == "~principal: an experiment without it is written principal=none"
    assert removed(["~teacher=llm"]) is not None and "teacher=none" in str(removed(["~teacher=llm"]))
    for part in ("~env", "~agent", "~design", "~design.steps", "~env@x=escape_room"):
        said = removed(["seed=1", part])
        assert said is not None and "no option can be taken out" in said and "\n" not in said
    assert removed(["~env.kwargs.g", "env=x", "~hydra.sweeper", "~agent.x.arguments.y=1", "principal=none"]) is None


def test_a_slip_of_grammar_is_told_by_hydra_alone() -> None:
    for wrong in (["env.n_envs=[1,2"], ["experiment=search/linear", "env.n_envs=[1,2"], ["a={b"], ["x=)"]):
        assert ungrammatical(wrong) and hint([*wrong, "env=taxii"], "train") is None
    assert not ungrammatical(["env=taxi", "experiment=zero_shot/taxi", "--multirun", "~principal", "seed=range(0,3)"])
    assert hint(["experiment=search/linear", "design.stepz=3"], "train") == (
        hint(["design.stepz=3"], "train")
    ) and "stepz" in str(hint(["design.stepz=3"], "train"))


def test_the_saved_config_of_a_run_is_told_how_to_repeat_it(tmp_path: Path) -> None:
    overrides = (*SMALL, f"output_root={tmp_path}", "seed=3", "name=a b")
    assert end(overrides) == 0
    path = only_run_folder(tmp_path) / "config.yaml"
    for given_ in (
        [f"--config-name={path}"],
        ["--config-name", str(path)],
        ["-cn", str(path.with_suffix(""))],
        [f"--config-path={path.parent}", "--config-name=config"],
        ["--config-dir", str(path.parent), "--config-name", "config.yaml"],
    ):
        said = saved_config(given_)
        assert said is not None and str(path) in said and "rerun=true" in said
        assert shlex.join(overrides) in said
    (path.parent / "status.json").write_text("[]")
    assert "Give the options" in str(saved_config([f"--config-name={path}"]))
    (tmp_path / "mine.yaml").write_text("seed: 1\n")
    for mine in (["--config-name=mine"], [f"--config-dir={tmp_path}", "--config-name=mine"], ["env=taxi"]):
        assert saved_config(mine) is None


WORDS = {
    "taken out": ["env=escape_room", "~principal"],
    "taken out, composition fails": ["env=escape_room", "~env", "env.n_envs=2"],
    "grammar": ["experiment=search/linear", "env.n_envs=[1,2"],
    "saved": ["--config-name", "outputs/a/b/s0/config.yaml"],
    "infinite": ["env=escape_room", "design.spending_cost=inf"],
    "too many": ["env=escape_room", "env.n_envs=1000000000000"],
}


@pytest.fixture(scope="module")
def told_by_commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each of the commands of `WORDS` writes to standard error, all in one process; each must end with 1."""
    program = """
import sys
from hydra.core.global_hydra import GlobalHydra
from llmrl.cli.train import main
for line in sys.stdin.read().splitlines():
    name, *arguments = line.split("\\t")
    sys.argv = ["llmrl-train", *arguments]
    GlobalHydra.instance().clear()
    sys.stderr.write(f"\\n== {name}\\n")
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code
    sys.stderr.write(f"\\nended with {code}\\n")
"""
    asked = "\n".join("\t".join([name, *arguments]) for name, arguments in WORDS.items())
    done = commands.run(
        [sys.executable, "-c", program],
        input=asked,
        cwd=tmp_path_factory.mktemp("words"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    parts = done.stderr.split("\n== ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("taken out", "llmrl-train: ~principal: an experiment without it is written principal=none"),
        ("taken out, composition fails", "~env: no option can be taken out"),
        ("grammar", "no viable alternative at input '[1,2'"),
        ("saved", "is the config that a run has saved"),
        ("infinite", "design.spending_cost=inf: input should be a finite number"),
        ("too many", "the games need about"),
    ],
)
def test_the_command_says_it_and_no_more(told_by_commands: dict[str, str], name: str, told: str) -> None:
    said = told_by_commands[name]
    assert told in said and "Traceback" not in said and said.rstrip().endswith("ended with 1")
    assert "has no option" not in said


def test_the_printer_is_the_only_one() -> None:
    """Commands do not print errors by themselves."""
    import llmrl

    root = Path(llmrl.__file__).parent
    for path in [*(root / "cli").glob("*.py"), *(root.parent / "hydra_plugins").rglob("*.py")]:
        text = path.read_text()
        assert "{error}\\n" not in text or path.name == "command_exit.py", path
    assert command.ending is ending
