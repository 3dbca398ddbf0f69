#include "tests/bench/session_main.h"

#include <exception>
#include <utility>

#include "coxswain/error.h"

namespace cox::bench {

int session_main(int argc, char** argv, SessionOptions options,
                 const std::function<void(Session&)>& work) {
  try {
    Session session = Session::start(argc, argv, std::move(options));
    work(session);
    session.finish();
    return 0;
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace cox::bench
