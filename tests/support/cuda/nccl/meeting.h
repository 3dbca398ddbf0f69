// Meeting is the shared memory of one fake communicator, whose ranks are threads or processes of
// this machine. The unique id carries its name. Ranks pass barriers in the same order. Before the
// first barrier of a collective each rank declares its call; after the barrier all ranks compare
// the calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace cox::test {

inline constexpr int kMostRanks = 16;
inline constexpr std::size_t kSlotBytes = std::size_t{64} << 10;  // a rank's data at a time

// The parts of a call that must be equal on all ranks.
struct CollectiveCall {
  std::int32_t kind = 0;
  std::int32_t type = 0;
  std::int32_t operation = 0;
  std::int32_t root = 0;
  std::uint64_t count = 0;
  friend bool operator==(const CollectiveCall&, const CollectiveCall&) = default;
};
std::string describe(const CollectiveCall& call);

class Meeting {
 public:
  // Opens or makes the memory of this name. Returns null if the system refuses, or if another rank
  // has another number of ranks.
  static std::unique_ptr<Meeting> open(const std::string& name, int ranks, int rank);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Waits until every rank has reached as many barriers, or `gives_up` returns true. Returns
  // whether all ranks arrived.
  bool barrier(const std::function<bool()>& gives_up);

  // Declares this rank's call number `op` before a barrier; declared() reads another rank's call
  // after the barrier.
  void declare(std::uint64_t op, const CollectiveCall& call);
  CollectiveCall declared(std::uint64_t op, int rank) const;

  std::byte* slot(int rank);

 private:
  struct Shared;
  Meeting(Shared* shared, std::string name, int ranks, int rank);

  Shared* shared_;
  std::string name_;
  int ranks_;
  int rank_;
  std::uint64_t passed_ = 0;
};

}  // namespace cox::test
