"""Run a command in a terminal of a given width."""

import fcntl
import os
import pty
import struct
import subprocess
import termios


def in_terminal(words: list[str], columns: int) -> str:
    """Return what a command prints to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(words, stdout=theirs, stderr=subprocess.PIPE, env=environment | {"TERM": "dumb"})
    os.close(theirs)
    output = b""
    try:
        while block := os.read(ours, 65536):
            output += block
    except OSError:  # the end, on Linux
        pass
    os.close(ours)
    assert process.wait() == 0, process.communicate()[1]
    return output.decode().replace("\r\n", "\n")
