#include "tests/metrics/command/outcome.h"

#include <stdio.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>

namespace cox::test {

long Outcome::lines() const {
  return std::count(output.begin(), output.end(), '\n');
}

Outcome run_cox(const std::string& arguments) {
  Outcome outcome;
  const std::string command = std::string("'") + COX_PROGRAM + "' " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> bytes{};
  while (const std::size_t count = ::fread(bytes.data(), 1, bytes.size(), pipe)) {
    outcome.output.append(bytes.data(), count);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace cox::test
