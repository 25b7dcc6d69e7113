"""The GPU benchmark (benchmarks/gpu.py): small sizes, detection of wrong games, and machines without a GPU."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llmrl.core import ram
from llmrl.core.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import gpu as benchmark
import gpu_games
from gpu_part import TOY, Part

SCRIPT = benchmark.__file__


@pytest.mark.long
def test_benchmark_runs_at_small_size():
    command = [sys.executable, SCRIPT, "--toy", "--games", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "MEASUREMENT" in lines[0] and sum("bit for bit" in line for line in lines) == 2
    for title in ("cleanup, grid, 1 games", "harvest, pixels, 1 games", "2 games x 3 steps", "harvest, 1 games of"):
        assert any(line.startswith(f"  {title}") for line in lines), title
    assert sum("2 prompts, 40 candidates, " in line for line in lines) == 4
    assert not any(word in done.stdout for word in ("skipped", "stopped", "FAILED"))


def test_incorrect_games_are_detected(monkeypatch, capsys):
    """Compare processors, one of which plays different steps after the tenth."""
    sizes = replace(TOY, check=(2, 12))
    assert benchmark.run_part(Part("check", sizes, "cpu"))
    assert capsys.readouterr().out.count("bit for bit") == 2
    make_games = gpu_games.make_games
    outcomes = iter((True, False) * 2)

    def make_faulty_games(device, game):
        env = make_games(device, game)
        if next(outcomes):
            run, runs = env.engine.game_loop, []

            def replacement(threads, n, arrays):
                runs.append(n)
                inputs, *rest = arrays
                if len(runs) > 10:
                    action = inputs.actions.copy()
                    action[1, 3] = (action[1, 3] + 1) % 7
                    inputs = inputs._replace(actions=action)
                run(threads, n, (inputs, *rest))

            env.engine.game_loop = replacement
        return env

    monkeypatch.setattr(gpu_games, "make_games", make_faulty_games)
    assert not benchmark.run_part(Part("check", sizes, "cpu"))
    output = capsys.readouterr().out
    assert "WRONG" in output and "cleanup, step 1" in output


def test_part_stops_at_time_limit(monkeypatch, capsys):
    monkeypatch.setitem(benchmark.LIMITS, "games", 1)
    monkeypatch.setitem(benchmark.PARTS, "games", lambda part: [None for _ in iter(int, 1)])
    assert benchmark.run_part(Part("games", TOY, "cpu"))
    assert "stopped" in capsys.readouterr().out


def test_skips_out_of_memory_sizes(monkeypatch, capsys):
    part = Part("games", TOY, "cpu")
    monkeypatch.setattr(ram, "free_memory", lambda device: 2**20)
    assert not part.run_measurement("a hundred games", lambda: gpu_games.make_harvest("cpu", 100))
    assert re.search("a hundred games.*out of memory", capsys.readouterr().out, re.DOTALL)
    monkeypatch.setattr(gpu_games, "PLAYERS", 254)
    with pytest.raises(ConfigError, match=r"n_agents=254"):
        part.run_measurement("too many players", lambda: gpu_games.make_harvest("cpu", 1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_prints_single_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit) as error:
        benchmark.main()
    output = capsys.readouterr()
    assert error.value.code == 2 and output.out == ""
    assert output.err.startswith("no GPU") and output.err.count("\n") == 1
