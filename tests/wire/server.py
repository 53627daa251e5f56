"""A scripted loopback server with the protocols of Anthropic, OpenAI and Voyage.

    from tests.wire.script import Call, Fail, Say
    from tests.wire.server import Wire

    with Wire(Fail(429, headers={"retry-after": "1"}), Say("Hello."), Say(calls=(Call("add", {"a": 1}),))) as wire:
        model = connect_chat(f"anthropic:claude-haiku-4-5@{wire.anthropic}", Settings())
        ...
        assert wire.requests[0].body["model"] == "claude-haiku-4-5"

Chat requests of any protocol get the answers of the script in order. `wire.script(...)` adds answers; a function in the
script receives the request and returns the answer. A chat request after the end of the script gets status 400, and
`wire.unexpected` counts it. Embeddings need no script: their vectors are hashed words of `wire.dim` dimensions.
`wire.embedding_script(...)` adds failures before them.

The server runs in threads, so that synchronous tests and other processes can use it. `wire.anthropic`, `wire.openai`
and `wire.voyage` are the base URLs for the clients. On loopback any key is accepted, also none.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.wire import completions, embeddings, messages
from tests.wire.script import Answer, Fail, Hang, Request, Reset, Say, Scripted

_CHAT = {"/v1/messages": messages, "/v1/chat/completions": completions}
_EMBEDDINGS: dict[str, Callable[[Fail], dict[str, Any]]] = {
    "/v1/embeddings": completions.failure,
    "/voyage/v1/embeddings": embeddings.voyage_failure,
}


class Wire:
    """The server, a context manager; `requests` has every received request."""

    def __init__(self, *answers: Scripted, dim: int = 64) -> None:
        self.dim = dim
        self.streams = True
        """False imitates a server that ignores `stream` and sends whole answers."""
        self.requests: list[Request] = []
        self.unexpected = 0
        self.asked = threading.Event()
        """Set when the first request arrives."""
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._script: deque[Scripted] = deque(answers)
        self._embedding_script: deque[Fail | Reset | Hang] = deque()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.wire = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def anthropic(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def voyage(self) -> str:
        return f"http://127.0.0.1:{self.port}/voyage/v1"

    def script(self, *answers: Scripted) -> None:
        with self._lock:
            self._script.extend(answers)

    def embedding_script(self, *answers: Fail | Reset | Hang) -> None:
        with self._lock:
            self._embedding_script.extend(answers)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def chat_answer(self, request: Request) -> Answer:
        with self._lock:
            self._note(request)
            if not self._script:
                self.unexpected += 1
                return Fail(400, "nothing_scripted", "the script has no answer left for this request")
            scripted = self._script.popleft()
        return scripted(request) if callable(scripted) else scripted

    def _note(self, request: Request) -> None:
        self.requests.append(request)
        self.asked.set()

    def embedding_answer(self, request: Request) -> Fail | Reset | Hang | None:
        with self._lock:
            self._note(request)
            return self._embedding_script.popleft() if self._embedding_script else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    wire: Wire

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: many tests close the connection early."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: tests read `requests`."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path.partition("?")[0], headers, body)
        wire = self.server.wire
        if request.path in _CHAT:
            protocol = _CHAT[request.path]
            answer = wire.chat_answer(request)
            if isinstance(answer, Say):
                self._say(answer, request)
            else:
                self._misbehave(answer, protocol.failure)
        elif request.path in _EMBEDDINGS:
            trouble = wire.embedding_answer(request)
            if trouble is None:
                self._json(200, embeddings.vectors(request, wire.dim))
            else:
                self._misbehave(trouble, _EMBEDDINGS[request.path])
        else:
            self._json(404, {"error": {"message": f"unknown path {request.path}", "type": "not_found_error"}})

    def _say(self, say: Say, request: Request) -> None:
        protocol = _CHAT[request.path]
        if not request.streams or not self.server.wire.streams:
            self._json(200, protocol.whole(say, request))
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._stream(protocol.streamed(say, request), say)

    def _stream(self, events: Iterator[tuple[str, bool]], say: Say) -> None:
        pieces = 0
        for event, is_text in events:
            if is_text and say.resets:
                self._reset()
                return
            if is_text and pieces == say.breaks_after:
                # Not a reset, which could overtake the pieces before it.
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if is_text and pieces == say.stalls_after:
                self.server.wire.closing.wait(60)
            if is_text and say.pause:
                self.server.wire.closing.wait(say.pause)
            pieces += is_text
            data = event.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _misbehave(self, answer: Fail | Reset | Hang, failure: Callable[[Fail], dict[str, Any]]) -> None:
        match answer:
            case Fail():
                self._json(answer.status, failure(answer), answer.headers)
            case Reset():
                self._reset()
            case Hang():
                self.server.wire.closing.wait(60)
                self._reset()

    def _json(self, status: int, value: dict[str, Any], headers: Any = ()) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, content in dict(headers).items():
            self.send_header(name, content)
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
