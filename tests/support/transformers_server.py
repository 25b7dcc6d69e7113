"""Process of `transformers serve` on a free port, for the duration of a `with` block.

with TransformersServer(folder, scratch) as server:
    make_openai_model(base_url=server.url, model=server.model, ...)
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

START = "import sys; from transformers.cli.transformers import main; sys.argv[0] = 'transformers'; main()"


class TransformersServer:
    """Server process of a model.

    Args:
        folder: folder with the model and its tokenizer.
        scratch: folder for the log and an empty cache.
        patience: timeout of the start in seconds.
    """

    def __init__(self, folder: Path, scratch: Path, patience: float = 180.0):
        self.model, self.scratch, self.patience = str(folder), Path(scratch), patience
        self.log = self.scratch / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self):
        # Without network. The server lists the models in the cache and returns status 500 if that folder is missing.
        cache = self.scratch / "hub"
        cache.mkdir()
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, "serve", self.model, *address, "--device", "cpu"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc):
        self._stop()

    def _wait(self):
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server exited at startup:\n{self.log.read_text()[-3000:]}")
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=2.0).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise RuntimeError(f"the server does not answer:\n{self.log.read_text()[-3000:]}")

    def _stop(self):
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
