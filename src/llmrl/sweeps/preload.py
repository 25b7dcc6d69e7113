"""Imports of the fork server of a local sweep, so that the runs forked from it need not import these modules.

The imports must not start a thread, open a device or draw a random number. `benchmarks/launchers.py` measures the gain.
"""

import importlib
import os
import signal

import pydantic
import torch  # noqa: F401

from llmrl.run import provenance
from llmrl.run.signals import SIGNALS

# Modules that every run imports. They are imported by name, because most belong to packages that import this one.
for name in (
    "llmrl.display.results",
    "llmrl.experiment.run_job",
    "llmrl.experiment.batched_runs",
    "llmrl.experiment.train_application",
    "llmrl.llms.transcript",
    "llmrl.loops.design",
    "llmrl.loops.learn",
    "llmrl.run.run",
    "llmrl.run.sinks.tensorboard",
    "llmrl.sweeps.backends.local",
    "numpy.random",
    "pydantic.types",
    "rich._emoji_codes",
    "tensorboard.plugins.hparams.summary_v2",
    "tensorboard.plugins.text.summary_v2",
    "tensorboard.summary.writer.record_writer",
    "torch.utils.serialization",
):
    importlib.import_module(name)
pydantic.TypeAdapter(int)  # pydantic searches for plugins at the first call
provenance.compute_code_digest()  # cached here, because files may be edited during the sweep
provenance.get_package_versions()
provenance.read_checkout_state()
# The server must survive signals to report the ends of its runs. The launcher forwards signals to the runs.
os.setpgid(0, 0)
for name in SIGNALS:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
