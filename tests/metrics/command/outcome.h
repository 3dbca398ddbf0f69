// Runs the real `cox` program as users run it.
#pragma once

#include <string>

namespace cox::test {

struct Outcome {
  int exit_code = -1;  // -1: killed
  std::string output;  // stdout and stderr
  long lines() const;
  bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

// Runs `cox` with `arguments`, quoted as in a shell.
Outcome run_cox(const std::string& arguments);

}  // namespace cox::test
