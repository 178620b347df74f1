"""Reports in a real browser: a headless Chromium, driven through its debugging pipe with the standard library."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from numpyro.distributions import constraints

from bernflow.diagnostics import judge
from bernflow.flows.base import AbstractDistribution
from bernflow.models.base import Site
from bernflow.posterior import Posterior
from bernflow.target import Layout

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0
# A browser expects its pipes at the descriptors 3 and 4.
LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
EVIL = "<script>document.title = 'run'</script>"


class Browser:
    """One page of a headless browser."""

    def __init__(self, program, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # High numbers, so that putting one into its place does not overwrite the other.
        moved = [_at_least(10, descriptor) for descriptor in (to_browser, from_browser)]
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", LAUNCH, *map(str, moved), *command],
            pass_fds=moved,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in moved:
            os.close(descriptor)
        self._number, self._buffer, self.events = 0, b"", []
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            self._buffer += os.read(self._read, 1 << 16)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1200, height=900, dark=False, mobile=False):
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def ask(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def complaints(self):
        """Errors and warnings of the console, and addresses that were asked for."""
        self.ask("1")
        bad = [e for e in self.events if e.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled")]
        bad += [e for e in self.events if e.get("method") == "Log.entryAdded"]
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return bad + [url for url in asked if not url.startswith(("file:", "data:"))]

    def close(self):
        with contextlib.suppress(OSError, TimeoutError):
            self._session = None
            self.send("Browser.close")
        for descriptor in (self._write, self._read):
            os.close(descriptor)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _at_least(number, descriptor):
    import fcntl

    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, number)
    os.close(descriptor)
    return copy
