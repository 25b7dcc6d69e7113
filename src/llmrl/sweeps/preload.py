"""Imported by the server that the runs of a local sweep are forked from, so that each of them need not.

Imports only: nothing here may start a thread, open a device or draw a random number.
"""

import importlib

import torch  # noqa: F401

from llmrl.run.provenance import code_digest

# By name, because these layers are above this one: what a run needs whatever it is made of.
for name in ("llmrl.cli.train", "llmrl.cli.compose", "llmrl.cli.report", "llmrl.loops.design", "llmrl.loops.learn"):
    importlib.import_module(name)
code_digest()  # of the code as it is imported here, whatever is edited while the sweep goes on
