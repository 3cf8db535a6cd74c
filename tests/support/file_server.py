"""A local server of files that cuts connections, refuses ranges, changes its files and lies; a small hub, too."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

COMMIT = "c0ffee" * 6 + "beef"


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`, and does what its attributes say; lists have an entry an answer."""

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.tag = files, '"one"'
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.moved, self.kinds = {}, {}  # address by path, and kind of contents
        self.tokens = []  # those that came, with the address
        self.wants_token = None  # where files are refused without it
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
        path = unquote(self.path).partition("?blobs")[0]
        server, content = self.server, self.server.files.get(path)
        asked, token = self.headers.get("Range"), self.headers.get("Authorization")
        if token:
            server.tokens.append((self.headers["Host"].partition(":")[0], path))
        if path.startswith("/datasets/") and server.wants_token not in (None, token):
            return self.send_error(401)
        if path in server.moved:
            self.send_response(307)
            self.send_header("Location", server.moved[path])
            self.send_header("Content-Length", "0")
            return self.end_headers()
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
        self.send_header("Content-Type", server.kinds.get(path, "application/octet-stream"))
        self.end_headers()
        end, held = start + next_of(server.cuts, len(content)), next_of(server.holds, None)
        server.files[path] = content[: server.shrinks]
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


@contextlib.contextmanager
def a_hub() -> Iterator[Server]:
    """The same as the hub of `huggingface_hub`."""
    with serving({}) as made, pytest.MonkeyPatch.context() as patched:
        patched.setattr("huggingface_hub.constants.ENDPOINT", made.url)
        patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patched.delenv("HF_TOKEN", raising=False)
        yield made


def publish(server: Server, name: str, files: dict[str, bytes], revision: str = "main", commit: str = COMMIT) -> None:
    """A data set of the hub: what its API tells of it, and its files at the commit; all but texts are in LFS."""
    siblings = []
    for path, content in files.items():
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        about = {"rfilename": path, "size": len(content), "blobId": blob}
        if not path.endswith((".csv", ".jsonl")):
            about["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        siblings.append(about)
        server.files[f"/datasets/{name}/resolve/{commit}/{path}"] = content
    about = {"id": name, "sha": commit, "siblings": siblings}
    server.files[f"/api/datasets/{name}/revision/{revision}"] = json.dumps(about).encode()


def sizes_of_parts(folder: Path) -> list[int]:
    """Return the sizes of unfinished files; nothing while one gets its name between the listing and its size."""
    try:
        return [part.stat().st_size for part in folder.rglob("*.part")]
    except FileNotFoundError:
        return []
