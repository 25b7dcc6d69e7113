"""Reference results of rliable 1.2.0 as JSON, computed in a separate environment because it requires an old pandas.

    python tests/support/rliable_reference.py --venv /tmp/rliable > tests/analysis/golden/rliable.json

The command creates the environment if it does not exist (pandas below 3, arch below 8), executes this script in it and
prints the results of the default cases. With `--cases -` the cases are read from standard input.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = ("rliable==1.2.0", "pandas<3", "arch<8")
RESAMPLES = 5000


def make_default_cases():
    """Return cases of scores of two groups, [n_runs, n_tasks] each: many tasks, a task with ties, few uneven runs."""
    import numpy as np

    rng = np.random.default_rng(20)
    large = rng.normal(0.6, 0.3, (10, 8)) + 0.2 * rng.normal(size=8)
    ties = rng.integers(0, 4, (6, 1)).astype(float)
    small = rng.gamma(2, 3, (4, 3))
    return [
        {"x": large.tolist(), "y": (large[:7] - rng.normal(0.1, 0.2, (7, 8))).tolist()},
        {"x": ties.tolist(), "y": rng.integers(0, 4, (6, 1)).astype(float).tolist()},
        {"x": small.tolist(), "y": rng.gamma(2, 3, (5, 3)).tolist()},
    ]


def compute_reference(case):
    """Return rliable's results for a case: estimates and 95% intervals [low, high]."""
    import numpy as np
    from rliable import library, metrics

    np.random.seed(0)  # rliable resamples with the global generator
    x, y = np.array(case["x"]), np.array(case["y"])
    functions = {
        "mean": metrics.aggregate_mean,
        "iqm": metrics.aggregate_iqm,
    }

    def all_statistics(scores):
        return np.array([function(scores) for function in functions.values()])

    estimates, intervals = library.get_interval_estimates({"x": x, "y": y}, all_statistics, reps=RESAMPLES)
    better, improvement_intervals = library.get_interval_estimates(
        {"x,y": [x, y]}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=RESAMPLES
    )
    return {
        "scores": {"x": case["x"], "y": case["y"]},
        **{
            group: {
                name: {"estimate": float(estimates[group][i]), "interval": intervals[group][:, i].tolist()}
                for i, name in enumerate(functions)
            }
            for group in ("x", "y")
        },
        "improvement": {"estimate": float(better["x,y"][0]), "interval": improvement_intervals["x,y"][:, 0].tolist()},
    }


def find_venv_python(venv):
    """Return the interpreter of the environment in `venv`, which is created if it does not exist."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True, stdout=sys.stderr)
    return python


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=None, help="folder of the environment with rliable")
    parser.add_argument("--cases", default="", help="'-': read {cases} from standard input")
    args = parser.parse_args()
    if args.venv is not None:
        command = [find_venv_python(args.venv), __file__, *(["--cases", args.cases] if args.cases else [])]
        raise SystemExit(subprocess.run(command).returncode)
    cases = json.load(sys.stdin)["cases"] if args.cases == "-" else make_default_cases()
    numbers = {
        "source": f"{', '.join(REQUIREMENTS)}; tests/support/rliable_reference.py; {RESAMPLES} resamples",
        "cases": [compute_reference(case) for case in cases],
    }
    print(json.dumps(numbers, indent=1))
