"""Drives a headless Chromium over its debugging pipe, with nothing but the standard library."""
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "expected chromium (scripts/bootstrap --browser installs it), found none"
PATIENCE_S = 120  # for one answer; a busy machine is slow


class Browser:
    """One browser with one page. Closes with close()."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="cox-pages-")
        to_child, self.write_end = os.pipe()
        self.read_end, from_child = os.pipe()
        self.received = b""
        self.number = 0
        self.events = []

        def place_pipes():  # the browser reads 3 and writes 4
            a, b = os.dup(to_child), os.dup(from_child)
            os.dup2(a, 3)
            os.dup2(b, 4)
        self.process = subprocess.Popen(
            [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-extensions",
             "--disable-sync", "--user-data-dir=" + self.profile, "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_child)
        os.close(from_child)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(domain + ".enable")

    session = None

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self.received:
            if not select.select([self.read_end], [], [], max(0, end - time.monotonic()))[0]:
                raise RuntimeError("the browser does not answer")
            piece = os.read(self.read_end, 1 << 16)
            if not piece:
                raise RuntimeError("the browser has gone")
            self.received += piece
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def look(self, width, height, scheme):
        """A window of that size, in a scheme of colours: light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def requests(self):
        """What the page asked for since it was opened."""
        self.evaluate("0")
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", answer)))
        return answer["result"].get("value")

    def until(self, expression):
        """Waits until it is true, and returns its value."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                value = self.evaluate(expression)
            except RuntimeError as error:  # between two documents
                value = None
                if "gone" in str(error):
                    raise
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError("never came true: " + expression)

    def press(self, key):
        texts = {"Enter": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=texts.get(key, ""),
                  windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key])
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key,
                  windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key])

    def screenshot(self, path):
        import base64
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
