// Lets one of this program's calls for writing files fail: open, write, pread, fsync, close, mkdir,
// rename. One object at a time; any thread makes the calls.
#pragma once

namespace sdk_test {

class FailingCall {
 public:
  // Makes the call of this number fail from now on, counted from 1; 0 lets none fail.
  explicit FailingCall(int number);
  ~FailingCall();
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;

  // Returns the number of calls since the newest object was made.
  static int calls_made();
};

}  // namespace sdk_test
