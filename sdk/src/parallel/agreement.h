// Agreements of ranks outside of the gradients: one outcome for all ranks, a value from each, rows
// of numbers, and whether all are about to make the same call. Before the first step the ranks
// compare their tensors and copy rank 0's values. Later, BufferSync keeps buffers equal that steps
// change (running statistics of batch normalisation). Collective; waits by polling. Training
// thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/arrival.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

// Returns the wait policy of ranks that share this node.
inline transport::WaitPolicy wait_policy_of(const transport::Communicator& ranks) {
  return transport::wait_policy(ranks.ranks_on_node(), transport::usable_cores());
}

// Work between the polls of a wait for other ranks; empty: none. An exception ends the wait, as for
// a rank that has left. Memory that others may still write to is then leaked.
using BetweenPolls = std::function<void()>;

// Waits for an operation on `memory`, which stays allocated if an exception ends the wait.
template <class Memory>
Status attend(transport::Communicator& ranks, Result<transport::Request> started,
              std::unique_ptr<Memory>& memory, const BetweenPolls& pump) {
  if (!started.ok()) return started.status();
  const transport::WaitPolicy policy = wait_policy_of(ranks);
  try {
    return transport::wait_with(ranks, *started, policy, [&pump] {
      if (pump) pump();
    });
  } catch (...) {
    static_cast<void>(memory.release());
    throw;
  }
}

// Gathers one value from every rank, as its bytes. Every rank gets one entry for each rank.
template <class T>
Result<std::vector<T>> gather_values(transport::Communicator& ranks, const T& mine,
                                     const BetweenPolls& pump = {}) {
  struct Values {
    T mine;
    std::vector<T> all;
  };
  auto values = std::make_unique<Values>(
      Values{mine, std::vector<T>(static_cast<std::size_t>(ranks.size()))});
  auto started = ranks.start_all_gather(std::as_bytes(std::span(&values->mine, 1)),
                                        std::as_writable_bytes(std::span(values->all)));
  const Status gathered = attend(ranks, std::move(started), values, pump);
  if (!gathered.ok()) return gathered;
  return std::move(values->all);
}

// Replaces each value by its reduction over all ranks.
Status reduce_bytes(transport::Communicator& ranks, std::span<std::byte> bytes,
                    const transport::Reduction& reduction, const BetweenPolls& pump);
template <class T>
Status reduce_values(transport::Communicator& ranks, std::span<T> values,
                     const transport::Reduction& reduction, const BetweenPolls& pump = {}) {
  return reduce_bytes(ranks, std::as_writable_bytes(values), reduction, pump);
}

// Copies rank `from`'s bytes to all ranks. All spans have one size.
Status broadcast(transport::Communicator& ranks, std::span<std::byte> bytes, RankId from,
                 const BetweenPolls& pump = {});

// Returns one outcome for all ranks: ok if every rank is ok, else the error of the lowest rank with
// one. The error names the rank, unless all ranks have the same error.
Status agree_on_status(transport::Communicator& ranks, const Status& mine,
                       const BetweenPolls& pump = {});

// Returns the text of the lowest rank with a text; the same on all ranks. Cuts texts of more than
// 500 bytes. Collective; empty on failure.
std::string first_text(transport::Communicator& ranks, const std::string& mine);

// Returns the ranks whose number differs from rank 0's, as "1, 3, 7"; empty if all agree. Pure.
std::string ranks_that_differ(const std::vector<std::uint64_t>& numbers);

// Longer rows are damaged, because gathered data is counted in blocks and ranks.
inline constexpr std::size_t kMostRowBytes = std::size_t{1} << 30;

