"""What the server of `commands.children` imports, by name: doing it is the point of this module."""

import experiments  # noqa: F401 (what most of its processes call)
from commands import PRELOADED, preload

preload(PRELOADED)
