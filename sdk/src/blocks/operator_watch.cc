#include "sdk/src/blocks/operator_watch.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/blocks/visit_watch.h"

namespace cox::detail {
namespace {

static_assert(OperatorWatch::kFirstStep >= BlockWatch::kFullSteps);
static_assert(OperatorWatch::kEverySteps % BlockWatch::kTimesEverySteps == 0);
static_assert(OperatorWatch::kFirstStep % BlockWatch::kTimesEverySteps != 0);

// Blocks of two models may have the same name.
void make_unlike(std::vector<BlockTime>& blocks) {
  std::set<std::string> taken;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (!taken.insert(blocks[b].name).second) blocks[b].name += "#" + std::to_string(b);
    taken.insert(blocks[b].name);
  }
}

std::vector<double> flops_by_block(const OperatorTable& table) {
  std::vector<double> flops(table.blocks.size(), 0);
  std::size_t b = 0;
  for (const OperatorRow& row : by_block(table)) {
    while (table.blocks[b].name != row.block) ++b;
    if (row.flops) flops[b] = row.flops->sum();
  }
  return flops;
}

}  // namespace

void OperatorWatch::release() {
  is_sampled_ = false;
  table_ = {};
  newest_ = {};
}

void OperatorWatch::begin_step() {
  VisitWatch* visits = blocks_.visits();
  is_sampled_ = steps_++ % kEverySteps == kFirstStep && visits != nullptr;
  if (is_sampled_) visits->meter(VisitWatch::Metering::on);
}

void OperatorWatch::end_step(const StepEnd& step, StepOutput& output) {
  if (!std::exchange(is_sampled_, false) || blocks_.visits() == nullptr) return;
  blocks_.visits()->meter(VisitWatch::Metering::off);
  take(step, output);
}

void OperatorWatch::take(const StepEnd& step, StepOutput& output) {
  OperatorTable sample;
  sample.steps = 1;
  sample.newest = step.step;
  sample.blocks = blocks_.times();
  make_unlike(sample.blocks);
  std::vector<std::string> names;
  for (const BlockTime& block : sample.blocks) names.push_back(block.name);
  sample.rows = blocks_.visits()->operators().take(names);
  if (sample.rows.empty()) return;
  const OperatorRow sum = sum_of(sample.rows);
  newest_ = {sum.flops ? sum.flops->sum() : 0, step.samples};
  blocks_.set_flops(flops_by_block(sample));
  add_sample(table_, sample);
  output.operators = std::make_shared<const OperatorTable>(table_);
}

void OperatorWatch::sign(RankSignal& signal) const {
  const bool grows = newest_.samples > 0 && signal.samples > 0;
  const double by = grows ? signal.samples / static_cast<double>(newest_.samples) : 1;
  signal.flops = static_cast<float>(newest_.flops * by);
}

}  // namespace cox::detail