// Gathers a row of any length from every rank: one row for each rank on rank `to`, nothing on the
// others. `what` names the awaited thing in the error after 10 minutes.
template <class T>
Result<std::vector<std::vector<T>>> gather_rows(transport::Communicator& ranks, std::vector<T> mine,
                                                const char* what, const BetweenPolls& pump = {},
                                                RankId to = kRoot) {
  const auto sizes = gather_values(ranks, mine.size(), pump);
  if (!sizes.ok()) return sizes.status();
  // MPI gathers equal parts, so all rows travel at the length of the longest.
  const std::size_t longest = std::max<std::size_t>(1, *std::ranges::max_element(*sizes));
  if (longest > kMostRowBytes / sizeof(T)) {
    return data_loss(what, ": expected rows of at most ", kMostRowBytes, " bytes, found one of ",
                     longest, " entries of ", sizeof(T));
  }
  mine.resize(longest);
  const bool takes = ranks.rank() == to;
  std::vector<T> all(takes ? sizes->size() * mine.size() : 0);
  const Status gathered = transport::finish(
      ranks,
      ranks.start_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)),
                         to),
      transport::with_timeout(wait_policy_of(ranks), std::chrono::minutes(10), what));
  if (!gathered.ok()) return gathered;
  std::vector<std::vector<T>> rows;
  for (std::size_t r = 0; takes && r < sizes->size(); ++r) {
    const auto row = std::span(all).subspan(r * mine.size(), (*sizes)[r]);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

// Returns the list with every tensor once: a parameter shared by two modules has one gradient.
std::vector<at::Tensor> each_once(std::vector<at::Tensor> tensors);

// Returns invalid_argument on every rank if tensors differ from rank 0's in number, shape, type or
// order. The error names the ranks.
Status check_equal_layout(transport::Communicator& communicator,
                          const std::vector<at::Tensor>& parameters,
                          const std::vector<at::Tensor>& buffers);

// Overwrites the tensors in place with rank 0's bytes. REQUIRES: equal layouts.
Status broadcast_from_root(transport::Communicator& communicator,
                           const std::vector<at::Tensor>& tensors);

// BufferSync gives all ranks the buffers of the lowest rank with samples. A buffer counts as
// changed if its version has moved, so models without changing buffers send nothing.
class BufferSync {
 public:
  explicit BufferSync(std::vector<at::Tensor> buffers);

  // Returns this rank's contribution to StepBallot::buffers_from_min.
  std::uint64_t vote(RankId rank) const;
  // Copies the buffers of rank `from`, from the merged ballot, to all ranks; ~0: no rank's buffers
  // changed. Never blocks on a device: rank `from` polls until its buffers have arrived.
  Status follow(std::uint64_t from, transport::Communicator& ranks, const BetweenPolls& pump = {});

 private:
  std::uint64_t versions() const;

  std::vector<at::Tensor> buffers_;
  std::uint64_t seen_ = 0;
};

enum class CallKind : std::uint64_t {
  sync_parameters,
  sync_buffers,
  all_reduce_gradients,
  close,
  refused,  // this rank's arguments were wrong; it joins only to tell the others
};

// CallMark describes a collective call for comparison: the kind, the number of tensors, and each
// tensor's shape, type and need of a gradient, in order.
struct CallMark {
  CallKind kind = CallKind::close;
  std::uint64_t tensors = 0;
  std::uint64_t layout = 0;
  std::uint64_t place = 0;  // same tensors' place among earlier calls; 0: unimportant
  friend bool operator==(const CallMark&, const CallMark&) = default;
};
CallMark mark_of(CallKind kind, const std::vector<at::Tensor>& tensors);

// Returns invalid_argument with the same text on every rank unless all marks are equal. The text
// names the calls of rank 0 and of each rank that differs. Pure.
Status check_matched(const std::vector<CallMark>& marks);
// Shows all ranks this rank's next call, before the call starts anything that depends on its size.
// Ranks that differ get an error with names, instead of a deadlock or mixed numbers. Returns when
// the last rank has arrived; `arrival` is this rank's time of arrival. Calls `pump` between polls;
// an exception from `pump` ends the wait.
Result<ArrivalStamp> match_calls(transport::Communicator& ranks, const CallMark& mine,
                                 const ArrivalStamp& arrival, const BetweenPolls& pump);

}  // namespace cox::detail
