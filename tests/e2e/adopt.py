"""An adopted loop: equal weights on all ranks, its page, its ending by SIGTERM."""

import json
import os
import re
import signal
import urllib.request

import jobs


def get(address):
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


class Adopt(jobs.Case):
    def command(self, *arguments):
        return [jobs.programs.adopt, *arguments, "--cox.http.port=0"]

    def hold(self, *arguments, ranks=2):
        job = jobs.Job(self.command("1000000", *arguments), ranks)
        self.addCleanup(job.signal, signal.SIGKILL)
        found = job.until(lambda: re.search(r"page (http://\S+)/status", job.output()))
        return job, found[1]

    def test_all_ranks_end_with_equal_weights(self):
        for ranks in [None, 2, 3]:
            ended = jobs.run(self.command("40"), ranks)
            self.assertEqual(ended.code, 0, ended)
            weights = re.findall(r"rank \d+: 40 steps, weights (\S+)", ended.out)
            self.assertEqual(len(weights), ranks or 1, ended)
            self.assertEqual(len(set(weights)), 1, ended)

    def test_the_page_names_blocks_phases_and_the_slow_rank(self):
        job, address = self.hold()
        blocks = job.until(lambda: self.measured_blocks(address))
        self.assertEqual([block["name"] for block in blocks], ["0", "1", "2", "3"])
        for block in blocks:
            self.assertGreater(block["forward_seconds"], 0, block)
            self.assertGreater(block["saved_bytes"], 0, block)
        ranks = json.loads(get(address + "/api/v1/ranks"))["ranks"]
        for rank in ranks:
            for phase in ["data", "forward", "backward", "optimizer", "communication"]:
                self.assertGreater(rank["phase_seconds"][phase], 0, (phase, rank))
        slow, fast = ranks[1]["phase_seconds"]["data"], ranks[0]["phase_seconds"]["data"]
        self.assertGreater(slow, fast)

    @staticmethod
    def measured_blocks(address, what="backward_seconds"):
        blocks = json.loads(get(address + "/api/v1/plan"))["blocks"]
        return blocks if all(block.get(what) for block in blocks) else None

    # Of a rank's step: four products of 32 rows by 64 by 64, the first of whose operands needs no gradient.
    PRODUCT = 2 * 32 * 64 * 64

    def test_a_run_holds_the_operators_of_each_rank_and_cox_ops_lists_them(self):
        for ranks in [1, 2]:
            run = self.path(f"run{ranks}")
            ended = jobs.run(self.command("70", "--cox.run.directory=" + run), ranks)
            self.assertEqual(ended.code, 0, ended)
            for rank in range(ranks):
                with open(os.path.join(run, f"rank{rank}", "operators.json"), encoding="utf-8") as file:
                    table = json.load(file)
                self.assertEqual((table["steps"], table["newest_step"]), (2, 66))
                self.assertEqual([block["name"] for block in table["blocks"]], ["0", "1", "2", "3"])
                self.check_operators(table)
                listed = jobs.run([jobs.programs.cox, "ops", run, "--rank", str(rank), "--by", "flops"])
                self.assertEqual(listed.code, 0, listed)
                self.assertIn("1.05 MFLOP forward, 1.84 MFLOP backward", listed.out)
                self.assertRegex(listed.out, r"operator .*\naten::addmm +4.00 ")
                part = jobs.run([jobs.programs.cox, "ops", run, "--rank", str(rank), "--block=1", "--json"])
                rows = json.loads(part.out)["operators"]
                self.assertEqual(rows, [row for row in table["operators"] if row["block"] == "1"])
            self.assertFalse(os.path.exists(os.path.join(run, f"rank{ranks}")))

    def check_operators(self, table):
        products = [row for row in table["operators"] if "forward_flops" in row]
        self.assertEqual([row["name"] for row in products], ["aten::addmm"] * 4)
        for row in products:
            self.assertEqual(row["calls"], 2, row)
            self.assertEqual(row["result_bytes"], 2 * 32 * 64 * 4, row)
            self.assertEqual(row["forward_flops"], 2 * self.PRODUCT, row)
            self.assertEqual(row["backward_flops"], 2 * self.PRODUCT * (1 if row["block"] == "0" else 2), row)
        self.assertTrue(all(row["forward_ns"] > 0 for row in table["operators"]))
        self.assertFalse([row for row in table["operators"] if "add_" in row["name"]], "optimizer")

    def test_the_page_and_the_metrics_tell_flops_and_mfu(self):
        for ranks in [1, 2]:
            job, address = self.hold("--cox.run.peak_flops_per_device=1e9", ranks=ranks)
            status = job.until(lambda: self.flops_of(address))
            self.assertEqual(status["step_flops"], ranks * 11 * self.PRODUCT)
            self.assertGreater(status["flops_per_second"], 0)
            self.assertAlmostEqual(status["mfu_ratio"] / (status["flops_per_second"] / ranks / 1e9), 1, 1)
            blocks = job.until(lambda: self.measured_blocks(address, "flops"))
            self.assertEqual([block["flops"] / self.PRODUCT for block in blocks], [2, 3, 3, 3])
            page = get(address + "/status")
            self.assertIn("of 1.00 GFLOP/s a device", page)
            self.assertIn("aten::addmm", page)
            self.assertRegex(get(address + "/metrics"), r"\ncoxswain_mfu_ratio [0-9.e-]+\n")
            job.signal(signal.SIGKILL)

    @staticmethod
    def flops_of(address):
        operators = json.loads(get(address + "/api/v1/status"))["operators"]
        return operators if operators["step_flops"] else None

    def test_sigterm_on_one_rank_ends_all_at_the_end_of_a_step(self):
        job, _ = self.hold()
        job.signal(signal.SIGTERM, ranks=[1])
        ended = job.wait()
        self.assertNotEqual(ended.code, 0, ended)
        self.assertIn("does not call stop_requested()", ended.err, ended)

    def test_a_loop_that_asks_leaves_by_itself(self):
        job, _ = self.hold("--ask")
        job.signal(signal.SIGTERM, ranks=[0])
        ended = job.wait()
        self.assertEqual(ended.code, 0, ended)
        steps = re.findall(r"rank \d+: (\d+) steps", ended.out)
        self.assertEqual(len(set(steps)), 1, ended)

    def test_equal_batches_on_all_ranks_are_told_once(self):
        for arguments, times in [(["--same"], 1), ([], 0)]:
            ended = jobs.run(self.command("5", *arguments), 2)
            self.assertEqual(ended.code, 0, ended)
            self.assertEqual(ended.err.count("DistributedRandomSampler"), times, ended)

    def test_what_is_trained_and_not_averaged_is_named_once(self):
        cases = [
            ("--late", "parameter 4.weight was registered after adopt() and is trained, but its gradients"),
            ("--beside", "a leaf of shape [1] that is in no adopted model is trained, and its gradients"),
        ]
        for flag, text in cases:
            with self.subTest(flag=flag):
                ended = jobs.run(self.command(20, flag), 2)
                self.assertEqual(ended.err.count("coxswain[0] warning: adopted model: " + text), 1, ended)

    def test_steps_by_returned_gradients_are_told_to_be_neither_averaged_nor_planned(self):
        budget = "--cox.memory.budget=1GiB"
        cases = [(2, [], "not averaged over ranks"), (1, [budget], "no memory plan is made"), (1, [], None)]
        for ranks, settings, text in cases:
            with self.subTest(ranks=ranks, settings=settings):
                ended = jobs.run(self.command(5, "--returned", *settings), ranks)
                self.assertEqual(ended.code, 0 if ranks == 1 else 1, ended)  # two ranks have other weights
                written = "coxswain[0] warning: adopted model: a parameter of shape [64, 64] is written after"
                self.assertEqual(ended.err.count(written), 0 if text is None else 1, ended)
                self.assertIn(text or "", ended.err)

    def test_a_step_whose_later_backward_pass_cannot_be_repeated_is_told(self):
        ended = jobs.run(self.command(5, "--weighted", "--cox.memory.budget=1GiB"))
        self.assertEqual(ended.code, 0, ended)
        told = ("coxswain[0] warning: adopted model: a step's later backward passes cannot be repeated, so that "
                "predicted peaks leave them out")
        self.assertEqual(ended.err.count(told), 1, ended)
        self.assertIn("a gradient passed to backward() other than 1", ended.err)

    def test_a_backward_pass_on_another_thread_is_told_while_the_loop_runs(self):
        job, _ = self.hold("--aside")
        job.until(lambda: "found backward() on other threads only" in job.errors())

    def test_a_format_acts_on_the_blocks_and_is_not_told_to_be_without_effect(self):
        weights = set()
        for settings in [[], ["--cox.precision.force=*=bf16"]]:
            ended = jobs.run(self.command("4", *settings))
            self.assertEqual(ended.code, 0, ended)
            self.assertNotIn("adopted model", ended.err)
            weights.add(re.search(r"4 steps, weights .*", ended.out)[0])
        self.assertEqual(len(weights), 2)

    def test_recompute_changes_no_bit_of_the_weights(self):
        for ranks in [1, 2]:
            weights = []
            for settings in [[], ["--cox.memory.force=*=recompute"]]:
                ended = jobs.run(self.command("12", *settings), ranks)
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual("4 of 4 blocks recomputed" in ended.err, bool(settings), ended)
                weights.append(sorted(re.findall(r"rank \d+: 12 steps, weights .*", ended.out)))
            self.assertEqual(len(weights[0]), ranks)
            self.assertEqual(weights[0], weights[1])

    def test_a_budget_that_cannot_be_met_ends_the_job_with_what_takes_the_least(self):
        ended = jobs.run(self.command("4", "--cox.memory.budget=64KiB"), 2)
        self.assertNotEqual(ended.code, 0, ended)
        self.assertIn("at that peak", ended.err)


if __name__ == "__main__":
    jobs.main()
