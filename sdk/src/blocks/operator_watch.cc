#include "sdk/src/blocks/operator_watch.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/blocks/visit_watch.h"
#include "sdk/src/stream/operator_meter.h"

namespace cox::detail {
namespace {

static_assert(OperatorWatch::kFirstStep >= BlockMeasurements::kFullSteps);
static_assert(OperatorWatch::kEverySteps % BlockMeasurements::kTimesEverySteps == 0);
static_assert(OperatorWatch::kFirstStep % BlockMeasurements::kTimesEverySteps != 0);

// Makes names unique, because blocks of two models may have the same name.
std::vector<BlockTime> with_unlike_names(const std::vector<std::string>& names) {
  std::vector<BlockTime> blocks;
  std::set<std::string> taken;
  for (std::string name : names) {
    if (!taken.insert(name).second) name += "#" + std::to_string(blocks.size());
    taken.insert(name);
    blocks.push_back({name});
  }
  return blocks;
}

}  // namespace

void OperatorWatch::release() {
  is_sampled_ = false;
  table_ = {};
  flops_.clear();
  newest_ = {};
}

void OperatorWatch::begin_step() {
  VisitWatch* visits = blocks_.visits();
  is_sampled_ = steps_++ % kEverySteps == kFirstStep && visits != nullptr;
  if (is_sampled_) visits->parts().meter.count(OperatorMeter::Counting::on);
}

void OperatorWatch::end_step(const StepEnd& step, StepOutput& output) {
  if (!std::exchange(is_sampled_, false) || blocks_.visits() == nullptr) return;
  blocks_.visits()->parts().meter.count(OperatorMeter::Counting::off);
  take(step, output);
}

// Models can be adopted between two samples.
void OperatorWatch::meet_blocks() {
  if (table_.blocks.size() != blocks_.size()) table_.blocks = with_unlike_names(blocks_.names());
  blocks_.measurements().read_times(table_.blocks);
  flops_.assign(table_.blocks.size(), 0);
}

void OperatorWatch::take(const StepEnd& step, StepOutput& output) {
  meet_blocks();
  if (!blocks_.visits()->parts().meter.add_to(table_, flops_)) return;
  table_.steps += 1;
  table_.newest = step.step;
  newest_ = {std::accumulate(flops_.begin(), flops_.end(), 0.0), step.samples};
  blocks_.measurements().set_flops(flops_);
  output.operators = published();
}

// A reader releases a table on its own thread, after its last read.
std::shared_ptr<const OperatorTable> OperatorWatch::published() {
  while (given_.size() < kReaders) given_.push_back(std::make_shared<OperatorTable>(table_));
  auto free =
      std::ranges::find_if(given_, [](const auto& table) { return table.use_count() == 1; });
  if (free == given_.end()) free = given_.insert(free, std::make_shared<OperatorTable>());
  std::atomic_thread_fence(std::memory_order_acquire);
  **free = table_;
  return *free;
}

void OperatorWatch::sign(RankSignal& signal) const {
  const bool grows = newest_.samples > 0 && signal.samples > 0;
  const double by = grows ? signal.samples / static_cast<double>(newest_.samples) : 1;
  signal.flops = static_cast<float>(newest_.flops * by);
}

}  // namespace cox::detail
