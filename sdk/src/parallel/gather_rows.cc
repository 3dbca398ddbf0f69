#include "sdk/src/parallel/gather_rows.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/start_equal.h"

namespace cox::detail {

// MPI gathers equal parts: all rows travel as long as the longest.
Result<std::vector<Row>> gather_rows(transport::Communicator& ranks, Row mine, const char* what) {
  const auto sizes = gather_numbers(ranks, mine.size());
  if (!sizes.ok()) return sizes.status();
  mine.resize(std::max<std::size_t>(1, *std::max_element(sizes->begin(), sizes->end())));
  const bool is_root = ranks.rank() == kRoot;
  Row all(is_root ? sizes->size() * mine.size() : 0);
  const Status gathered = transport::finish(
      ranks,
      ranks.start_gather(std::as_bytes(std::span<const std::int64_t>(mine)),
                         std::as_writable_bytes(std::span<std::int64_t>(all)), kRoot),
      transport::with_timeout(
          transport::wait_policy(ranks.ranks_on_node(), transport::usable_cores()),
          std::chrono::minutes(10), what));
  if (!gathered.ok()) return gathered;
  std::vector<Row> rows;
  for (std::size_t r = 0; is_root && r < sizes->size(); ++r) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * mine.size());
    rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>((*sizes)[r]));
  }
  return rows;
}

}  // namespace cox::detail
