// Meeting: the shared memory in which the ranks of one fake communicator meet, be they threads or
// processes of this machine. Its name travels in the unique id. Ranks pass barriers in the same
// order; before the first barrier of a collective each writes down what it calls, behind it all
// compare.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace cox::test {

inline constexpr int kMostRanks = 16;
inline constexpr std::size_t kSlotBytes = std::size_t{64} << 10;  // of a rank's data at a time

// What a rank calls, as far as it must be equal everywhere.
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
  // Opens the memory of this name, or makes it. Returns null when there can be none, or when
  // another rank came with another number of ranks.
  static std::unique_ptr<Meeting> open(const std::string& name, int ranks, int rank);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Waits until every rank has come to as many barriers as this one, or `gives_up` is true. Returns
  // whether all came.
  bool barrier(const std::function<bool()>& gives_up);

  // Writes down this rank's call number `op`, before a barrier; reads another rank's behind it.
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
