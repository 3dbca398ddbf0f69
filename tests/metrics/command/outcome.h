// What a run of the real `cox` program came to, as people run it.
#pragma once

#include <string>

namespace cox::test {

struct Outcome {
  int exit_code = -1;  // -1: it did not end by itself
  std::string output;  // stdout and stderr
  long lines() const;
  bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

// `arguments`: as in a shell.
Outcome run_cox(const std::string& arguments);

}  // namespace cox::test
