"""A local server of files that cuts connections, refuses ranges, changes its files and lies."""

import contextlib
import http.server
import threading
from collections.abc import Iterator


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`, and does what its attributes say; lists have an entry an answer."""

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.tag = files, '"one"'
        self.asked = []  # the Range header of every request
        self.errors = []  # statuses
        self.cuts = []  # bytes after which the connection is cut
        self.holds = []  # bytes after which an answer waits for the client to close the connection
        self.shift = []  # bytes by which a range begins too early
        self.shrinks = None  # bytes to which the file shrinks after the first answer, under the same tag
        self.ranges = self.lengths = True  # whether ranges are answered, and lengths said


def next_of(entries: list, otherwise):
    return entries.pop(0) if entries else otherwise


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *about):
        pass

    def do_GET(self):
        server, content = self.server, self.server.files.get(self.path)
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if status := next_of(server.errors, None if content else 404):
            return self.send_error(status)
        start = 0
        if asked and server.ranges and self.headers.get("If-Range") == server.tag:
            start = int(asked.removeprefix("bytes=").rstrip("-")) - next_of(server.shift, 0)
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if server.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", server.tag)
        self.end_headers()
        end, held = start + next_of(server.cuts, len(content)), next_of(server.holds, None)
        server.files[self.path] = content[: server.shrinks]
        with contextlib.suppress(OSError):  # the client was killed
            self.wfile.write(content[start : end if held is None else start + held])
            if held is not None:
                self.connection.recv(1)
            elif end < len(content):
                self.wfile.flush()
                self.connection.close()


@contextlib.contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """Serve files by their paths while the block runs."""
    made = Server(files)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
