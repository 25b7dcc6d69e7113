"""Error messages: one message with the remedy and no traceback."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commands
from experiments import compose, find_run_folder, run_experiment
from faulty_env import Faulty
from llmrl.cli import train
from llmrl.config.hydra_hooks import check_no_removals
from llmrl.core import ram
from llmrl.core.arguments import validate_argument
from llmrl.core.errors import BudgetExhausted, ConfigError, EngineError, RunInUse
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.experiment.parts import check_values
from llmrl.experiment.run_job import compute_job as run_reporting
from llmrl.results.run_records import read_run
from llmrl.run.command_exit import exit_on_error
from shipped import build_settings

SMALL = (
    "env=escape_room", "env.n_envs=2", "agent=random", "principal=random", "design.steps=2", "design.adapt_rounds=0",
    "design.evaluations=1",
    "design.validate_episodes=2",
)  # fmt: skip
FAULTY = (*SMALL, "trusted_modules=[faulty_env]", "env._target_=faulty_env.Faulty")


def end(overrides: Sequence[str]) -> int:
    """Run an experiment as a command does and return its exit code."""
    try:
        run_reporting(compose(*overrides), list(overrides))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


@pytest.mark.parametrize("method", ["reset", "step", "close"])
def test_environment_error_names_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    monkeypatch.setattr(Faulty, "fault", method)
    overrides = (*FAULTY, f"output_root={tmp_path}")
    assert end(overrides) == 1
    stderr_text = capsys.readouterr().err
    folder = find_run_folder(tmp_path)
    record = read_run(folder)
    assert record.state == "failed" and record.error in stderr_text and str(folder / "traceback.txt") in stderr_text
    assert re.search(rf"escape_room .*{method}\(\): ZeroDivisionError", record.error)
    assert "Traceback" not in stderr_text and "_or_fail" in (folder / "traceback.txt").read_text()
    monkeypatch.setattr(Faulty, "fault", "")
    assert end(overrides) == 0 and read_run(folder).state == "finished"


def test_traceback_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "fault", "step")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    overrides = (*FAULTY, f"output_root={tmp_path}")
    with pytest.raises(EngineError) as error:
        run_reporting(compose(*overrides), list(overrides))
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_completed_work_survives_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        run_experiment(compose(*overrides), list(overrides))
    folder = find_run_folder(tmp_path)
    assert list((folder / "checkpoints").glob("*.pt"))
    steps = -10_000
    run_experiment(compose(*overrides), list(overrides))
    record = read_run(folder)
    assert record.state == "finished" and record.attempt == 2


def test_close_error_keeps_original_error(caplog: pytest.LogCaptureFixture) -> None:
    from llmrl.core.seeding import Seeds

    env = Faulty(build_settings("env/escape_room", n_envs=1), Seeds(0))
    Faulty.fault = "close"
    try:
        env = name_env_in_errors(env)
        with pytest.raises(KeyError, match="first"):
            try:
                raise KeyError("first")
            finally:
                env.close()
        assert "ZeroDivisionError" in caplog.text
        with pytest.raises(EngineError, match=r"close\(\)"):
            env.close()
    finally:
        Faulty.fault = ""


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_error_names_source(tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int) -> None:
    overrides = (
        "env=gymnasium", "env.id=faulty_env:faulty_env/Game-v0", "trusted_modules=[faulty_env]",
        "agent=linear", "principal=random",
        "search.iterations=1", "search.episodes=2", f"hardware.cores={workers}", f"output_root={tmp_path}",
    )  # fmt: skip
    assert end(overrides) == 1
    stderr_text = capsys.readouterr().err
    folder = find_run_folder(tmp_path)
    assert re.search("Game-v0 .*ZeroDivisionError", stderr_text) and "Traceback" not in stderr_text, stderr_text
    assert str(folder / "traceback.txt") in stderr_text
    assert "faulty_env.py" in (folder / "traceback.txt").read_text()


def test_unexpected_errors_give_single_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    for error, code, phrase in (
        (KeyError("spam"), 1, "KeyError: 'spam'"),
        (MemoryError("Unable to allocate 37.3 GiB"), 1, "there is not enough memory"),
        (OSError(28, "No space left on device", "/tmp/x"), 1, "cannot write /tmp/x: No space left on device"),
        (ConfigError("too large"), 1, "too large"),
        (BudgetExhausted("all is spent"), 3, "all is spent"),
        (RunInUse("busy"), 4, "busy"),
    ):
        with pytest.raises(SystemExit) as stop, exit_on_error("llmrl-test"):
            raise error
        stderr_text = capsys.readouterr().err
        assert stop.value.code == code and f"llmrl-test: {phrase}" in stderr_text and "Traceback" not in stderr_text
    with pytest.raises(SystemExit) as stop, exit_on_error("llmrl-test"):
        raise KeyboardInterrupt
    assert stop.value.code == 130


@pytest.mark.parametrize(
    ("override", "phrase"),
    [
        ("design.spending_cost=inf", "design.spending_cost=inf: "),
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
def test_invalid_numbers_are_rejected_before_start(override: str, phrase: str, kind: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_values(compose("env=escape_room", kind, override))
    assert phrase in str(error.value)


@given(st.sampled_from([float, NonNegativeFloat, PositiveFloat, float | None, list[float], dict[str, float]]))
def test_no_option_is_infinite(hint: object) -> None:
    for wrong in (float("inf"), float("-inf"), float("nan")):
        for value in (wrong, [wrong], {"a": wrong}):
            with pytest.raises(ConfigError):
                validate_argument(value, hint, "x")


@given(st.integers(1, 10**15))
def test_scientific_notation_of_integer_gives_hint(number: int) -> None:
    with pytest.raises(ConfigError) as error:
        validate_argument(float(number), PositiveInt, "x")
    assert f"write {number}" in str(error.value)


def test_game_memory_is_checked_before_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "free_memory", lambda device: 1 << 20)
    ram.require_memory_for_games(3000)
    with pytest.raises(ConfigError, match=r"env\.n_envs=5000.*0\.0.*GiB.*3.*686"):
        ram.require_memory_for_games(5000)
    for limit in (None, "many"):
        ram.require_memory_for_games(limit)


def test_removed_options_give_replacement() -> None:
    with pytest.raises(ConfigError, match=r"~principal: .*principal=none"):
        check_no_removals(["~principal"])
    with pytest.raises(ConfigError, match="teacher=none"):
        check_no_removals(["~teacher=llm"])
    for part in ("~env", "~agent", "~design", "~design.steps", "~env@x=escape_room"):
        with pytest.raises(ConfigError, match=part.partition("@")[0]):
            check_no_removals(["seed=1", part])
    check_no_removals(["~env.kwargs.g", "env=x", "~hydra.sweeper", "~agent.x.arguments.y=1", "principal=none"])


WORDS = {
    "taken out": ["env=escape_room", "~principal"],
    "taken out, composition fails": ["env=escape_room", "~env", "env.n_envs=2"],
    "grammar": ["experiment=search/linear", "env.n_envs=[1,2"],
    "infinite": ["env=escape_room", "design.spending_cost=inf"],
    "too many": ["env=escape_room", "env.n_envs=1000000000000"],
}


@pytest.fixture(scope="module")
def command_messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the standard error of each command of `WORDS`, run in one process; each exits with 1."""
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
    lines_in = "\n".join("\t".join([name, *arguments]) for name, arguments in WORDS.items())
    done = commands.run(
        [sys.executable, "-c", program],
        input=lines_in,
        cwd=tmp_path_factory.mktemp("words"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    parts = done.stderr.split("\n== ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("taken out", "llmrl-train: ~principal: "),
        ("taken out, composition fails", "llmrl-train: ~env: "),
        ("grammar", "llmrl-train: no viable alternative at input '[1,2'"),
        ("infinite", "design.spending_cost=inf: "),
        ("too many", "the games need about"),
    ],
)
def test_command_prints_only_message(command_messages: dict[str, str], name: str, phrase: str) -> None:
    stderr_text = command_messages[name]
    assert phrase in stderr_text and "Traceback" not in stderr_text and stderr_text.rstrip().endswith("ended with 1")
    assert "no option" not in stderr_text


def test_printer_is_used_everywhere() -> None:
    """Check that commands do not print errors themselves."""
    import llmrl

    root = Path(llmrl.__file__).parent
    for path in [*(root / "cli").glob("*.py"), *(root.parent / "hydra_plugins").rglob("*.py")]:
        text = path.read_text()
        assert "{error}\\n" not in text or path.name == "command_exit.py", path
    assert train.exit_on_error is exit_on_error
