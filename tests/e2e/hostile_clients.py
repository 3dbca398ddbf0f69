"""Slow and idle clients starve no page of a job that trains, and pages tell nobody what they must
not: the token stays in the process, other machines need it, and a busy port is no reason to fail."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import jobs

ATTACK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "slow_clients.py")
TOKEN = "open-sesame-4711"


def get(address, token=None):
    headers = {"Authorization": "Bearer " + token} if token else {}
    try:
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class HostileClients(jobs.Case):
    def train(self, command, ranks=2, env=None):
        job = jobs.Job(command, ranks, env)
        self.addCleanup(job.signal, signal.SIGKILL)
        found = job.until(lambda: re.search(r"status page: (http://\S+:(\d+))/status", job.errors()))
        return job, found[1], int(found[2])

    def end(self, job):
        job.process.send_signal(signal.SIGTERM)
        return self.ends_well(job.wait())

    def test_nobody_starves_the_pages_of_a_job_that_trains(self):
        job, address, port = self.train(self.gpt2("--steps", 1000000))
        command = [sys.executable, "-B", ATTACK, str(port), "--idle=198", "--slow=40", "--posts=8"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as attack:
            self.addCleanup(attack.kill)
            self.assertEqual(attack.stdout.readline(), "ready\n")
            rounds = []
            for _ in range(20):
                self.assertEqual(get(address + "/livez")[0], 200)
                self.assertEqual(get(address + "/status")[0], 200)
                found = re.search(r"^coxswain_rounds_total (\d+)$", get(address + "/metrics")[1], re.M)
                rounds.append(int(found[1]))
            self.assertEqual(rounds, sorted(rounds))
            job.until(lambda: f"coxswain_rounds_total {rounds[0]}\n" not in
                      get(address + "/metrics")[1])  # it trains on
            attack.stdin.close()
            self.assertEqual(json.loads(attack.stdout.readline())["clients"], 246)
        self.end(job)

    def test_a_token_is_asked_for_and_told_nowhere(self):
        for way in ("flag", "environment"):
            with self.subTest(way):
                command = self.gpt2("--steps", 1000000, "--cox.http.host=0.0.0.0",
                                    run_directory="run-" + way)
                env = {"COX_HTTP_TOKEN": TOKEN} if way == "environment" else {}
                flags = ["--cox.http.token=" + TOKEN] if way == "flag" else []
                job, address, _ = self.train(command + flags, env=env)
                self.assertEqual(get(address + "/livez")[0], 200)
                pages = [get(address + path) for path in ("/", "/status", "/metrics")]
                self.assertEqual([page[0] for page in pages], [401] * 3)
                pages += [get(address + path, TOKEN) for path in
                          ("/", "/status", "/metrics", "/api/v1/config", "/api/v1/status")]
                self.assertEqual([page[0] for page in pages[3:]], [200] * 5)
                ended = self.end(job)
                told = "".join(page[1] for page in pages) + ended.out + ended.err
                self.assertNotIn(TOKEN, told)
                for folder, _, names in os.walk(self.path("run-" + way)):
                    for name in names:
                        with open(os.path.join(folder, name), "rb") as file:
                            self.assertNotIn(TOKEN.encode(), file.read(), name)

    def test_a_busy_default_port_is_replaced_with_a_warning(self):
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", 9464))
                taken.listen()
            except OSError:
                pass  # somebody else has it
            command = [w for w in self.gpt2("--steps", 5) if w != "--cox.http.port=0"]
            ended = self.ends_well(jobs.run(command, 2))
            self.assertRegex(ended.err, r"port 9464 is in use.*http://127\.0\.0\.1:\d+")
            ended = jobs.run(command + ["--cox.http.port=9464"], 2)
            self.assertNotEqual(ended.code, 0, ended)
            self.assertIn("the port is already in use", ended.err)


if __name__ == "__main__":
    jobs.main()
