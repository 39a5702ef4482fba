"""Chromium, driven over its debugging pipe: descriptors 3 and 4, messages of JSON with a zero byte behind each."""

import base64
import json
import os
import select
import shutil
import subprocess
import time


def find():
    """The program: CHROMIUM, or what there is; None."""
    names = [os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next((path for path in (shutil.which(name) for name in names if name) if path), None)


class Browser:
    def __init__(self, program, profile, patience=120):
        self.ends = time.monotonic() + patience
        self.log = os.path.join(profile + ".log")
        read_end, self.to = os.pipe()
        self.answers, write_end = os.pipe()
        # Out of the way of 3 and 4, which they may be themselves.
        high = [os.dup(os.dup(os.dup(end))) for end in (read_end, write_end)]

        def plumb():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        flags = ["--headless", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                 "--disable-background-networking", "--disable-dev-shm-usage", "--user-data-dir=" + profile]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([program, *flags, "about:blank"], pass_fds=(3, 4), preexec_fn=plumb,
                                            stdout=log, stderr=log)
        for end in (read_end, write_end, *high):
            os.close(end)
        self.rest, self.count, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.answers)

    def receive(self):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], max(self.ends - time.monotonic(), 0))
            piece = os.read(self.answers, 1 << 16) if ready else b""
            if not piece:
                with open(self.log) as log:
                    raise RuntimeError("the browser " + ("ended" if ready else "does not answer") + ":\n" + log.read()[-3000:])
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width=1400, height=1000, dark=False):
        """Loads a file."""
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url="file://" + path)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def run(self, script):
        """The value of an expression; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"], indent=1))
        return result["result"].get("value")

    def problems(self):
        """What the console was told, but for information."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                found.append(details.get("exception", {}).get("description") or details["text"])
            elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(one.get("value")) for one in parameters["args"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole,
                         **({"clip": self.whole_page()} if whole else {}))
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def whole_page(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def print(self, path):
        printed = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(printed["data"]))
