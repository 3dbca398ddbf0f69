// Lets one call fail of those by which this program writes files: open, write, pread, fsync, close,
// mkdir, rename. One at a time; any thread makes the calls.
#pragma once

namespace sdk_test {

class FailingCall {
 public:
  // The call of this number fails from now on, the first one is 1; 0 lets none fail.
  explicit FailingCall(int number);
  ~FailingCall();
  FailingCall(const FailingCall&) = delete;
  FailingCall& operator=(const FailingCall&) = delete;

  // Returns how many calls there were since the newest one was made.
  static int calls_made();
};

}  // namespace sdk_test
