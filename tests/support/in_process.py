"""Commands inside a test's process, for what they say and write and where nothing of a process is the point: a refusal
costs a tenth of a second so. What takes signals, computes for long or is about processes is for `commands`."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def call(
    main: Callable[[], object], name: str, *words: str, cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` gives of the console script `name`, whose function is `main`; a traceback is raised."""
    from hydra.core.global_hydra import GlobalHydra

    out, err, code = io.StringIO(), io.StringIO(), None
    arguments, before, level = sys.argv, dict(os.environ), logging.getLogger("llmrl").level
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
        os.environ.update(before)
    assert code is None or isinstance(code, int), code
    return subprocess.CompletedProcess([name, *words], code or 0, out.getvalue(), err.getvalue())
