"""Tests of check_blocks.py and results.py: a page or an output that is true passes, and each kind of
untruth is found.

    selftest.py ROOT

Makes its own small trees; ROOT lends them a few real files to name.
"""

import os
import shutil
import stat
import sys
import tempfile
import unittest

import check_blocks
import results

ROOT = os.path.abspath(sys.argv[1])
LENT = ("CMakePresets.json", "metrics/command/cox_main.cc", "sdk/examples/gpt2/options.cc")

SOURCE = "int a;\n  // [part]\n  int b;\n    int c;\n  // [/part]\nint d;\n"
SETTINGS = (
    "# Settings\n\n<!-- begin: cox config --markdown -->\n| key |\n|---|\n| `http.port` |\n<!-- end -->\n"
)
GOOD = """# A page

See [settings](docs/configuration.md#settings) and `sdk/part.cc`.

<!-- from sdk/part.cc:part -->
```cpp
int b;
  int c;
```

```sh
COX_HTTP_PORT=0 scripts/go --fast --cox.http.port=0  # a comment
cox config
cmake --preset dev
```

```text
anything
```
"""


class Pages(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="cox-docs-")
        self.addCleanup(shutil.rmtree, self.root)
        for path in LENT:
            os.makedirs(os.path.dirname(os.path.join(self.root, path)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, path), os.path.join(self.root, path))
        self.write("sdk/part.cc", SOURCE)
        self.write("docs/configuration.md", SETTINGS)
        script = self.write("scripts/go", "#!/bin/sh\n# --fast\n")
        os.chmod(script, os.stat(script).st_mode | stat.S_IXUSR)
        self.write("README.md", GOOD)

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
        return full

    def cox(self, output):
        program = self.write("cox", f"#!/bin/sh\nprintf '{output}'\n")
        os.chmod(program, 0o755)
        return program

    def assert_finds(self, before, after, words):
        self.assertIn(before, GOOD)
        self.write("README.md", GOOD.replace(before, after))
        found = list(check_blocks.findings(self.root))
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])
        self.assertTrue(found[0].startswith("README.md:"), found[0])

    def test_a_true_page_passes(self):
        self.assertEqual(list(check_blocks.findings(self.root)), [])

    def test_a_block_that_differs_from_its_file(self):
        self.assert_finds("  int c;", "  int e;", "line 2 of the block")
        self.assert_finds("  int c;\n", "  int c;\nint d;\n", "expected 2 lines, found 3")

    def test_quotes_are_brought_up_to_date(self):
        self.write("README.md", GOOD.replace("  int c;", "  int e;\nint f;"))
        check_blocks.write(self.root, None)
        self.assertEqual(check_blocks.pages.read(self.root, "README.md"), GOOD)

    def test_a_block_without_a_source(self):
        self.assert_finds("<!-- from sdk/part.cc:part -->\n", "", "before a cpp block")

    def test_a_source_that_is_not_there(self):
        self.assert_finds("sdk/part.cc:part", "sdk/other.cc:part", "does not exist")
        self.assert_finds("sdk/part.cc:part", "sdk/part.cc:parts", "no such region")

    def test_a_language_that_nobody_checks(self):
        self.assert_finds("```text", "```perl", "block language")

    def test_commands_that_are_not_there(self):
        self.assert_finds("scripts/go --fast", "scripts/gone --fast", "scripts/gone does not exist")
        self.assert_finds("--fast", "--faster", "knows no option --faster")
        self.assert_finds("cox config", "cox configure", "cox has no command 'configure'")
        self.assert_finds("--preset dev", "--preset debug", "no preset debug")
        self.assert_finds("--preset dev", "--preset dev -DCOX_NONE=OFF", "no option COX_NONE")
        self.assert_finds("--cox.http.port", "--cox.http.ports", "--cox.http.ports does not exist")
        self.assert_finds("COX_HTTP_PORT", "COX_HTTP_PORTS", "COX_HTTP_PORTS does not exist")
        self.assert_finds("cox config\n", "rm -r .\n", "does not know: rm")
        self.assert_finds("cox config\n", "build/dev/bin/none\n", "expected build/PRESET/bin/PROGRAM")

    def test_blocks_inside_a_list(self):
        self.assert_finds("```sh", "1. Do:\n\n   ```sh\n   scripts/gone\n   ```\n\n```sh", "scripts/gone")

    def test_links_and_paths_that_lead_nowhere(self):
        self.assert_finds("(docs/configuration.md#", "(docs/settings.md#", "does not exist")
        self.assert_finds("#settings", "#setting", "no such heading")
        self.assert_finds("`sdk/part.cc`", "`sdk/parts.cc`", "names sdk/parts.cc")

    def test_a_table_of_settings_that_is_out_of_date(self):
        current = self.cox("| key |\\n|---|\\n| `http.port` |\\n")
        self.assertEqual(list(check_blocks.findings(self.root, current)), [])
        newer = self.cox("| key |\\n|---|\\n| `http.port` |\\n| `http.host` |\\n")
        found = list(check_blocks.findings(self.root, newer))
        self.assertEqual(len(found), 1, found)
        self.assertIn("cox config --markdown", found[0])

    def test_continuous_integration_that_runs_another_command(self):
        self.write(".ci/run", "export WERROR=ON\nexec scripts/test --preset ci\n")
        self.write("README.md", GOOD + "\n```sh\nscripts/go --fast\nscripts/test  # all\n```\n")
        os.chmod(self.write("scripts/test", "#!/bin/sh\n"), 0o755)
        found = list(check_blocks.findings(self.root))
        self.assertEqual(len(found), 1, found)
        self.assertIn(".ci/run: expected a line 'exec ' with README's test command", found[0])
        self.write(".ci/run", "export WERROR=ON\nexec scripts/test\n")
        self.assertEqual(list(check_blocks.findings(self.root)), [])

    def test_a_block_that_is_never_closed(self):
        self.assert_finds("anything\n```\n", "anything\n", "not closed")


