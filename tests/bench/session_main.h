// main() of a benchmark that runs in a session: starts it, does the work, finishes it, and reports
// what was thrown.
#pragma once

#include <functional>

#include "coxswain/session.h"

namespace cox::bench {

// Returns the exit code.
int session_main(int argc, char** argv, SessionOptions options,
                 const std::function<void(Session&)>& work);

}  // namespace cox::bench
