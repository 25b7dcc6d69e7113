"""Throughput of games, PPO, batched societies and the local scorer on a GPU, in less than ten minutes.

    python benchmarks/gpu.py [--parts check games blocks ppo societies scorer] [--games 4096 16384 65536 262144]
    python benchmarks/gpu.py --toy     # test of the same code without a GPU, in about a minute

* `check`: compares states, grids, pixels, rewards and infos of 64 games of 50 steps with the CPU, bit for bit.
* `games`: agent steps per second with `grid` and `pixels` observations, random actions and 7 players. `kernel` is the
  game loops and rendering, `step` is `VecEnv.step`. Targets for `step`: 100 M with `grid`, 10 M with `pixels`.
* `blocks`: agent steps per second of the kernel, by number of threads per block (`compilation.THREADS_PER_BLOCK`).
* `ppo`: agent steps per second of rollouts and updates on Harvest, end to end.
* `societies`: training rounds of several societies in one batch, compared with one society.
* `scorer`: prompts per second of a model with the architecture of Flan-T5-large and random weights.

`first` is the duration of the first call, seconds, which includes compilation; other columns exclude it. `x CPU` is the
speedup over all CPU cores of the same machine, measured in the rows labeled CPU. Memory is the peak memory of torch.
Each part has a time limit. Sizes that exceed the memory are skipped with a message. Exit codes: 2 without a GPU; 1 if
games differ, the comparison did not finish in time, or a part failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version

import torch
from gpu_games import GamesDifferError, check, measure_blocks, measure_games
from gpu_learning import measure_ppo, measure_societies
from gpu_part import LIMITS, TOY, Part, Sizes

from llmrl.core.errors import ConfigError
from llmrl.envs.native.compilation import build_kernel


class PartTimeout(BaseException):
    """Signal that a part reached its time limit; not an `Exception`, so that the part does not catch it."""


def measure_scorer(part: Part) -> None:
    """Measure the scorer. The import is local because only this part needs transformers."""
    from gpu_scorer import measure_scorer

    measure_scorer(part)


PARTS: dict[str, Callable[[Part], None]] = {
    "check": check,
    "games": measure_games,
    "blocks": measure_blocks,
    "ppo": measure_ppo,
    "societies": measure_societies,
    "scorer": measure_scorer,
}
MAX_SECONDS = 575
"""Seconds after the imports until the process is terminated, even if a part hangs."""
TITLES = {
    "check": "comparison of games on the device with the CPU",
    "games": "agent steps of games with random actions",
    "blocks": "agent steps of the kernel, by threads per block",
    "ppo": "agent steps of PPO on Harvest, 7 players with shared parameters",
    "societies": "societies in one batch",
    "scorer": "local scorer with the architecture of Flan-T5-large and random weights",
}


def run_part(part: Part) -> bool:
    """Run a part within its time limit, and return whether it succeeded."""

    def stop(*_: object) -> None:
        raise PartTimeout

    previous_handler = signal.signal(signal.SIGALRM, stop)
    # The signal repeats every 5 s because Python discards exceptions that are raised in some places, e.g. in `__del__`.
    signal.setitimer(signal.ITIMER_REAL, LIMITS[part.name], 5.0)
    try:
        PARTS[part.name](part)
    except PartTimeout:
        part.print_row(f"stopped at the time limit of {LIMITS[part.name]} s")
        return part.name != "check"  # speeds are meaningless unless the games were compared
    except GamesDifferError as error:
        part.print_row(f"FAILED: {error}")
        return False
    except Exception:  # noqa: BLE001 (printed; the other parts still run)
        part.print_row("FAILED")
        traceback.print_exc(file=sys.stdout)
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
    return True


def describe_machine(device: str) -> str:
    """Return a description of the machine and its device."""
    cores = (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, Numba {version('numba')}"
    )
    if device != "cuda":
        return cores
    properties = torch.cuda.get_device_properties(0)
    name = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return f"{name}, numba-cuda {version('numba-cuda')}; {cores}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="toy sizes in Numba's simulator and on the processor")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument(
        "--games", nargs="+", type=int, help="sizes of the batches of games; the first on processors, too"
    )
    args = parser.parse_args()
    if args.toy:
        # Numba reads it when it is imported.
        assert "numba" not in sys.modules
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    elif not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is false; --toy runs the same code at toy sizes", file=sys.stderr)
        sys.exit(2)
    try:
        build_kernel()
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
    sizes, device = (TOY, "simulated") if args.toy else (Sizes(), "cuda")
    torch.set_num_threads(sizes.threads)
    if args.games:
        sizes = dataclasses.replace(sizes, games=args.games)
    if args.toy:
        print("TOY SIZES ON THE CPU AND IN A SIMULATOR: THE TIMES ARE NOT A MEASUREMENT.")
    print(describe_machine(device), flush=True)
    start, all_succeeded = time.perf_counter(), True
    for name in args.parts:
        print(f"\n{name}: {TITLES[name]} (at most {LIMITS[name]} s)", flush=True)
        all_succeeded &= run_part(Part(name, sizes, device))
    print(f"\n{time.perf_counter() - start:.0f} s{'' if all_succeeded else ', SOME PARTS FAILED'}")
    faulthandler.cancel_dump_traceback_later()
    sys.exit(0 if all_succeeded else 1)


if __name__ == "__main__":
    main()
