"""HTTP servers on the loopback interface that close all connections and threads when they stop."""

import contextlib
import socket
import struct
import sys
import threading
from http.server import ThreadingHTTPServer


class LoopbackServer:
    """Server on a free port for the duration of a `with` block.

    Args:
        handler: request handler class of `http.server`.
    """

    def __init__(self, handler):
        self._http = _Server(("127.0.0.1", 0), handler)

    @property
    def address(self):
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind, *exc):
        """Close all connections of the server and join its threads."""
        self._http.shutdown()
        self._http.end_connections()
        self._http.server_close()
        self._thread.join()
        if kind is None and self._http.errors:
            raise self._http.errors[0]


def reset_connection(handler):
    """Reset the connection of a handler instead of closing it."""
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.rfile.close()
    handler.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for the threads
    request_queue_size = 128

    def __init__(self, *args):
        super().__init__(*args)
        self.errors: list[BaseException] = []
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()

    def process_request(self, request, client_address):
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        with self._guard:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self):
        with self._guard:
            for request in self._open:
                with contextlib.suppress(OSError):  # the client has closed it already
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        error = sys.exc_info()[1]
        # Tests use clients that stop waiting or are killed.
        if not isinstance(error, ConnectionError):
            self.errors.append(error)
