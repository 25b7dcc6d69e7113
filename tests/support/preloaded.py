"""Imports for the fork server of `commands.get_forkserver_context`, executed when this module is imported."""

import experiments  # noqa: F401 (used by most processes of the fork server)
from commands import PRELOADED_MODULES, preload_modules

preload_modules(PRELOADED_MODULES)
