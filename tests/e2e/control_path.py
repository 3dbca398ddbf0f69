"""Mailboxes and pure MPI carry the same training: losses are equal bit for bit."""

import jobs


class ControlPath(jobs.Case):
    def test_pure_mpi_trains_to_the_same_losses_as_mailboxes(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                losses = []
                for path in ("mailbox", "mpi"):
                    name = f"{path}{ranks}"
                    ended = self.ends_well(jobs.run(self.gpt2("--steps", 30, run_directory=name),
                                                    ranks, {"COX_CONTROL": path}))
                    self.assertIn("control path: " + path + "\n", ended.err)
                    losses.append(self.losses(name))
                self.assertEqual(len(losses[0]), 30)
                self.assertEqual(losses[0], losses[1])

    def test_without_room_for_shared_memory_it_falls_back_and_says_so(self):
        for ranks, folder in ((2, "/proc"), (2, self.path("missing"))):
            with self.subTest(folder=folder):
                name = "fallback" + str(len(folder))
                ended = self.ends_well(jobs.run(self.gpt2("--steps", 10, run_directory=name), ranks,
                                                {"COX_SHM_DIR": folder}))
                self.assertIn("control path: mpi\n", ended.err)
                self.assertIn(folder, ended.err)
                self.assertEqual(len(self.losses(name)), 10)


if __name__ == "__main__":
    jobs.main()
