// main() of a benchmark with a session: starts the session, does the work, finishes, and reports
// exceptions.
#pragma once

#include <functional>

#include "coxswain/session.h"

namespace cox::bench {

// Returns the exit code.
int session_main(int argc, char** argv, SessionOptions options,
                 const std::function<void(Session&)>& work);

}  // namespace cox::bench
