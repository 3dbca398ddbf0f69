// A program that uses the core alone: a configuration mistake becomes a sentence.
#include <coordinator/core/status.h>

#include <cstdio>

#include "coordinator/core/plan.h"

int main() {
  const cox::Status status =
      cox::invalid_argument("expected 1 to 8, found 9").with_context("ranks");
  std::printf("%s\n", status.text().c_str());
  std::printf("%s\n", cox::Plan() == cox::Plan() ? "ok" : "not ok");
  return status.ok() ? 1 : 0;
}
