"""Four ranks on two nodes that share no memory (tests/support/two_nodes): training agrees on plans
and weights as it does on one node. Ends with exit code 77 where such nodes cannot be made."""

import re
import signal
import sys
import time

import jobs
import parallel
from precision_jobs import PrecisionCase, format_flag

RANKS = 4


def setUpModule():
    probe = jobs.run(["true"], ranks=2)
    if probe.code == jobs.SKIPPED:
        print(probe.out)
        sys.exit(jobs.SKIPPED)


class TwoNodes(PrecisionCase):
    STEPS = 100

    def runs_on_two_nodes(self, ended):
        self.assertIn("4 ranks on 2 hosts (first-node: 2, second-node: 2)\n", ended.err)
        self.assertIn("control path: mailbox+mpi\n", ended.err)

    def test_formats_that_ranks_of_both_nodes_ask_for_change_in_the_same_step_on_all(self):
        requests = ["--request", 20, 3, "block1", "force", "fp32", 0,
                    "--request", 50, 0, "block2", "force", "fp16", 0]
        ended = self.train("formats", RANKS, format_flag("bf16"), "--cox.precision.mode=on", *requests)
        self.runs_on_two_nodes(ended)
        done = self.all_did_the_same("formats", RANKS, ended)
        self.assertEqual(len(done), self.STEPS)
        formats = [f"{row[2]:.0f}" for row in done]
        self.assertEqual(list(dict.fromkeys(formats)), ["2222", "2122", "2132"])
        self.replays("formats")

    def test_reproducible_weights_are_those_of_one_rank_alone(self):
        alone = parallel.run(["trainer"] + parallel.EXACT, None)
        both = parallel.run(["trainer"] + parallel.EXACT, RANKS)
        for ended in (alone, both):
            self.ends_well(ended)
        self.assertEqual(len(parallel.weights(both)), RANKS, both)
        self.assertEqual(set(parallel.weights(both).values()), set(parallel.weights(alone).values()))

    def test_a_stopped_rank_of_the_other_node_is_named_with_its_phase(self):
        """Its marks reach rank 0 by the courier of its node's leader, rank 2."""
        job = jobs.Job([jobs.programs.parallel, "trainer", "--steps", 10**7, "--cox.http.enabled=off",
                        "--jitter-us", 20000], RANKS)
        self.addCleanup(job.signal, signal.SIGKILL)
        job.until(lambda: "control path: mailbox+mpi" in job.errors() and len(job.pids()) == RANKS)
        time.sleep(3)  # it trains; nothing is lost if not yet
        job.signal(signal.SIGSTOP, [3])
        job.until(lambda: re.search(r"rank 3 (is|waits) in .*its process is stopped; ranks 0-2 wait", job.errors()))
        job.signal(signal.SIGCONT, [3])
        job.until(lambda: "the wait for rank 3 is over" in job.errors())
        job.signal(signal.SIGTERM)
        self.ends_well(job.wait())


if __name__ == "__main__":
    jobs.main()
