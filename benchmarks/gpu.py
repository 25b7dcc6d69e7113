"""Speed of this platform's work on a GPU, in one command under ten minutes: games, PPO, societies, local scorers.

    python benchmarks/gpu.py [--parts check games blocks ppo societies scorer] [--games 4096 16384 65536 262144]
    python benchmarks/gpu.py --toy     # the same code without a GPU, in about a minute; measures nothing

* `check`: 64 games of 50 steps are those of the processor bit for bit: states, grids, pixels, rewards, what is told.
* `games`: agent steps a second of `grid` and `pixels` with random actions and 7 players. `kernel` is the loops and the
  painting alone, `step` is `VecEnv.step`. Aims for `step`: 100 M with `grid`, 10 M with `pixels`.
* `blocks`: agent steps a second of the kernel alone, by the threads of its blocks (`compilation.BLOCK`).
* `ppo`: agent steps a second of rollouts and updates on Harvest, end to end.
* `societies`: training rounds of several societies in one batch beside one society.
* `scorer`: prompts scored a second by a model in the shape of Flan-T5-large with random weights.

`first` are the seconds of the first call, compilation included, which no other column counts. `x CPU` is the
ratio to the processors of the same machine, all cores, in the row that says CPU. Memory is the most that torch held.
Each part has a time limit, and a size that does not fit is left out and says so. The exit code is 2 without a GPU, and
1 where games differ or are not compared in time, or a part failed.
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


class TimeUp(BaseException):
    """The time of a part is up; no `except Exception` on the way is meant."""


def measure_scorer(part: Part) -> None:
    """Measure the scorer; the import is local because only this part needs transformers."""
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
"""Seconds after which the process ends, whatever hangs; its imports come before."""
TITLES = {
    "check": "the games of the device beside those of the processor",
    "games": "agent steps of games with random actions",
    "blocks": "agent steps of the kernel alone, by threads of a block",
    "ppo": "agent steps of PPO on Harvest, 7 players with shared parameters",
    "societies": "societies in one batch",
    "scorer": "a local scorer in the shape of Flan-T5-large, random weights",
}


def run_part(part: Part) -> bool:
    """Compute a part within its time limit; return whether it succeeded."""

    def stop(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: an exception that is raised where Python discards it, e.g. in `__del__`, is lost.
    signal.setitimer(signal.ITIMER_REAL, LIMITS[part.name], 5.0)
    try:
        PARTS[part.name](part)
    except TimeUp:
        part.row(f"stopped: the {LIMITS[part.name]} s of this part are up")
        return part.name != "check"  # of games that nobody has compared no speed means anything
    except GamesDifferError as error:
        part.row(f"FAILED: {error}")
        return False
    except Exception:  # noqa: BLE001 (it is printed, and the other parts are measured all the same)
        part.row("FAILED")
        traceback.print_exc(file=sys.stdout)
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return True


def describe_machine(device: str) -> str:
    """Return a description of the machine and its device."""
    cores = (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, Numba {version('numba')}"
    )
    if device != "cuda":
        return cores
    facts = torch.cuda.get_device_properties(0)
    name = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
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
        print("TOY SIZES, IN A SIMULATOR AND ON THE PROCESSOR: NOTHING HERE IS A MEASUREMENT.")
    print(describe_machine(device), flush=True)
    begin, succeeded = time.perf_counter(), True
    for name in args.parts:
        print(f"\n{name}: {TITLES[name]} (at most {LIMITS[name]} s)", flush=True)
        succeeded &= run_part(Part(name, sizes, device))
    print(f"\n{time.perf_counter() - begin:.0f} s{'' if succeeded else ', NOT ALL WENT WELL'}")
    faulthandler.cancel_dump_traceback_later()
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
