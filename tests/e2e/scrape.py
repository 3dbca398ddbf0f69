"""A job is scraped by a real Prometheus, while it trains and held, and ends on SIGTERM with 0."""

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import jobs

ROUTES = ["/", "/metrics", "/livez", "/readyz", "/status", "/version", "/api/v1/status",
          "/api/v1/ranks", "/api/v1/plan", "/api/v1/decisions", "/api/v1/config",
          "/api/v1/numerics", "/api/v1/operators"]


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Scrape(jobs.Case):
    def hold(self, ranks):
        job = jobs.Job(self.gpt2("--steps", 40, "--hold"), ranks)
        found = job.until(lambda: re.search(r"holding (http://\S+)/status until", job.output()))
        self.addCleanup(job.signal, signal.SIGKILL)
        return job, found[1]

    def prometheus(self, target, authorization=""):
        port = free_port()
        with open(self.path("prometheus.yml"), "w") as file:
            file.write("global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
                       f"scrape_configs:\n- job_name: coxswain\n{authorization}  static_configs:\n"
                       f"  - targets: ['{target}']\n")
        with open(self.path("prometheus.log"), "w") as log:
            server = subprocess.Popen(
                [jobs.programs.prometheus, "--config.file", self.path("prometheus.yml"),
                 "--storage.tsdb.path", self.path("tsdb"),
                 "--web.listen-address", f"127.0.0.1:{port}"], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        return f"http://127.0.0.1:{port}"

    def query(self, prometheus, expression):
        """The value, once there is one."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                code, text = get(f"{prometheus}/api/v1/query?query={expression}")
                result = json.loads(text)["data"]["result"] if code == 200 else []
                if result:
                    return float(result[0]["value"][1])
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.1)
        self.fail(f"Prometheus never had {expression}")

    def check_routes(self, address):
        for route in ROUTES:
            with self.subTest(route):
                code, body = get(address + route)
                self.assertEqual(code, 200, body)
                if route.startswith("/api"):
                    json.loads(body)
        self.assertEqual(get(address + "/nowhere")[0], 404)

    def test_two_ranks_are_scraped_and_end_on_sigterm_to_mpiexec(self):
        job, address = self.hold(2)
        self.check_routes(address)
        metrics = get(address + "/metrics")[1]
        checked = subprocess.run([jobs.programs.promtool, "check", "metrics"], input=metrics,
                                 capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        prometheus = self.prometheus(address.removeprefix("http://"))
        job.until(lambda: self.query(prometheus, "up") == 1)
        names = re.findall(r"^# TYPE (coxswain_\w+) (?:counter|gauge)", metrics, re.M)
        self.assertGreater(len(names), 10)
        self.assertEqual(self.query(prometheus, "coxswain_world_size"), 2)
        self.assertGreater(self.query(prometheus, "coxswain_tokens_total"), 0)
        job.process.send_signal(signal.SIGTERM)
        self.ends_well(job.wait())

    def test_a_job_is_scraped_while_it_trains(self):
        job = jobs.Job(self.gpt2("--steps", 1000000), 2)
        self.addCleanup(job.signal, signal.SIGKILL)
        found = job.until(lambda: re.search(r"status page: (http://\S+)/status", job.errors()))
        prometheus = self.prometheus(found[1].removeprefix("http://"))
        rounds = "coxswain_rounds_total"
        first = self.query(prometheus, rounds)
        job.until(lambda: self.query(prometheus, rounds) > first + 50)
        self.check_routes(found[1])
        self.assertGreater(self.query(prometheus, f"rate({rounds}[5s])"), 0)
        job.process.send_signal(signal.SIGTERM)
        self.ends_well(job.wait())

    def test_a_job_with_a_token_is_scraped_by_who_has_it(self):
        token = "open-sesame-4711"
        job = jobs.Job(self.gpt2("--steps", 1000000), None, {"COX_HTTP_TOKEN": token})
        self.addCleanup(job.signal, signal.SIGKILL)
        self.addCleanup(job.process.kill)
        found = job.until(lambda: re.search(r"status page: (http://\S+)/status", job.errors()))
        with open(self.path("coxswain.token"), "w") as file:
            file.write(token + "\n")
        prometheus = self.prometheus(found[1].removeprefix("http://"),
                                     "  authorization:\n    credentials_file: coxswain.token\n")
        job.until(lambda: self.query(prometheus, "coxswain_rounds_total") > 0)
        job.process.send_signal(signal.SIGTERM)
        self.ends_well(job.wait())

    def test_one_rank_without_mpiexec_ends_on_sigterm(self):
        job, address = self.hold(None)
        self.assertEqual(get(address + "/readyz")[0], 200)
        job.process.send_signal(signal.SIGTERM)
        self.ends_well(job.wait())

    def test_sigterm_to_one_rank_ends_all(self):
        job, _ = self.hold(2)
        job.signal(signal.SIGTERM, {1})
        self.ends_well(job.wait())


if __name__ == "__main__":
    jobs.main()
