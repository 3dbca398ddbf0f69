#include "sdk/src/parallel/agreement.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "coordinator/transport/wait.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"

namespace cox::detail {
namespace {

Status finish(transport::Communicator& communicator, Result<transport::Request> request) {
  const auto policy =
      transport::wait_policy(communicator.ranks_on_node(), transport::usable_cores());
  return transport::finish(communicator, std::move(request), policy);
}

struct Verdict {
  std::int32_t code = 0;
  char message[508] = {};
};

constexpr std::size_t kMostNamed = 8;

const char* name_of(CallKind kind) {
  switch (kind) {
    case CallKind::sync_parameters:
      return "sync_parameters";
    case CallKind::sync_buffers:
      return "sync_buffers";
    case CallKind::all_reduce_gradients:
      return "all_reduce_gradients";
    case CallKind::close:
      return "close";
    case CallKind::refused:
      return "a call that was refused";
  }
  return "a call of another version";
}

std::string text_of(const CallMark& mark) {
  const std::string name = name_of(mark.kind);
  const bool has_tensors = mark.kind != CallKind::close && mark.kind != CallKind::refused;
  return has_tensors ? name + " of " + std::to_string(mark.tensors) + " tensors" : name;
}

bool differ_in_layout_only(const CallMark& a, const CallMark& b) {
  return a.kind == b.kind && a.tensors == b.tensors;
}

}  // namespace

Result<std::vector<std::uint64_t>> gather_numbers(transport::Communicator& communicator,
                                                  std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  Status gathered =
      finish(communicator,
             communicator.start_all_gather(std::as_bytes(std::span<const std::uint64_t>(&mine, 1)),
                                           std::as_writable_bytes(std::span<std::uint64_t>(all))));
  if (!gathered.ok()) return gathered;
  return all;
}

Status agree_on_status(transport::Communicator& communicator, const Status& mine) {
  Verdict verdict;
  verdict.code = static_cast<std::int32_t>(mine.code());
  std::snprintf(verdict.message, sizeof(verdict.message), "%s", mine.message().c_str());
  std::vector<Verdict> all(static_cast<std::size_t>(communicator.size()));
  Status gathered = finish(communicator, communicator.start_all_gather(
                                             std::as_bytes(std::span<const Verdict>(&verdict, 1)),
                                             std::as_writable_bytes(std::span<Verdict>(all))));
  if (!gathered.ok()) return gathered;
  const auto is_ok = [](const Verdict& each) { return each.code == 0; };
  const auto first = std::find_if_not(all.begin(), all.end(), is_ok);
  if (first == all.end()) return ok_status();
  const bool is_everywhere = std::all_of(all.begin(), all.end(), [&](const Verdict& each) {
    return std::strcmp(each.message, first->message) == 0;
  });
  const std::string where = "rank " + std::to_string(first - all.begin()) + ": ";
  return Status(static_cast<StatusCode>(first->code),
                (is_everywhere ? "" : where) + first->message);
}

std::string ranks_that_differ(const std::vector<std::uint64_t>& numbers) {
  std::string ranks;
  for (std::size_t r = 1; r < numbers.size(); ++r) {
    if (numbers[r] == numbers[0]) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  }
  return ranks;
}

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

CallMark mark_of(CallKind kind, const std::vector<at::Tensor>& tensors) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& tensor : tensors) {
    named.push_back({tensor.requires_grad() ? "with gradient" : "without", tensor});
  }
  return {kind, tensors.size(), fingerprint(named), 0};
}

Status check_matched(const std::vector<CallMark>& marks) {
  std::string others;
  std::size_t count = 0;
  for (std::size_t rank = 1; rank < marks.size(); ++rank) {
    if (marks[rank] == marks[0] || ++count > kMostNamed) continue;
    others += ", " + text_of(marks[rank]) +
              (differ_in_layout_only(marks[rank], marks[0]) ? " of other tensors" : "") +
              " on rank " + std::to_string(rank);
  }
  if (count == 0) return ok_status();
  if (count > kMostNamed)
    others += " and others on " + std::to_string(count - kMostNamed) + " more";
  return invalid_argument("expected the same call with the same tensors on all ranks, found " +
                          text_of(marks[0]) + " on rank 0" + others +
                          "; ranks must take the same way through the loop, those without samples "
                          "with weight 0");
}

Status match_calls(transport::Communicator& ranks, const transport::WaitPolicy& wait,
                   const CallMark& mine) {
  if (ranks.size() == 1) return ok_status();
  std::vector<CallMark> all(static_cast<std::size_t>(ranks.size()));
  Status gathered =
      transport::finish(ranks,
                        ranks.start_all_gather(std::as_bytes(std::span<const CallMark>(&mine, 1)),
                                               std::as_writable_bytes(std::span<CallMark>(all))),
                        wait);
  return gathered.ok() ? check_matched(all) : gathered;
}

}  // namespace cox::detail
