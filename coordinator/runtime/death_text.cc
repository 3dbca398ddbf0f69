// The texts of the watching process: reads how a rank ended, and writes the lines about the end.
#include <sys/wait.h>

#include <csignal>

#include "coordinator/runtime/death_watch.h"
#include "coordinator/runtime/forked_text.h"

namespace cox::runtime {
namespace {

// Returns a field of /proc/PID/stat by its number in proc(5), from 3 on. The name before field 3
// may contain any characters.
std::string_view stat_field(std::string_view line, int number) {
  std::size_t begin = line.size();
  while (begin > 0 && line[begin - 1] != ')') --begin;
  if (begin == 0 || begin == line.size()) return {};
  ++begin;
  for (int i = 3; i < number; ++i) {
    const std::size_t blank = place_of(" ", {line.data() + begin, line.size() - begin});
    if (blank == kNowhere) return {};
    begin += blank + 1;
  }
  std::size_t end = begin;
  while (end < line.size() && line[end] != ' ' && line[end] != '\n') ++end;
  return {line.data() + begin, end - begin};
}

struct SignalWords {
  int signal;
  std::string_view words;
};
constexpr SignalWords kSignals[] = {
    {SIGKILL, "SIGKILL: by a user, the launcher, or the kernel when memory ran out"},
    {SIGSEGV, "SIGSEGV: access to memory outside the process"},
    {SIGABRT, "SIGABRT: abort(), or an uncaught exception"},
    {SIGBUS, "SIGBUS: a mapped file was cut, or its disk is full"},
    {SIGFPE, "SIGFPE: a whole number divided by 0"},
    {SIGILL, "SIGILL: an instruction that this processor does not have"},
    {SIGTERM, "SIGTERM: asked to end"},
    {SIGINT, "SIGINT: Ctrl-C"},
    {SIGXCPU, "SIGXCPU: the limit on CPU seconds, ulimit -t"},
    {SIGXFSZ, "SIGXFSZ: the limit on file sizes, ulimit -f"},
};

std::string_view signal_words(int signal) {
  for (const SignalWords& each : kSignals) {
    if (each.signal == signal) return each.words;
  }
  return "see signal(7)";
}

void write_signal(int signal, std::uint64_t most_cpu_seconds, Text& text) {
  text << "killed by signal " << signal << " (" << signal_words(signal);
  if (signal == SIGKILL && most_cpu_seconds > 0)
    text << ", or beyond its " << most_cpu_seconds << " CPU seconds, ulimit -t";
  text << ")";
}

void write_how(const RankEnd& end, Text& text) {
  if (!end.code) {
    text << "the cause is not known";
  } else if (WIFSIGNALED(*end.code)) {
    write_signal(WTERMSIG(*end.code), end.most_cpu_seconds, text);
  } else {
    text << "exit code " << WEXITSTATUS(*end.code) << ", without Session::finish()";
  }
}

// Indexed by activity. A step follows.
constexpr std::string_view kPhaseWords[kActivities] = {"",
                                                       "was outside of a step, after step ",
                                                       "was in data of step ",
                                                       "was in forward of step ",
                                                       "was in backward of step ",
                                                       "was in compute of step ",
                                                       "waited for other ranks in step ",
                                                       "was in optimizer of step ",
                                                       "was in none of the phases of step ",
                                                       "was in the coordinator's work in step ",
                                                       "saved after step ",
                                                       "had left its loop, after step ",
                                                       "evaluated after step ",
                                                       "was between two epochs, after step "};

void write_where(const RankMark& mark, Text& text) {
  if (mark.activity == Activity::unknown) return void(text << "it had begun no step");
  const double seconds = mark.activity_seconds < 1e9 ? mark.activity_seconds : 1e9;
  const auto tenths = static_cast<std::uint64_t>(seconds * 10);
  text << "it " << kPhaseWords[static_cast<std::size_t>(mark.activity)] << mark.step.value()
       << " for " << tenths / 10 << "." << tenths % 10 << " s";
}

}  // namespace

std::optional<std::int32_t> parse_exit_code(std::string_view stat_line) {
  constexpr int kExitCode = 52;
  const std::string_view state = stat_field(stat_line, 3);
  if (state.size() != 1 || place_of(state, "ZXx") == kNowhere) return std::nullopt;
  return number_from<std::int32_t>(stat_field(stat_line, kExitCode));
}

std::string_view write_death(const RankEnd& end, std::string_view host, std::int32_t process,
                             std::span<char> to) {
  Text text(to);
  text << "rank " << end.mark.rank.value() << " on " << host << " (process " << process
       << ") ended before its loop did: ";
  write_how(end, text);
  text << "; ";
  write_where(end.mark, text);
  return text.view();
}

}  // namespace cox::runtime
