#include "sdk/src/training/step_queue.h"

#include <string>

#include "coxswain/error.h"

namespace cox::detail {
namespace {

std::vector<std::int64_t> samples_of(const SamplePlan& plan, const StepShare& share) {
  return plan.indices(share.step.cursor, share.slice.first, share.slice.count);
}

}  // namespace

StepQueue::StepQueue(const Dataset& dataset, const SamplePlan& plan, std::size_t ahead)
    : dataset_(dataset), plan_(plan), ahead_(ahead) {
  if (ahead_ == 0) return;
  prefetcher_.emplace(
      [&dataset](std::span<const std::int64_t> indices) { return dataset.get(indices); },
      ahead_ + 1);
}

void StepQueue::fill(const ShareRequest& request) {
  while (planned_.size() < ahead_ + 1) {
    ShareRequest next = request;
    if (!planned_.empty()) next.cursor = planned_.back().share.step.next;
    const auto share = share_of(plan_, next);
    if (!share.ok()) throw Error(share.status());
    planned_.push_back({next.cursor, *share});
    if (prefetcher_) prefetcher_->request(next.cursor, samples_of(plan_, *share));
  }
}

Batch StepQueue::get(const Planned& planned) {
  Batch batch = prefetcher_ ? prefetcher_->take(planned.cursor)
                            : dataset_.get(samples_of(plan_, planned.share));
  const std::int64_t wanted = planned.share.slice.count;
  if (batch.samples == wanted) return batch;
  throw Error(failed_precondition(
      "Dataset::get: expected a batch of " + std::to_string(wanted) +
      " samples, one for each index, found Batch::samples = " + std::to_string(batch.samples)));
}

void StepQueue::forget() {
  planned_.clear();
  if (prefetcher_) prefetcher_->cancel();
}

const StepQueue::Step& StepQueue::take(const ShareRequest& request) {
  if (taken_cursor_ == request.cursor) return taken_;
  if (!planned_.empty() && planned_.front().cursor != request.cursor) forget();
  fill(request);
  taken_ = {planned_.front().share, get(planned_.front())};
  taken_cursor_ = request.cursor;
  planned_.pop_front();
  return taken_;
}

}  // namespace cox::detail
