"""Imported by the server that the runs of a local sweep are forked from, so that each of them need not.

Nothing here may start a thread, open a device or draw a random number. `benchmarks/launchers.py` shows what it saves.
"""

import importlib
import os
import signal

import pydantic
import torch  # noqa: F401

from llmrl.run import provenance
from llmrl.run.signals import SIGNALS

# What every run imports in the course of its life, whatever it is made of. By name, because most is above this layer.
for name in (
    "llmrl.display.run_summary",
    "llmrl.experiment.run_job",
    "llmrl.experiment.batched_runs",
    "llmrl.experiment.train_application",
    "llmrl.llms.transcript",
    "llmrl.loops.design",
    "llmrl.loops.learn",
    "llmrl.run.run",
    "llmrl.run.sinks.tensorboard",
    "numpy.random",
    "pydantic.types",
    "rich._emoji_codes",
    "tensorboard.plugins.hparams.summary_v2",
    "tensorboard.plugins.text.summary_v2",
    "tensorboard.summary.writer.record_writer",
    "torch.utils.serialization",
):
    importlib.import_module(name)
pydantic.TypeAdapter(int)  # looks for plugins the first time
provenance.code_digest()  # of the code as it is imported here, whatever is edited while the sweep goes on
provenance.packages()
# A signal for the launcher's process group is the launcher's to hand on; the server has to tell of its runs' ends.
os.setpgid(0, 0)
for name in SIGNALS:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
