"""OpenEnv servers in a separate Python environment, because OpenEnv requires an older Pillow."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

REQUIREMENT = "openenv==0.10.0"


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def start_server(environment: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Return a context with a running server process and its address; the server is killed on exit.

    Args:
        environment: folder of an environment with `REQUIREMENT` (`other_environment.make_environment`).
        arguments: arguments of `llmrl-serve` without the port.
    """
    port = find_free_port()
    command = [environment / "bin" / "python", "-m", "llmrl.cli.serve", *arguments, "--port", str(port)]
    server, address = subprocess.Popen(command), f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 600
        while True:
            assert time.monotonic() < deadline and server.poll() is None, "the server has not started"
            try:
                if httpx.get(f"{address}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.2)
        yield server, address
    finally:
        server.kill()
        server.wait(30)
