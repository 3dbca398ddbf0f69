"""R4: a job that trains while its HTTP server is held by idle and slow clients, and while its status
page is followed by many.

    r4.py --bench GPT2 --mpiexec PROGRAM --scratch DIR --text FILE [--quick]
"""

import argparse
import glob
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

from figures import centre, line, quantile

HERE = os.path.dirname(os.path.abspath(__file__))
SUPPORT = os.path.join(HERE, "..", "support")
SHAPE = ["--layers", "2", "--width", "128", "--heads", "4", "--length", "64", "--batch", "16"]
IDLE, SLOW, POSTS = 1000, 100, 4
READERS, DEAF = 50, 1  # who follow the events of the status page
LIVENESS_LIMIT_MS = 200
PATIENCE_S = 60
# What the process may open, and so how many clients it holds: many, or fewer than there are.
MANY_FILES, FEW_FILES = 8192, 1024


def limit_files(files):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, most), most))


class Job:
    """A GPT-2 that trains on two ranks until it is stopped."""

    def __init__(self, options, name, files):
        self.folder = os.path.join(options.scratch, f"r4-{name}")
        os.makedirs(self.folder)
        self.log = os.path.join(self.folder, "log")
        command = [options.mpiexec, "-n", "2", options.bench, "--text", options.text, *SHAPE,
                   "--steps", str(1 << 30), "--cox.http.port=0",
                   "--cox.run.directory=" + os.path.join(self.folder, "run")]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
                preexec_fn=lambda: limit_files(files))
        self.port = self.wait_for_port()

    def wait_for_port(self):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self.process.poll() is None:
            with open(self.log, encoding="utf-8") as log:
                found = re.search(r"status page: http://\S+:(\d+)/status", log.read())
            if found:
                return int(found[1])
            time.sleep(0.05)
        raise RuntimeError(f"expected the address of the pages within {PATIENCE_S} s, found none")

    def server_seconds(self):
        """Processor time of the server's own threads so far."""
        ticks = 0
        for task in glob.glob("/proc/[0-9]*/task/*"):
            try:
                with open(task + "/stat", encoding="utf-8") as file:
                    name, _, rest = file.read().partition("(")[2].rpartition(")")
                if name in ("cox-http", "cox-pages") and self.owns(int(task.split("/")[2])):
                    ticks += sum(map(int, rest.split()[11:13]))
            except OSError:
                pass  # it has just ended
        return ticks / os.sysconf("SC_CLK_TCK")

    def owns(self, process):
        with open(f"/proc/{process}/cmdline", encoding="utf-8") as file:
            return self.folder in file.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)

    def step_ends(self):
        with open(os.path.join(self.folder, "run", "rank0", "steps.jsonl"), encoding="utf-8") as rows:
            return [json.loads(row)["timestamp"] for row in rows]


