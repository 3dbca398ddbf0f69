// Sessions of one rank without a status server, for tests.
#pragma once

#include <string>
#include <vector>

#include "coxswain/session.h"

inline cox::Session solo_session(const std::vector<std::string>& flags = {},
                                 cox::SessionOptions options = {}) {
  std::vector<const char*> argv = {"test", "--cox.http.enabled=off", "--cox.run.log=quiet"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  return cox::Session::start(static_cast<int>(argv.size()), argv.data(), std::move(options));
}
