"""A real HTTP server that speaks OpenAI's chat protocol and misbehaves on request.

with FakeOpenAIServer(reply=lambda messages: "hello") as server:
    server.faults += ["429", "hang"]      # the next two chat requests
    OpenAICompatibleChat(base_url=server.url, ...)
"""

import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = (
    "429",
    "429-after",
    "500",
    "503",
    "401",
    "hang",
    "reset",
    "malformed",
    "truncated",
    "no_choices",
    "null_content",
)


class FakeOpenAIServer:
    """Args: reply maps messages to the assistant's text; key, if given, is demanded; retry_after in seconds."""

    def __init__(self, reply=lambda messages: "hello", key=None, retry_after="0.05", hang=30.0, model="fake-model"):
        self.reply, self.key, self.retry_after, self.hang, self.model = reply, key, retry_after, hang, model
        self.faults: deque[str] = deque()
        self.requests: list[dict] = []
        self.times: list[float] = []
        self.in_flight, self.most_in_flight = 0, 0
        self.delay = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._http.block_on_close = False

    @property
    def url(self):
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self):
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _begin(self, body):
        with self._lock:
            self.requests.append(body)
            self.times.append(time.monotonic())
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            return self.faults.popleft() if self.faults else None

    def _end(self):
        with self._lock:
            self.in_flight -= 1

    def _handler(fake):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                if self._refused():
                    return
                if self.path == "/v1/models":
                    self._send(200, {"object": "list", "data": [{"id": fake.model, "object": "model"}]})
                else:
                    self._send(404, {"error": {"message": f"no {self.path} here"}})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self._refused():
                    return
                fault = fake._begin(body)
                try:
                    time.sleep(fake.delay)
                    self._answer(body, fault)
                except BrokenPipeError:
                    pass  # the client stopped waiting
                finally:
                    fake._end()

            def _refused(self):
                given = self.headers.get("Authorization")
                if fake.key is None or given == f"Bearer {fake.key}":
                    return False
                # Real providers quote the key they were given.
                self._send(
                    401, {"error": {"message": f"Incorrect API key provided: {given}", "code": "invalid_api_key"}}
                )
                return True

            def _answer(self, body, fault):
                if fault in ("429", "429-after"):
                    headers = {"Retry-After": fake.retry_after} if fault == "429-after" else {}
                    self._send(429, {"error": {"message": "slow down"}}, headers)
                elif fault in ("500", "503", "401"):
                    self._send(int(fault), {"error": {"message": f"fault {fault}"}})
                elif fault == "hang":
                    fake._stop.wait(fake.hang)
                    self.close_connection = True
                elif fault == "reset":
                    self.close_connection = True
                    self.connection.close()
                elif fault == "malformed":
                    self._send_bytes(200, b"<html>this is not JSON</html>")
                elif fault == "no_choices":
                    self._send(200, {"choices": [], "usage": {}})
                else:
                    self._send_completion(body, fault)

            def _send_completion(self, body, fault):
                text = None if fault == "null_content" else fake.reply(body["messages"])
                answer = {
                    "id": "chatcmpl-1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": body["model"],
                    "choices": [
                        {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                    ],
                    "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
                }
                data = json.dumps(answer).encode()
                if fault == "truncated":
                    # The header promises more than is sent before the connection closes.
                    self.close_connection = True
                    self._send_bytes(200, data[: len(data) // 2], promised=len(data))
                else:
                    self._send_bytes(200, data)

            def _send(self, status, answer, headers=None):
                self._send_bytes(status, json.dumps(answer).encode(), headers=headers)

            def _send_bytes(self, status, data, headers=None, promised=None):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data) if promised is None else promised))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        return Handler