class Clients:
    """Clients of the job's pages, from now until end()."""

    def __init__(self, script, port, *flags):
        self.process = subprocess.Popen(
            [sys.executable, "-B", os.path.join(SUPPORT, script), str(port), *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def end(self):
        self.process.stdin.close()
        outcome = json.loads(self.process.stdout.readline())
        self.process.wait(PATIENCE_S)
        return outcome


def attack(port):
    return Clients("slow_clients.py", port, f"--idle={IDLE}", f"--slow={SLOW}", f"--posts={POSTS}")


def follow(port):
    return Clients("followers.py", port, f"--read={READERS}", f"--deaf={DEAF}")


class Prober:
    """Asks for liveness all the time, one request after the other."""

    def __init__(self, port):
        self.port, self.goes_on, self.answers = port, True, []  # when asked, how long it took
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def ask(self):
        begin = time.perf_counter()
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as probe:
            probe.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while piece := probe.recv(65536):
                answer += piece
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"expected 200 from /livez, found {answer[:60]}")
        return time.perf_counter() - begin

    def run(self):
        while self.goes_on:
            try:
                self.answers.append((time.time(), self.ask()))
            except (OSError, RuntimeError) as error:
                print(error, file=sys.stderr)
                self.answers.append((time.time(), float("inf")))
            time.sleep(0.02)

    def end(self):
        self.goes_on = False
        self.thread.join()


class Window:
    """A stretch of time with or without clients."""

    def __init__(self, job, seconds):
        time.sleep(0.5)  # until clients are there, or gone
        self.begin, before = time.time(), job.server_seconds()
        time.sleep(seconds)
        self.end, after = time.time(), job.server_seconds()
        self.server_cores = (after - before) / (self.end - self.begin)

    def holds(self, when):
        return self.begin <= when < self.end

    def steps(self, ends):
        inside = [end for end in ends if self.holds(end)]
        return [after - before for before, after in zip(inside, inside[1:])]

    def median_step(self, ends):
        return quantile(self.steps(ends), 0.5)

    def mean_step(self, ends):
        steps = self.steps(ends)
        return sum(steps) / len(steps)

    def answers(self, prober):
        return [seconds for when, seconds in prober.answers if self.holds(when)]


def in_turns(job, visit, pairs, seconds):
    """Windows in turns, in quiet and with clients; which of a pair comes first changes."""
    windows, outcomes = {"quiet": [], "visited": []}, []
    for number in range(pairs):
        for kind in sorted(windows, reverse=number % 2 == 1):
            clients = visit(job.port) if kind == "visited" else None
            windows[kind].append(Window(job, seconds))
            if clients:
                outcomes.append(clients.end())
    return windows, outcomes


def under_attack(options, files, pairs, seconds):
    job = Job(options, f"attack-{files}", files)
    prober = Prober(job.port)
    try:
        time.sleep(3)
        windows, outcomes = in_turns(job, attack, pairs, seconds)
    finally:
        prober.end()
        job.stop()
    return job.step_ends(), prober, windows, outcomes


def while_followed(options, pairs, seconds):
    job = Job(options, "followed", MANY_FILES)
    try:
        time.sleep(3)
        windows, outcomes = in_turns(job, follow, pairs, seconds)
    finally:
        job.stop()
    return job.step_ends(), windows, outcomes


def seconds_of(windows):
    return sum(window.end - window.begin for window in windows)


def cores_of(windows):
    return sum(w.server_cores * (w.end - w.begin) for w in windows) / seconds_of(windows)


def tell_ratio(figure, ratios, limit=None, **config):
    value, low, high = centre(ratios)
    line("R4", value, "ratio", figure, limit, low_95=low, high_95=high, pairs=len(ratios), **config)


def tell_liveness(figure, windows, prober, limit, **config):
    answers = [1e3 * s for window in windows for s in window.answers(prober)]
    line("R4", quantile(answers, 0.99), "ms", figure, limit, p50=quantile(answers, 0.5),
         longest=max(answers), probes=len(answers), **config)


def tell_attack(options, pairs, seconds):
    ends, prober, windows, outcomes = under_attack(options, MANY_FILES, pairs, seconds)
    attacked_s = seconds_of(windows["visited"])
    tell_ratio("time of a training step while the server is attacked, against quiet",
               [attacked.median_step(ends) / quiet.median_step(ends)
                for quiet, attacked in zip(windows["quiet"], windows["visited"])], seconds=seconds,
               step_ms=1e3 * quantile([window.median_step(ends) for window in windows["quiet"]], 0.5),
               clients_cores=sum(outcome["cpu_seconds"] for outcome in outcomes) / attacked_s,
               thrown_out_a_second=sum(outcome["thrown_out"] for outcome in outcomes) / attacked_s)
    line("R4", cores_of(windows["visited"]), "cores",
         "processor time of the server's threads while it is attacked", None,
         quiet=cores_of(windows["quiet"]))
    clients = f"{IDLE} idle, {SLOW} slow, {POSTS} posts"
    tell_liveness("/livez while the server is attacked", windows["visited"], prober,
                  LIVENESS_LIMIT_MS, clients=clients, files=MANY_FILES)
    tell_liveness("/livez in quiet", windows["quiet"], prober, None)
    _, prober, windows, outcomes = under_attack(options, FEW_FILES, 1, seconds)
    tell_liveness("/livez while the server is attacked by more clients than it may hold",
                  windows["visited"], prober, LIVENESS_LIMIT_MS, clients=clients, files=FEW_FILES,
                  thrown_out_a_second=outcomes[0]["thrown_out"] / seconds)


def tell_followed(options, pairs, seconds):
    ends, windows, outcomes = while_followed(options, pairs, seconds)
    if min(outcome["least_pieces"] for outcome in outcomes) < seconds / 2:
        raise RuntimeError(f"expected a piece a second for every follower, found {outcomes}")
    followed_s = seconds_of(windows["visited"])
    config = {"followers": f"{READERS} that read, {DEAF} that never reads", "seconds": seconds}
    for name in ("mean", "median"):
        of = {kind: [getattr(window, name + "_step")(ends) for window in windows[kind]]
              for kind in windows}
        tell_ratio(f"{name} training step while the status page is followed, against quiet",
                   [followed / quiet for quiet, followed in zip(of["quiet"], of["visited"])],
                   step_ms=1e3 * quantile(of["quiet"], 0.5), **config)
    line("R4", cores_of(windows["visited"]), "cores",
         "processor time of the server's threads while the status page is followed", None,
         quiet=cores_of(windows["quiet"]),
         clients_cores=sum(outcome["cpu_seconds"] for outcome in outcomes) / followed_s,
         kilobytes_a_second=sum(outcome["bytes"] for outcome in outcomes) / followed_s / 1e3,
         dropped=sum(outcome["dropped"] for outcome in outcomes), **config)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bench", "mpiexec", "scratch", "text"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    tell_followed(options, *((2, 3) if options.quick else (16, 3)))
    tell_attack(options, *((2, 3) if options.quick else (16, 6)))


if __name__ == "__main__":
    main()
