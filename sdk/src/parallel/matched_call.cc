#include "sdk/src/parallel/matched_call.h"

#include <span>
#include <string>

#include "sdk/src/checkpoint/checkpoint_folder.h"

namespace cox::detail {
namespace {

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

bool differ_in_layout_only(const CallMark& a, const CallMark& b) {
  return a.kind == b.kind && a.tensors == b.tensors;
}

}  // namespace

CallMark mark_of(CallKind kind, const std::vector<at::Tensor>& tensors) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& tensor : tensors) {
    named.push_back({tensor.requires_grad() ? "with gradient" : "without", tensor});
  }
  return {kind, tensors.size(), fingerprint(named), 0};
}

std::string text_of(const CallMark& mark) {
  const std::string name = name_of(mark.kind);
  const bool has_tensors = mark.kind != CallKind::close && mark.kind != CallKind::refused;
  return has_tensors ? name + " of " + std::to_string(mark.tensors) + " tensors" : name;
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
