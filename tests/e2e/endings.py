"""The end of a job tells the truth: exit code 0 is for jobs whose ranks all came to the same end with equal and finite
weights. Ways out of the loop (exit(), _exit(), a kill, return, an exception) by one rank and by all of them, weights
that part or break after the last comparison, for each kind of loop.

    endings.py ... --endings PROGRAM
"""

import jobs

LOOPS = ["own", "trainer", "adopted"]
STEPS = 60


class Endings(jobs.Case):
    def end_of(self, loop, *flags, ranks=2, steps=STEPS):
        command = [jobs.programs.endings, loop, steps, *flags, "--cox.run.log=warning", "--cox.http.enabled=off"]
        return jobs.run(command, ranks)

    def fails(self, ended):
        """mpiexec gives the bitwise OR of 1 and the 9 of the ranks that it ends."""
        self.assertIn(ended.code, (1, 9), ended)

    def says(self, ended, *words):
        for word in words:
            self.assertIn(word, ended.err, ended)

    def each_loop(self, check, loops=tuple(LOOPS)):
        for loop in loops:
            with self.subTest(loop=loop):
                check(loop)

    def test_exit_on_all_ranks_after_the_same_step_is_an_end(self):
        def check(loop):
            ended = self.end_of(loop, "--leave", "all", 20, "exit0")
            self.assertEqual(ended.code, 0, ended)
            self.assertNotIn("error", ended.err, ended)
            self.assertNotIn("signal 11", ended.err, ended)
        self.each_loop(check, LOOPS + ["watched"])

    def test_a_session_ends_where_the_program_finalises_mpi(self):
        def check(loop):
            ended = self.end_of(loop, "--leave", "all", 20, "finalize")
            self.assertEqual(ended.code, 0, ended)
            self.says(ended, "MPI_Finalize was called before the end of the session; "
                             "the session ends here")
            self.assertNotIn("error", ended.err, ended)
            self.assertNotIn("MPI_FINALIZE", ended.err, ended)  # MPI's own complaint
        self.each_loop(check, LOOPS + ["watched"])

    def test_exit_on_one_rank_is_an_error(self):
        def check(loop):
            ended = self.end_of(loop, "--leave", 1, 20, "exit0", steps=10**6)
            self.fails(ended)
            self.says(ended, "rank 1")
            self.assertLess(ended.seconds, 40, ended)
        self.each_loop(check)

    def test_another_code_of_exit_is_kept(self):
        ended = self.end_of("own", "--leave", 1, 20, "exit3", steps=10**6)
        # mpiexec kills the other rank for it, and may tell the code of that one.
        self.assertIn(ended.code, (3, 9), ended)
        self.says(ended, "rank 1", "exit code 3")

    def test_a_death_is_named_without_a_run_directory(self):
        for way, words in (("kill", "signal 9"), ("_exit3", "exit code 3")):
            with self.subTest(way=way):
                ended = self.end_of("own", "--leave", 1, 20, way, steps=10**6)
                self.assertNotEqual(ended.code, 0, ended)
                self.says(ended, "rank 1", words)

    def test_a_rank_that_returns_early_ends_the_job_with_an_error(self):
        def check(loop):
            ended = self.end_of(loop, "--leave", 1, 20, "return", steps=10**6)
            self.fails(ended)
            self.assertRegex(ended.err, "rank 1 has left its loop after step 20|the end of the session.* on rank 1")
        self.each_loop(check, ["own", "adopted"])

    def test_weights_that_part_after_the_last_comparison_are_an_error(self):
        def check(loop):
            # After the last step an adopted loop cannot tell the update from another write.
            for step in (STEPS - 2, STEPS - 1)[:1 if loop == "adopted" else 2]:
                ended = self.end_of(loop, "--shift", 1, step)
                self.fails(ended)
                self.says(ended, "the weights", "rank 1")
        self.each_loop(check)

    def test_weights_that_part_are_not_saved(self):
        saves = self.path("saves")
        ended = self.end_of("trainer", "--shift", 1, STEPS - 1, "--cox.checkpoint.directory=" + saves)
        self.fails(ended)
        self.assertEqual(self.entries(saves), [], ended)

    def test_weights_that_are_not_finite_at_the_end_are_an_error(self):
        def check(loop):
            ended = self.end_of(loop, "--break", "all", STEPS - 1)
            self.fails(ended)
            self.says(ended, "finite")
        self.each_loop(check)

    def test_weights_that_one_rank_changes_after_its_loop_are_its_own(self):
        def check(loop):
            ended = self.end_of(loop, "--after", 0, 0)
            self.assertEqual(ended.code, 0, ended)
            self.assertEqual(ended.complaints(), [])
        self.each_loop(check, ["own", "trainer"])


if __name__ == "__main__":
    jobs.main()
