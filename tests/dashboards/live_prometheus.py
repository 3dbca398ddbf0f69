"""A simulated job and a Prometheus that scrapes it, for as long as a `with` block lasts."""

import json
import os
import socket
import subprocess
import time
import urllib.parse
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url):
    with urllib.request.urlopen(url, timeout=5) as response:
        return response.read().decode()


class LiveJob:
    """cox_metrics_serve: prints its address first, ends when its input closes."""

    def __init__(self, program, rounds_per_second=10):
        self._command = [program, str(rounds_per_second)]

    def __enter__(self):
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.url = self._process.stdout.readline().strip()
        if not self.url.startswith("http://"):
            raise RuntimeError("the simulated job printed no address")
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


class LivePrometheus:
    """Debian's prometheus on a free port, with an own data folder and the rule files given."""

    def __init__(self, program, folder, target, rule_files):
        self._folder = folder
        self._program = program
        host = urllib.parse.urlparse(target).netloc
        config = {
            "global": {"scrape_interval": "250ms", "evaluation_interval": "1s"},
            "rule_files": [os.path.abspath(path) for path in rule_files],
            "scrape_configs": [
                {"job_name": "coxswain", "sample_limit": 1000, "static_configs": [{"targets": [host]}]}
            ],
        }
        self._config = os.path.join(folder, "prometheus.yml")
        with open(self._config, "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML

    def __enter__(self):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = open(os.path.join(self._folder, "log"), "w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [
                self._program,
                f"--config.file={self._config}",
                f"--storage.tsdb.path={self._folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.wait(lambda: fetch(self.url + "/-/ready"), "ready")
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=10)
        self._log.close()

    def wait(self, condition, what, seconds=15):
        """Until `condition` returns something true without an error."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self._log.seek(0)
        raise RuntimeError(f"Prometheus: not {what} after {seconds} s\n{self._log.read()[-2000:]}")

    def query(self, expression):
        """The series of an instant query."""
        url = self.url + "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        answer = json.loads(fetch(url))
        return answer["data"]["result"]
