"""A headless Chromium driven over its DevTools pipe: no driver, no port, no package beside the browser itself.

Messages are JSON objects that end in a zero byte; Chromium reads them from descriptor 3 and writes to descriptor 4
(https://chromedevtools.github.io/devtools-protocol/, `--remote-debugging-pipe`).
"""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def require_chromium() -> str:
    """The browser. Where there is none the test is skipped, or fails with ROCOCO_REQUIRE_BROWSER set."""
    if CHROMIUM:
        return CHROMIUM
    missing = "no Chromium here; on Debian: apt-get install chromium"
    if os.environ.get("ROCOCO_REQUIRE_BROWSER"):
        pytest.fail(f"{missing} (ROCOCO_REQUIRE_BROWSER is set)")
    pytest.skip(missing)


# Python puts the pipe's ends where Chromium looks for them, then becomes Chromium.
_LAUNCH = """
import os, sys
commands, answers = map(int, sys.argv[1:3])
os.dup2(os.dup(commands), 3), os.dup2(os.dup(answers), 4)
os.set_inheritable(3, True), os.set_inheritable(4, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Chromium:
    """Control one page. `events` collects what the browser reports; `evaluate` runs JavaScript in the page.

    Args:
        profile: an empty folder.
        patience: seconds that the browser has for an answer; a busy machine starts it slowly.
    """

    def __init__(self, profile: Path, patience: float = 120.0):
        browser = require_chromium()
        self.events: list[dict[str, Any]] = []
        self.patience, self._number, self._buffer, self._session = patience, 0, b"", {}
        command_end, self._commands = os.pipe()
        self._answers, answer_end = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run"
        options += " --disable-extensions --disable-background-networking --remote-debugging-pipe"
        options = [*options.split(), "--window-size=1280,900", f"--user-data-dir={profile}", "about:blank"]
        launch = [sys.executable, "-c", _LAUNCH, str(command_end), str(answer_end), browser, *options]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(launch, pass_fds=(command_end, answer_end), **quiet)
        os.close(command_end)
        os.close(answer_end)
        (target, *_) = [each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file, with what stands after `#` in its address, and wait until it is there."""
        # Where only the fragment differs, nothing would be loaded.
        for address in ("about:blank", page.resolve().as_uri() + (f"#{fragment}" if fragment else "")):
            before = len(self.events)
            self.call("Page.navigate", url=address)
            self.wait_for("Page.loadEventFired", since=before)

    def wait_for(self, event: str, since: int = 0) -> None:
        """Waits until an event of that name is among those after the first `since`."""
        self._wait(lambda: any(each["method"] == event for each in self.events[since:]))

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, of a promise what it becomes, as JSON; an error where it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol and its answer; an error where the browser refuses it or does not answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._wait(lambda: bool(answers), answers)
        if "error" in answers[0]:
            raise RuntimeError(f"{method}: {answers[0]['error']}")
        return answers[0]["result"]

    def _wait(self, is_done, answers: list | None = None) -> None:
        until = time.monotonic() + self.patience
        while not is_done():
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise RuntimeError("Chromium has ended")
            *whole, self._buffer = (self._buffer + chunk).split(b"\0")
            for message in map(json.loads, whole):
                if message.get("id") == self._number and answers is not None:
                    answers.append(message)
                elif "method" in message:
                    self.events.append(message)

    def close(self) -> None:
        """End the browser, which does so when its pipe is closed."""
        os.close(self._commands)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
