"""The game loop in Python, compiled, and in a GPU simulator; threads, forks and the cache on disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

import llmrl
from llmrl.core.errors import ConfigError
from llmrl.envs.native import compilation, hashed_random
from llmrl.envs.native.hashed_random import derive_game_keys
from played_games import GAMES, compute_digest, compute_digests, make_small_env
from stepped_engine import PURPOSES, HashedRandom

SHARED = 2 * compilation.MIN_WORK_PER_THREAD // 6
"""Games of two players, who see, that two threads share."""
SUPPORT = Path(__file__).parents[2] / "support"


def keys(games: int = 20) -> np.ndarray:
    return derive_game_keys(np.full(games, 7), np.arange(games), np.zeros(games, np.int64))


def draw_numbers(functions: Any, source: np.ndarray) -> np.ndarray:
    """Draw 10,000 numbers of 20 games, for each purpose."""
    return np.array(
        [
            [functions.sample_integer(functions.hash_step(source, b, 40 + b), k % 8, k) for k in range(500)]
            for b in range(len(source))
        ]
    )


def draw_tensors(source: np.ndarray) -> np.ndarray:
    t = 40 + torch.arange(len(source), dtype=torch.int32)
    numbers = HashedRandom(torch.from_numpy(source))
    tensor_numbers = np.stack([(numbers.uniform(name, t, 500) * 2**24).long().numpy() for name in PURPOSES])
    return tensor_numbers[np.arange(500) % 8, :, np.arange(500)].T


def test_random_numbers_agree_across_backends() -> None:
    source = keys()
    plain = draw_numbers(hashed_random, source)
    assert plain.size == 10_000 and len(np.unique(plain)) > 9_980
    compiled = compilation.build_functions(numba.njit(**compilation.JIT_OPTIONS))
    assert np.array_equal(plain, draw_numbers(compiled, source)) and np.array_equal(plain, draw_tensors(source))


def test_thresholds_match_float_comparison() -> None:
    rng = np.random.default_rng(0)
    for p in [*rng.random(200), 0.0, 0.0025, 0.5, 0.05, 1.0, -0.1, 2.0**-24, 3 * 2.0**-25]:
        limit = hashed_random.compute_probability_threshold(p)
        candidates = np.clip(np.arange(limit - 3, limit + 3), 0, 2**24 - 1)
        assert np.array_equal(
            candidates < limit, candidates.astype(np.float32) * hashed_random.UNIT_SCALE < np.float32(p)
        ), p


def in_plain_python(threads: int, n: int, arrays: tuple[Any, ...]) -> None:
    compilation.build_plain_functions().play_games(0, n, 0, *arrays)


@pytest.mark.long
@pytest.mark.slow
def test_200_episodes_agree_across_backends() -> None:
    compiled = compute_digests()
    assert len(set(compiled)) == 4 and compiled == compute_digests(in_plain_python)
    code = (
        "import sys, numpy as np\n"
        "from llmrl.envs.native import compilation\n"
        "from played_games import compute_digests, make_small_env\n"
        "assert isinstance(make_small_env('harvest').engine.game_loop, compilation.GpuLoop)\n"
        f"source = np.array({keys().tolist()}, np.int32)\n"
        "numbers = np.zeros((20, 500), np.int64)\n"
        "import drawn_numbers\n"
        "drawn_numbers.drawn[1, 32](source, numbers)\n"
        "print(*compute_digests(), numbers.tobytes().hex()[:64], int(numbers.sum()))"
    )
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    numbers = draw_numbers(hashed_random, keys()).astype(np.int64)
    assert done.stdout.split() == [*compiled, numbers.tobytes().hex()[:64], str(int(numbers.sum()))]


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set two threads of torch, on a machine of at least two cores."""
    n_threads = torch.get_num_threads()
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(n_threads)


def play_digest() -> str:
    return compute_digest(make_small_env("cleanup", SHARED))


def test_threads_preserve_outputs(two_threads: None) -> None:
    assert make_small_env("cleanup", SHARED).n_threads == 2 and make_small_env("cleanup", SHARED - 1).n_threads == 1
    torch.set_num_threads(1)
    reference_digest = play_digest()
    torch.set_num_threads(2)
    with ThreadPoolExecutor(3) as executor:
        thread_digests = [future.result() for future in [executor.submit(play_digest) for _ in range(3)]]
    assert thread_digests == [reference_digest] * 3
    assert sum(thread.name.startswith("games") for thread in threading.enumerate()) == 1


def test_fork_after_threads_is_safe(two_threads: None) -> None:
    env = make_small_env(
        "harvest", SHARED
    )  # torch's own threads would not survive the fork, and it has them make its zeros
    expected_digest = compute_digest(env)
    child = os.fork()
    if child == 0:
        os._exit(0 if compute_digest(env) == expected_digest else 3)
    assert os.waitpid(child, 0)[1] == 0


def test_readonly_actions_need_no_recompilation() -> None:
    env, compiled = make_small_env("harvest"), compilation.load_compiled_functions().play_games.overloads
    env.reset(seed=1)
    action = np.zeros((GAMES, 2), np.int64)
    action.flags.writeable = False
    assert env.step(action).reward.shape == (GAMES, 2) and len(compiled) == 1


@pytest.mark.long
@pytest.mark.slow
def test_disk_cache_depends_on_code(tmp_path: Path) -> None:
    """Edit a rule in another file than that of the outermost function and check that the game changes."""
    shutil.copytree(Path(llmrl.__file__).parent, tmp_path / "llmrl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(llmrl.__file__).parents[2] / "conf", tmp_path / "conf", dirs_exist_ok=True)
    code = (
        "import logging; logging.basicConfig(level='INFO')\n"
        "import numpy as np\n"
        "from played_games import make_small_env\n"
        "env = make_small_env('harvest'); env.reset(seed=1)\n"
        "print(sum(float(env.step(np.full((50, 2), 1)).reward.sum()) for _ in range(4)))\n"
    )
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(SUPPORT)]),
    }

    def play_episode() -> tuple[float, bool]:
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return float(done.stdout), "compiled the rules of the native games in" in done.stderr

    first, compiling = play_episode()
    assert first > 0 and compiling
    assert play_episode() == (first, False)
    rules = tmp_path / "llmrl" / "envs" / "native" / "rules.py"
    source = rules.read_text()
    assert source.count("player_stats[REWARD, b, i] += 1") == 3
    rules.write_text(source.replace("player_stats[REWARD, b, i] += 1", "player_stats[REWARD, b, i] += 2"))
    assert play_episode() == (2 * first, True)
    assert len(list((tmp_path / "cache" / "llmrl").glob("games-*"))) == 2


def test_gpu_requires_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    compilation.build_kernel.cache_clear()
    with pytest.raises(ConfigError, match=r"numba-cuda.*llmrl\[gpu\]"):
        compilation.build_kernel()


def test_numba_is_imported_on_demand(tmp_path: Path) -> None:
    """Check that neither printing a config nor the imports of a run load numba."""
    code = (
        "import importlib, sys; sys.argv = ['llmrl-train', '--cfg', 'job', 'env=harvest']\n"
        "from llmrl.cli.train import main; main()\n"
        "for name in ('experiment.train_application', 'loops.design', 'envs.substrate', 'envs.particles'):\n"
        "    importlib.import_module(f'llmrl.{name}')\n"
        "assert 'torch' in sys.modules and not {'numba', 'llvmlite'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "substrate: harvest" in done.stdout
