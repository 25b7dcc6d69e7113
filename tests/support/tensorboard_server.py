"""TensorBoard server in a separate process."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode


class Server:
    """TensorBoard server process on a free port."""

    def __init__(self, logdir: Path) -> None:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host=127.0.0.1", "--port=0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in self.process.stderr], daemon=True).start()
        output = ""
        while not (match := re.search(r"at (http://127\.0\.0\.1:\d+/)", output)):
            output += lines.get(timeout=60)
        self.url = match[1]

    def ask(self, path: str, body: dict | None = None, **query: str) -> tuple[bytes, str]:
        """Send a request and return the body of the response and its content type."""
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.url}data/plugin/{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read(), response.headers.get_content_type()

    def json(self, path: str, body: dict | None = None, **query: str) -> dict:
        return json.loads(self.ask(path, body, **query)[0])

    def wait_for_runs(self, runs: int) -> None:
        """Wait until the server has loaded a number of runs, which it does in the background."""
        deadline = time.monotonic() + 120
        while len(self.json("scalars/tags")) < runs and time.monotonic() < deadline:
            time.sleep(0.5)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
