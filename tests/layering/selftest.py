"""Tests of the layering tests: each rule is broken once in a tree made for it, and must be seen."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

import alone
import classes
import includes
import lengths
import locales
import prose
import shape
import writers


class Tree:
    """A source tree in a temporary folder, removed on exit."""

    def __init__(self, contents):
        self._folder = tempfile.TemporaryDirectory()
        self.root = self._folder.name
        for path, text in contents.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)

    def __enter__(self):
        return self.root

    def __exit__(self, *unused):
        self._folder.cleanup()


def include_violations(contents):
    with Tree(contents) as root:
        return list(includes.violations(root))


def length_violations(contents):
    with Tree(contents) as root:
        return list(lengths.violations(root))


GOOD = {
    "coordinator/core/plan.h": "#include <vector>\n#include <cstdint>\n",
    "coordinator/core/plan.cc": '#include "coordinator/core/plan.h"\n',
    "coordinator/policies/guard.h": '#include "coordinator/core/plan.h"\n',
    "coordinator/wire/mask.cc": '#include "coordinator/core/plan.h"\n',
    "tests/wire/proto_test.cc": '#include "coordinator/wire/control.pb.h"\n',
    "coordinator/transport/mpi/gather.cc": "#include <mpi.h>\n#include <unistd.h>\n",
    "coordinator/runtime/loop.cc": '#include "coordinator/core/plan.h"\n',
    "metrics/http/http_server.cc": '#include <boost/asio.hpp>\n#include "coordinator/core/plan.h"\n',
    "metrics/analysis/findings/rules.cc": "#include <fmt/format.h>\n",
    "sdk/include/coxswain/session.h": "#include <ATen/core/Tensor.h>\n",
    "sdk/src/session/session.cc": "#include <coxswain/session.h>\n#include <torch/torch.h>\n",
    "tests/core/helper.h": "#pragma once\n",
    "tests/core/plan_test.cc": '#include "helper.h"\n#include <doctest/doctest.h>\n',
}

LOOP = '"coordinator/runtime/loop.h"'
MASK = '"coordinator/wire/mask.h"'
LOOPBACK = '"coordinator/testing/loopback.h"'
SEAM = '"coordinator/transport/seam.h"'
REPLAY = '"coordinator/tools/replay.h"'
SERVER = '"metrics/server.h"'
SESSION = "<coxswain/session.h>"

BAD_INCLUDES = {
    "core takes nothing from policies": ("coordinator/core/a.cc", '"coordinator/policies/guard.h"'),
    "core takes nothing from POSIX": ("coordinator/core/a.cc", "<unistd.h>"),
    "policies take nothing from wire": ("coordinator/policies/a.cc", MASK),
    "wire takes nothing from transport": ("coordinator/wire/a.cc", SEAM),
    "transport takes nothing from wire": ("coordinator/transport/a.cc", MASK),
    "runtime takes nothing from tools": ("coordinator/runtime/a.cc", REPLAY),
    "no program takes anything from testing": ("coordinator/runtime/a.cc", LOOPBACK),
    "the SDK takes nothing from testing": ("sdk/src/session/a.cc", LOOPBACK),
    "the coordinator takes nothing from metrics": ("coordinator/runtime/a.cc", SERVER),
    "the coordinator takes nothing from the SDK": ("coordinator/runtime/a.cc", SESSION),
    "metrics take nothing from runtime": ("metrics/a.cc", LOOP),
    "torch stays in the SDK": ("metrics/a.cc", "<torch/torch.h>"),
    "ATen stays in the SDK": ("coordinator/runtime/a.cc", "<ATen/core/Tensor.h>"),
    "a public header takes a Tensor and no more": ("sdk/include/coxswain/a.h", "<torch/torch.h>"),
    "a public header takes nothing from sdk/src": (
        "sdk/include/coxswain/a.h",
        '"sdk/src/session/impl.h"',
    ),
    "a public header takes nothing from runtime": (
        "sdk/include/coxswain/a.h",
        LOOP,
    ),
    "mpi.h stays in the mpi transport": ("coordinator/transport/solo.cc", "<mpi.h>"),
    "mpi.h is not for the SDK": ("sdk/src/session/a.cc", "<mpi.h>"),
    "protobuf stays in the tests of wire": ("coordinator/runtime/a.cc", "<google/protobuf/message.h>"),
    "generated protobuf code stays there": ("coordinator/runtime/a.cc", '"control.pb.h"'),
    "prometheus stays in the collectable": ("metrics/a.cc", "<prometheus/counter.h>"),
    "Boost stays in the HTTP server": ("metrics/routes.cc", "<boost/asio.hpp>"),
    "files are opened by io": ("metrics/a.cc", "<fstream>"),
    "fmt is not for the coordinator": ("coordinator/io/a.cc", "<fmt/format.h>"),
    "fmt is not for sdk/src, where LibTorch has its own": ("sdk/src/session/a.cc", "<fmt/core.h>"),
    "fmt is in no installed header": ("metrics/a.h", "<fmt/format.h>"),
    "doctest stays in tests": ("coordinator/core/a.cc", "<doctest/doctest.h>"),
    "an unknown library is asked about": ("metrics/a.cc", "<nlohmann/json.hpp>"),
    "a file that does not exist": ("coordinator/runtime/a.cc", '"coordinator/core/absent.h"'),
    "a test's helper that is not beside it": ("tests/wire/a.cc", '"helper.h"'),
    "paths in quotes start at the root": ("coordinator/core/a.cc", '"plan.h"'),
    "blocks take nothing from memory": ("sdk/src/blocks/a.cc", '"sdk/src/memory/tier.h"'),
    "blocks take nothing from precision": ("sdk/src/blocks/a.cc", '"sdk/src/precision/fp8.h"'),
    "parallel takes nothing from precision": ("sdk/src/parallel/a.cc", '"sdk/src/precision/fp8.h"'),
    "precision takes nothing from memory": ("sdk/src/precision/a.cc", '"sdk/src/memory/tier.h"'),
    "device takes nothing from blocks": ("sdk/src/device/a.cc", '"sdk/src/blocks/block.h"'),
    "checkpoint takes nothing from device": (
        "sdk/src/checkpoint/a.cc",
        '"sdk/src/device/scan.h"',
    ),
    "memory takes nothing from session": ("sdk/src/memory/a.cc", '"sdk/src/session/impl.h"'),
    "session takes nothing from training": ("sdk/src/session/a.cc", '"sdk/src/training/fit.h"'),
    "a room of the SDK that nobody knows": ("sdk/src/newcomer/a.cc", '"sdk/src/device/scan.h"'),
    "a folder that nobody knows": ("coordinator/newcomer/a.cc", '"coordinator/core/plan.h"'),
}

# Headers that the bad includes point to.
TARGETS = {
    path: "\n"
    for path in (
        "coordinator/wire/mask.h",
        "coordinator/testing/loopback.h",
        "coordinator/transport/seam.h",
        "coordinator/tools/replay.h",
        "coordinator/runtime/loop.h",
        "metrics/server.h",
        "sdk/src/session/impl.h",
        "sdk/src/memory/tier.h",
        "sdk/src/precision/fp8.h",
        "sdk/src/blocks/block.h",
        "sdk/src/device/scan.h",
        "sdk/src/training/fit.h",
    )
}


class Includes(unittest.TestCase):
    def test_a_good_tree_has_no_violations(self):
        self.assertEqual(include_violations(GOOD), [])

    def test_each_wrong_include_is_seen_and_named(self):
        for rule, (path, target) in BAD_INCLUDES.items():
            with self.subTest(rule):
                found = include_violations({**GOOD, **TARGETS, path: f"\n#include {target}\n"})
                self.assertEqual(len(found), 1, found)
                self.assertIn(f"{path}:2:", found[0])

    def test_an_include_with_odd_spaces_is_seen(self):
        found = include_violations({**GOOD, "coordinator/core/a.cc": "  #  include  <mpi.h>\n"})
        self.assertEqual(len(found), 1, found)

    def test_a_written_exception_lets_a_public_header_take_more(self):
        header = {"sdk/include/coxswain/wrap.h": "#include <torch/nn.h>\n"}
        line = {includes.EXCEPTIONS: "sdk/include/coxswain/wrap.h torch/nn.h  # a template\n"}
        self.assertEqual(len(include_violations({**GOOD, **header})), 1)
        self.assertEqual(include_violations({**GOOD, **header, **line}), [])

    def test_a_macro_in_a_public_header_is_seen(self):
        header = {"sdk/include/coxswain/a.h": "#pragma once\n#define COX_RUN(x) x\n"}
        found = include_violations({**GOOD, **header})
        self.assertEqual(len(found), 1, found)
        self.assertIn("COX_RUN", found[0])

    def test_torch_folders_on_the_command_line_of_the_coordinator_are_seen(self):
        with Tree(GOOD) as root:
            command = "c++ -isystem cache/torch/include -c x"
            files = ["coordinator/wire/mask.cc", "sdk/src/session/session.cc"]
            commands = [{"file": os.path.join(root, f), "command": command} for f in files]
            found = list(includes.visibility_violations(root, commands))
        self.assertEqual(len(found), 1, found)
        self.assertIn("coordinator/wire/mask.cc", found[0])


def lines(count):
    return "  step();\n" * count


class Lengths(unittest.TestCase):
    def assert_long_functions(self, text, expected):
        spans = lengths.functions(text)
        self.assertEqual(sum(last - first + 1 > 60 for first, last in spans), expected, spans)

    def test_a_function_of_sixty_lines_passes_and_one_more_fails(self):
        self.assert_long_functions("void f() {\n" + lines(58) + "}\n", 0)
        self.assert_long_functions("void f() {\n" + lines(59) + "}\n", 1)

    def test_a_method_a_constructor_and_a_test_case_are_functions(self):
        body = lines(70) + "}\n"
        self.assert_long_functions("class C {\n  int f() const {\n" + body + "};\n", 1)
        self.assert_long_functions("C::C(int a) : a_{a}, b_(2) {\n" + body, 1)
        self.assert_long_functions("C::C(int a) : a_{a} {\n" + body, 1)
        self.assert_long_functions('TEST_CASE("a { brace") {\n' + body, 1)

    def test_blocks_and_lambdas_belong_to_their_function(self):
        block = "  if (a) {\n" + lines(25) + "  }\n"
        self.assert_long_functions("void f() {\n" + block * 3 + "}\n", 1)
        self.assert_long_functions("void f() {\n  run([&] {\n" + lines(70) + "  });\n}\n", 1)

    def test_types_namespaces_suites_and_tables_are_no_functions(self):
        small = "  int f() { return 1; }\n" * 70
        openings = ("namespace a {", "class A : B {", "struct alignas(64) A {", 'TEST_SUITE("a") {')
        for opening in openings:
            self.assert_long_functions(opening + "\n" + small + "};\n", 0)
        self.assert_long_functions("constexpr int k[] = {\n" + "  1,\n" * 70 + "};\n", 0)

    def test_braces_in_literals_and_comments_do_not_count(self):
        odd = "  a = '{';  // {\n  b = \"{\\\"\"; /* { */\n  c = R\"(})\";\n  d = 1'000;\n"
        text = "void f() {\n" + odd + "}\nint g() { return 1; }\n"
        self.assertEqual(lengths.functions(text), [(1, 6), (7, 7)])

    def test_a_file_of_600_lines_passes_and_one_more_fails(self):
        self.assertEqual(length_violations({"metrics/a.h": "\n" * 600}), [])
        self.assertEqual(len(length_violations({"metrics/a.h": "\n" * 601})), 1)

    def test_marks_of_unfinished_work_and_machine_paths_are_seen(self):
        for line in ("// TO" + "DO: later", "// FIX" + "ME", "fail(\"not imple" + "mented\");"):
            self.assertEqual(len(length_violations({"metrics/a.cc": line + "\n"})), 1, line)
        for line in ('open("/ro' + 'ot/a.txt")', "see /wo" + "rk/notes"):
            self.assertEqual(len(length_violations({"docs/a.md": line + "\n"})), 1, line)
        self.assertEqual(length_violations({"docs/a.md": "see /usr/share/dictd, a/work/b, xxx\n"}), [])


def classes_in(first, second):
    header = "class Plan final : public Base {\n};\nstruct Plan::Impl {\n};\n"
    sources = {"metrics/plan.h": header, "metrics/a.cc": first, "metrics/b.cc": second}
    with Tree(sources) as root:
        return sorted(shape.split_classes(root))


class Shape(unittest.TestCase):
    def test_a_class_in_two_sources_is_seen(self):
        self.assertEqual(classes_in("void Plan::f() {}\n", "Plan::~Plan() {}\n"), ["Plan"])
        self.assertEqual(classes_in("Plan::Plan() {}\n", "std::map<A, B> Plan::f(int) {\n"), ["Plan"])
        self.assertEqual(classes_in("int Plan::Impl::f() {\n", "C* Plan::Impl::g() {\n"), ["Plan::Impl"])

    def test_calls_types_and_classes_of_one_source_are_none(self):
        self.assertEqual(classes_in("void Plan::f() {}\n", "  return Plan::of(2);\n"), [])
        self.assertEqual(classes_in("void Plan::f() {}\n", "Plan::Id id_of(int n) {\n"), [])
        self.assertEqual(classes_in("void Plan::f() {}\n", "void Plan::Impl::f() {\n"), [])
        self.assertEqual(classes_in("void Own::f() {}\n", "void Own::f() {}\n"), [])
        self.assertEqual(classes_in("void Plan::f() {}\n", "// Plan::f() and\nvoid detail::f() {\n"), [])

    def test_rooms_that_include_each_other_through_others_are_seen(self):
        use = '#include "metrics/%s.h"\n'
        straight = {"metrics/a.h": "", "metrics/b.h": use % "a", "metrics/c.h": use % "b", "metrics/c.cc": use % "a"}
        with Tree(straight) as root:
            self.assertEqual(shape.circles(root), set())
        with Tree({**straight, "metrics/a.cc": use % "a" + use % "c"}) as root:
            self.assertEqual(shape.circles(root), {frozenset({"metrics/a", "metrics/b", "metrics/c"})})

    def test_a_header_for_one_file_beside_it_is_seen(self):
        use = '#include "metrics/a.h"\n'
        alone = {"metrics/a.h": "", "metrics/a.cc": use, "metrics/b.cc": use}
        for more, expected in (
            ({}, [("metrics/a.h", "metrics/b.cc")]),
            ({"metrics/c.h": use, "metrics/c.cc": '#include "metrics/c.h"\n'}, []),
            ({"metrics/b.cc": "", "sdk/src/session/b.cc": use}, []),
        ):
            with Tree({**alone, **more}) as root:
                self.assertEqual(list(shape.one_user_headers(root)), expected)


def class_rows(text):
    return [(row.name, row.functions, row.fields) for row in classes.classes(text)]


def class_violations(text, known):
    with Tree({"sdk/src/session/a.h": text, "metrics/b.h": MANY_FIELDS}) as root:
        return list(classes.violations(root, known))


MANY_FIELDS = "class Plan {\n" + "".join(f"  int field{i}_ = 0;\n" for i in range(16)) + "};\n"
MANY_FUNCTIONS = "class Plan {\n public:\n" + "".join(f"  void f{i}();\n" for i in range(16)) + " private:\n  int a_;\n};\n"


class Classes(unittest.TestCase):
    def test_public_functions_and_fields_are_told_apart(self):
        for member, functions, fields in (
            ("void f();", 1, 0),
            ("void f() const { g(); }", 1, 0),
            ("static Result<A> of(int a = f(), B b = {});", 1, 0),
            ("template <class T = int> auto f(T&& t) -> A<B<T>> {}", 1, 0),
            ("[[nodiscard]] bool f() const noexcept override;", 1, 0),
            ("virtual void f() = 0;", 1, 0),
            ("void f() noexcept try { g(); } catch (const A& a) { h(); }", 1, 0),
            ("const A& f() const;\n A& f();", 2, 0),
            ("void keep(std::shared_ptr<const Table> operators);", 1, 0),
            ("int a_ = f(1);", 0, 1),
            ("int a_ = f(1, 2), b_ = 1;", 0, 2),
            ("std::map<int, std::pair<A, B>> a_{f(), {1, 2}};", 0, 1),
            ("const std::function<void(A, B)> a_;", 0, 1),
            ("std::function<A()> a_ = [this] { return f(); };", 0, 1),
            ("std::array<A, kMost> a_{};\n char b_[64] = {};", 0, 2),
            ("struct sigaction former[2]{};", 0, 1),
            ("alignas(64) std::atomic<bool> a_{false};", 0, 1),
            ("void (*a_)(int) = nullptr;", 0, 1),
        ):
            with self.subTest(member):
                text = "class C {\n public:\n " + member + "\n private:\n void own();\n};"
                self.assertEqual(class_rows(text), [("C", functions, fields)])

    def test_what_is_no_job_of_a_class_is_left_out(self):
        for member in (
            "C();",
            "explicit C(A a) : a_{a}, b_(f()) { g(); }",
            "~C();",
            "C(const C&) = delete;",
            "void f() = delete;",
            "C& operator=(C&& other) noexcept { return *this; }",
            "friend bool operator==(const C&, const C&) = default;",
            "bool operator<(const C& other) const { return a_ < other.a_; }",
            "explicit operator bool() const;",
            "friend class D;",
            "using A = B<int>;\n using D::f;",
            "enum class Kind : bool { a, b };",
            "class Inner;",
            "static constexpr std::size_t kMost = f(3);",
            "static_assert(sizeof(int) == 4);",
        ):
            with self.subTest(member):
                text = "class C final : public B<int>, private D {\n public:\n " + member + "\n private:\n void own();\n};"
                self.assertEqual(class_rows(text), [("C", 0, 0)])

    def test_private_members_are_fields_but_no_public_functions(self):
        self.assertEqual(class_rows("class C {\n  int a_;\n void f();\n protected:\n  int b_;\n void g();\n};"), [("C", 0, 2)])
        self.assertEqual(class_rows("struct C {\n  void f();\n private:\n  int a_;\n};"), [("C", 1, 1)])

    def test_plain_values_are_left_out(self):
        self.assertEqual(class_rows("struct A {\n  int a = 0;\n  bool has(int b) const { return a == b; }\n};"), [])
        self.assertEqual(class_rows("struct A {\n  explicit A(int a);\n  int a;\n};"), [("A", 0, 1)])
        self.assertEqual(class_rows("class A {\n public:\n  virtual void f() = 0;\n};"), [("A", 1, 0)])
        self.assertEqual(class_rows("enum class A { a };\nclass B;\nvoid f() { class C { int a; }; }"), [])

    def test_classes_are_found_wherever_they_stand(self):
        inner = "class A {\n  int a;\n class B { int b; int c; };\n};\n"
        rows = [("A", 0, 1), ("A::B", 0, 2)]
        self.assertEqual(class_rows("namespace a::b {\nnamespace {\n" + inner + "}\n}\n"), rows)
        self.assertEqual(class_rows("void f() {\n if (a) { b(); }\n}\nint g = 1;\n" + inner), rows)
        self.assertEqual(class_rows("#define A {\n// class Z {\n" + inner), rows)
        self.assertEqual(class_rows("struct A::B {\n B();\n int a;\n};\ntemplate <class T>\nclass C<T*> { T a; };"),
                         [("A::B", 0, 1), ("C", 0, 1)])

    def test_a_class_with_too_much_is_seen_in_the_sdk_only(self):
        for text, what in ((MANY_FIELDS, "16"), (MANY_FUNCTIONS, "16")):
            found = class_violations(text, {})
            self.assertEqual(len(found), 1, found)
            self.assertIn("sdk/src/session/a.h: Plan: expected at most 15", found[0])
            self.assertIn(what, found[0])
        self.assertEqual(class_violations(MANY_FIELDS.replace("  int field0_ = 0;\n", ""), {}), [])

    def test_a_known_class_may_only_become_smaller(self):
        self.assertEqual(class_violations(MANY_FIELDS, {"Plan": {"fields": 16}}), [])
        for known in ({"Plan": {"fields": 17}}, {"Plan": {"functions": 16, "fields": 16}}, {"Plan": {"fields": 16}, "Gone": {}}):
            self.assertEqual(len(class_violations(MANY_FIELDS, known)), 1, known)
        grown = MANY_FIELDS.replace("};", "  int more_;\n};")
        self.assertEqual(len(class_violations(grown, {"Plan": {"fields": 16}})), 1)


class Writers(unittest.TestCase):
    def found(self, line, path="metrics/records/store.cc"):
        with Tree({path: line + "\n"}) as root:
            return len(list(writers.violations(root)))

    def test_a_file_that_is_opened_for_writing_elsewhere_is_seen(self):
        for line in (
            "int f = ::open(path, O_WRONLY | O_NOFOLLOW);",
            "std::ofstream out(path);",
            "std::fstream both(path);",
            'FILE* f = fopen(path, "r");',
            "::truncate(path, 0);",
            "fs::resize_file(path, 0);",
            "fs::copy_file(from, to);",
            "int f = mkstemp(name);",
        ):
            self.assertEqual(self.found(line), 1, line)

    def test_reading_and_open_files_and_words_are_none(self):
        for line in (
            "int f = ::open(path, O_RDONLY | O_CLOEXEC);",
            "#include <fstream>",
            "std::ifstream in(path);",
            "::ftruncate(descriptor, 0);",
            "// O_CREAT would follow a link",
        ):
            self.assertEqual(self.found(line), 0, line)

    def test_the_one_place_and_tests_may(self):
        self.assertEqual(self.found("f(O_CREAT);", "coordinator/io/open_to_write.cc"), 0)
        self.assertEqual(self.found("f(O_CREAT);", "tests/io/file_test.cc"), 0)


class Locales(unittest.TestCase):
    def test_calls_that_depend_on_the_locale_are_seen_in_libraries(self):
        for call in ("std::snprintf(a, 3, b)", "std::stod(text)", "std::ostringstream out", "std::tolower(c)",
                     "std::strerror(errno)", "std::generic_category().message(1)", "strtod(a, &b)"):
            for path, count in (("metrics/a.cc", 1), ("sdk/examples/a.cc", 0), ("tests/a.cc", 0)):
                with Tree({path: f"void f() {{ {call}; }}  // printf(\n"}) as root:
                    self.assertEqual(len(list(locales.violations(root))), count, (path, call))

    def test_what_does_not_depend_on_it_is_left_alone(self):
        text = "void f() { loss_sentence(a); fmt::format(b); concat(d); std::from_chars(c, d, e); is_digit(f); std::fputs(g, h); }\n"
        with Tree({"metrics/a.cc": text}) as root:
            self.assertEqual(list(locales.violations(root)), [])

    def test_a_printf_of_our_own_is_seen_in_libraries(self):
        for text in ('return cox::sentence("%d", a);', "std::string sentence(const char* format, ...);",
                     "[[gnu::format(printf, 1, 2)]] std::string said(const char*, ...);", "va_start(list, format);"):
            for path, count in (("coordinator/core/text.h", 1), ("metrics/a.cc", 1), ("sdk/src/a.cc", 1), ("tests/a.cc", 0)):
                with Tree({path: f"{text}  // sentence(\n"}) as root:
                    self.assertEqual(len(list(locales.violations(root))), count, (path, text))


class Prose(unittest.TestCase):
    def test_comments_that_open_without_a_subject_are_seen_one_for_each_block(self):
        text = ("// What a reader asks.\n// Which is not the opening.\nint a;  // of a plan\nint b;  // Of a mask\n"
                '  // Returns b. It is plain.\nconst char* c = "x // Nobody";\n\n// They\n')
        with Tree({"metrics/a.h": text}) as root:
            lines = [found.split(":")[1] for found in prose.violations(root)]
        self.assertEqual(lines, ["1", "4", "8"])


class Alone(unittest.TestCase):
    def compile_alone(self, sources, files):
        """What alone.py prints about files of a unity build with these sources."""
        with Tree(sources) as root:
            unity = os.path.join(root, "build/Unity/unity_0_cxx.cxx")
            os.makedirs(os.path.dirname(unity))
            with open(unity, "w", encoding="utf-8") as file:
                file.writelines(f'#include "{os.path.join(root, path)}"\n' for path in sources if path.endswith(".cc"))
            command = f"ccache /usr/bin/c++ -I{root} -o unity.o -c {unity}"
            entry = {"directory": root, "file": unity, "command": command}
            with open(os.path.join(root, "build/compile_commands.json"), "w", encoding="utf-8") as file:
                json.dump([entry], file)
            arguments = ["alone.py", root, os.path.join(root, "build"), *files]
            with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stdout(io.StringIO()) as out:
                code = alone.main()
            return code, out.getvalue()

    def test_what_a_unity_neighbour_brings_is_seen(self):
        sources = {"metrics/a.cc": "int a() { return 1; }\n", "metrics/b.cc": "int b() { return a(); }\n"}
        self.assertEqual(self.compile_alone(sources, ["metrics/a.cc"])[0], 0)
        code, text = self.compile_alone(sources, list(sources))
        self.assertEqual(code, 1)
        self.assertIn("metrics/b.cc: does not compile alone", text)
        self.assertIn("2 files compiled alone, 1 failed", text)

    def test_a_header_that_needs_another_one_is_seen(self):
        sources = {"metrics/a.h": "struct A { int value; };\n", "metrics/b.h": "A of();\n", "metrics/a.cc": ""}
        self.assertEqual(self.compile_alone(sources, ["metrics/a.h"])[0], 0)
        self.assertEqual(self.compile_alone(sources, ["metrics/b.h"])[0], 1)


if __name__ == "__main__":
    unittest.main()
