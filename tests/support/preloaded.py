"""Modules that the server of `commands.children` imports by name, which importing this module does."""

import experiments  # noqa: F401 (what most of its processes call)
from commands import PRELOADED_MODULES, preload_modules

preload_modules(PRELOADED_MODULES)