class Results(unittest.TestCase):
    def finds(self, case, text):
        found = results.findings(case, text)
        self.assertLessEqual(len(found), 1, found)
        return found[0] if found else ""

    def test_an_output_within_its_ranges_passes(self):
        self.assertEqual(self.finds("own_loop", "loss 0.0489 over all ranks\n"), "")
        self.assertEqual(self.finds("fit.np2", "8 epochs, loss 0.00195 on the held-out data\n"), "")

    def test_lines_of_ranks_come_in_any_order(self):
        self.assertEqual(self.finds("watch_only.np2", "rank 1: loss 0.0\nrank 0: loss 0.01\n"), "")

    def test_a_number_out_of_its_range_is_found(self):
        self.assertIn("found 'mean of the generated samples 3.51'",
                      self.finds("gan", "mean of the generated samples 3.51\n"))
        self.assertIn("found 'loss nan'", self.finds("quick_start", "loss nan\n"))

    def test_other_words_and_lines_are_found(self):
        self.assertIn("expected '0 plans; '", self.finds("custom_policy.alone", "0 plans; a reason\n"))
        self.assertIn("expected 1 lines, found 2",
                      self.finds("gan", "mean of the generated samples 3\nmore\n"))
        self.assertIn("expected 1 lines, found 0", self.finds("gan", ""))

    def test_an_exit_code_counts_whatever_was_printed(self):
        failing = ["sh", "-c", "echo loss 0.01; exit 3"]
        self.assertEqual(results.run("quick_start", failing), ["quick_start: expected exit code 0, found 3"])

    def test_a_refusal_is_one_line_and_no_success(self):
        self.assertEqual(len(results.refused("memory_budget.refused", ["true"])), 1)
        self.assertEqual(len(results.refused("memory_budget.refused", ["sh", "-c", "echo error: no >&2; false"])), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
