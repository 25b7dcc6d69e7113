"""The benchmark of GPUs (benchmarks/gpu.py): it runs at toy size, notices wrong games, and says where no GPU is."""

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
def test_all_of_it_runs_at_toy_size():
    command = [sys.executable, SCRIPT, "--toy", "--games", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "NOTHING HERE IS A MEASUREMENT" in lines[0]
    assert sum("equal, bit for bit" in line for line in lines) == 2
    for title in ("cleanup, grid, 1 games", "harvest, pixels, 1 games", "2 games x 3 steps", "harvest, 1 games of"):
        assert any(line.startswith(f"  {title}") for line in lines), title
    assert sum("2 prompts, 40 candidates, forward and backward" in line for line in lines) == 2
    assert not any(word in done.stdout for word in ("left out", "stopped", "FAILED"))


def test_wrong_games_are_noticed(monkeypatch, capsys):
    """Of processors beside themselves, of which one plays other steps after the tenth."""
    sizes = replace(TOY, check=(2, 12))
    assert benchmark.ended(Part("check", sizes, "cpu"))
    assert capsys.readouterr().out.count("equal, bit for bit") == 2
    made = gpu_games.games_on
    others = iter((True, False) * 2)

    def games_on(device, game):
        env = made(device, game)
        if next(others):
            run, played = env.engine.run, []

            def other(threads, n, arrays):
                played.append(n)
                todo, action, *rest = arrays
                if len(played) > 10:
                    action = action.copy()
                    action[1, 3] = (action[1, 3] + 1) % 7
                run(threads, n, (todo, action, *rest))

            env.engine.run = other
        return env

    monkeypatch.setattr(gpu_games, "games_on", games_on)
    assert not benchmark.ended(Part("check", sizes, "cpu"))
    told = capsys.readouterr().out
    assert "THE GAMES ARE WRONG" in told and "cleanup, step 1" in told


def test_a_part_ends_when_its_time_is_up(monkeypatch, capsys):
    monkeypatch.setitem(benchmark.LIMITS, "games", 1)
    monkeypatch.setitem(benchmark.PARTS, "games", lambda part: [None for _ in iter(int, 1)])
    assert benchmark.ended(Part("games", TOY, "cpu"))
    assert "stopped: the 1 s of this part are up" in capsys.readouterr().out


def test_what_does_not_fit_is_left_out_and_other_faults_are_not(monkeypatch, capsys):
    part = Part("games", TOY, "cpu")
    monkeypatch.setattr(ram, "free_memory", lambda device: 2**20)
    assert not part.fits("a hundred games", lambda: gpu_games.harvest("cpu", 100))
    assert "a hundred games" in (told := capsys.readouterr().out) and "left out, does not fit" in told
    monkeypatch.setattr(gpu_games, "PLAYERS", 254)
    with pytest.raises(ConfigError, match=r"n_agents=254"):
        part.fits("too many players", lambda: gpu_games.harvest("cpu", 1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert told.err.startswith("no GPU") and told.err.count("\n") == 1
