"""`gpt2 --reference` agrees with the recorded run on one rank and on two, and says when not."""

import json
import os

import jobs


class Reference(jobs.Case):
    def check(self, folder, ranks, *flags):
        command = [jobs.programs.gpt2, "--reference", folder, "--cox.http.enabled=off", *flags]
        return jobs.run(command, ranks, patience=120)

    def verdicts(self, ended):
        return [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]

    def test_agrees_on_one_rank_and_on_two(self):
        folder = os.path.join(jobs.programs.data, "gpt2-reference")
        for ranks in (None, 1, 2):
            with self.subTest(ranks=ranks):
                checks = self.verdicts(self.ends_well(self.check(folder, ranks)))
                self.assertGreaterEqual(len(checks), 3)
                self.assertTrue(all(check["ok"] for check in checks), checks)

    def test_agrees_with_uneven_shares_accumulation_and_recompute(self):
        folder = os.path.join(jobs.programs.data, "gpt2-reference")
        for ranks, flags in [(1, ["--micro-batch", "3"]), (2, ["--micro-batch", "1"]),
                             (2, ["--cox.force.shares=3,5"]), (4, ["--cox.force.shares=1,4,2,1"]),
                             (2, ["--cox.force.shares=1,7", "--micro-batch", "2"]),
                             (2, ["--cox.force.shares=3,5", "--cox.memory.force=*=recompute"]),
                             (2, ["--cox.reduction.reproducible=on", "--micro-batch", "2"])]:
            with self.subTest(ranks=ranks, flags=flags):
                checks = self.verdicts(self.ends_well(self.check(folder, ranks, *flags)))
                self.assertGreaterEqual(len(checks), 3)
                self.assertTrue(all(check["ok"] for check in checks), checks)

    def test_a_tampered_expectation_is_exit_code_one(self):
        folder = self.path("tampered")
        os.mkdir(folder)
        recorded = os.path.join(jobs.programs.data, "gpt2-reference")
        for name in os.listdir(recorded):
            if name != "expected.json":
                os.symlink(os.path.join(recorded, name), os.path.join(folder, name))
        with open(os.path.join(recorded, "expected.json")) as file:
            expected = json.load(file)
        self.assertTrue(self.nudge(expected), "found no list of losses")
        with open(os.path.join(folder, "expected.json"), "w") as file:
            json.dump(expected, file)
        for ranks in (1, 2):
            ended = self.check(folder, ranks)
            self.assertEqual(ended.code, 1, ended)
            self.assertTrue(any(not check["ok"] for check in self.verdicts(ended)), ended)

    def nudge(self, value):
        """Changes one number of every list of losses by a ten-thousandth; how many there were."""
        changed = 0
        for key, inner in value.items():
            if "loss" in key and isinstance(inner, list) and isinstance(inner[0], float):
                inner[len(inner) // 2] *= 1.0001
                changed += 1
            elif isinstance(inner, dict):
                changed += self.nudge(inner)
        return changed


if __name__ == "__main__":
    jobs.main()
