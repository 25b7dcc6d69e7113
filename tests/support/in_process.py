"""Commands executed in the test process, for tests of their output and files.

A command that is rejected takes about 0.1 s. Tests of signals, long computations or processes use `commands`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def run_in_process(
    main: Callable[[], object], name: str, *words: str, cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a console script in this process and return its result like `subprocess.run`.

    Exceptions other than SystemExit are raised.

    Args:
        main: function of the console script.
        name: name of the console script.
        words: arguments of the command.
        cwd: working directory.
        environment: environment variables.
    """
    from hydra.core.global_hydra import GlobalHydra

    out, err, code = io.StringIO(), io.StringIO(), None
    arguments, original_environment, level = sys.argv, dict(os.environ), logging.getLogger("llmrl").level
    GlobalHydra.instance().clear()
    try:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [name, *words]
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = arguments
        logging.getLogger("llmrl").setLevel(level)
        os.environ.clear()
        os.environ.update(original_environment)
    assert code is None or isinstance(code, int), code
    return subprocess.CompletedProcess([name, *words], code or 0, out.getvalue(), err.getvalue())
