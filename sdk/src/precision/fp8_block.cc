#include "sdk/src/precision/fp8_block.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::detail {
namespace {

// Removes a number from the front of a saved state. Returns invalid_argument if there is none, or
// if it is outside `least` to `most`.
Result<double> take(std::span<const double>& state, double least, double most) {
  const double found = state.empty() ? std::numeric_limits<double>::quiet_NaN() : state.front();
  if (!(found >= least && found <= most)) {
    return invalid_argument(
        "state of FP8 scaling: expected a number from ", general(least, 6), " to ",
        general(most, 6), ", found ", state.empty() ? "the end" : six_decimals(found),
        "; the state was saved with other settings or by another version, or is damaged: continue "
        "without this state");
  }
  state = state.subspan(1);
  return found;
}

Status check_end(std::span<const double> state) {
  if (state.empty()) return ok_status();
  return invalid_argument("state of FP8 scaling: expected no more numbers, found " +
                          std::to_string(state.size()) + " more; the state is damaged");
}

constexpr double kStateVersion = 1;
constexpr std::size_t kSides = 2;

FloatFormat format_of(Fp8Side side) {
  return side == Fp8Side::activation ? FloatFormat::e4m3 : FloatFormat::e5m2;
}

}  // namespace

void AmaxHistory::see(const QuantizeCounts& counts) {
  merge_into(step_, counts);
}

void AmaxHistory::end_step() {
  if (step_.sampled == 0) return;
  const auto steps = static_cast<std::uint32_t>(amax_.size());
  amax_[next_] = step_.amax;
  next_ = (next_ + 1) % steps;
  filled_ = std::min(filled_ + 1, steps);
  if (step_.saturated > 0) {
    extra_ = std::min(extra_ + 1, kMostExtra);
    clean_steps_ = 0;
  } else if (++clean_steps_ == kStepsToForgive) {
    extra_ -= extra_ > 0 ? 1 : 0;
    clean_steps_ = 0;
  }
  step_ = {};
}

float AmaxHistory::amax() const {
  return *std::ranges::max_element(amax_);
}

void AmaxHistory::append_to(std::vector<double>& state) const {
  for (const std::uint32_t count : {next_, filled_, extra_, clean_steps_}) state.push_back(count);
  state.insert(state.end(), amax_.begin(), amax_.end());
}

Status AmaxHistory::read(std::span<const double>& state) {
  const auto steps = static_cast<std::uint32_t>(amax_.size());
  AmaxHistory loaded(steps);
  const std::pair<std::uint32_t&, std::uint32_t> counts[] = {
      {loaded.next_, steps - 1},
      {loaded.filled_, steps},
      {loaded.extra_, kMostExtra},
      {loaded.clean_steps_, kStepsToForgive}};
  for (const auto& [count, most] : counts) {
    const auto number = take(state, 0, most);
    if (!number.ok()) return number.status();
    count = static_cast<std::uint32_t>(*number);
  }
  for (float& amax : loaded.amax_) {
    const auto number = take(state, 0, std::numeric_limits<float>::max());
    if (!number.ok()) return number.status();
    amax = static_cast<float>(*number);
  }
  *this = std::move(loaded);
  return ok_status();
}

Fp8Block::Fp8Block(Fp8Recipe recipe, std::shared_ptr<Fp8Shapes> shapes)
    : recipe_(recipe), shapes_(std::move(shapes)) {}

bool Fp8Block::takes(const ProductShape& shape) {
  return !shapes_ || shapes_->best(shape) == ProductPath::fp8;
}

Fp8Counts Fp8Block::take_counts() {
  const std::lock_guard lock(mutex_);
  return std::exchange(counts_, {});
}

void Fp8Block::end_step() {
  const std::lock_guard lock(mutex_);
  for (AmaxHistory& history : histories_) history.end_step();
}

void Fp8Block::drop_step() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
  counts_ = {};
  for (AmaxHistory& history : histories_) history.drop_step();
}

bool Fp8Block::remembers() const {
  const std::lock_guard lock(mutex_);
  return !histories_.empty();
}

void Fp8Block::forget() {
  const std::lock_guard lock(mutex_);
  histories_.clear();
  waiting_.clear();
}

std::vector<double> Fp8Block::state() const {
  const std::lock_guard lock(mutex_);
  std::vector<double> state = {kStateVersion, static_cast<double>(recipe_.history),
                               static_cast<double>(histories_.size() / kSides)};
  for (const AmaxHistory& history : histories_) history.append_to(state);
  return state;
}

Status Fp8Block::load_state(std::span<const double> state) {
  for (const double expected : {kStateVersion, static_cast<double>(recipe_.history)}) {
    if (const auto found = take(state, expected, expected); !found.ok()) return found.status();
  }
  const auto count = take(state, 0, kMostProducts);
  if (!count.ok()) return count.status();
  std::vector<AmaxHistory> histories(kSides * static_cast<std::size_t>(*count),
                                     AmaxHistory(recipe_.history));
  for (AmaxHistory& history : histories) {
    if (Status read = history.read(state); !read.ok()) return read;
  }
  if (Status end = check_end(state); !end.ok()) return end;
  const std::lock_guard lock(mutex_);
  histories_ = std::move(histories);
  waiting_.clear();
  return ok_status();
}

std::optional<at::Tensor> Fp8Block::earlier_scale(Fp8Side side, std::size_t product,
                                                  at::Device device) {
  if (recipe_.scaling == Fp8Scaling::current) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const AmaxHistory& known = history(side, product);
  if (known.is_empty()) return std::nullopt;
  const std::uint32_t margin = recipe_.margin + known.extra_margin();
  return known_scale(known.amax(), format_of(side), margin, device);
}

void Fp8Block::count(Fp8Count counting) {
  const std::lock_guard lock(mutex_);
  counting_ = counting;
}

void Fp8Block::see(Fp8Side side, std::size_t product, const Fp8Seen& seen) {
  const std::lock_guard lock(mutex_);
  if (counting_ == Fp8Count::off) return;
  if (seen.pending.defined()) {
    waiting_.push_back({side, product, seen});
  } else {
    note(side, product, seen.counts);
  }
}

AmaxHistory& Fp8Block::history(Fp8Side side, std::size_t product) {
  const std::size_t first = kSides * std::min(product, kMostProducts - 1);
  if (histories_.size() <= first) histories_.resize(first + kSides, AmaxHistory(recipe_.history));
  return histories_[first + static_cast<std::size_t>(side)];
}

std::vector<Fp8Waiting> Fp8Block::take_waiting() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

void Fp8Block::add(const Fp8Waiting& waiting, const QuantizeCounts& counts) {
  const std::lock_guard lock(mutex_);
  note(waiting.side, waiting.product, counts);
}

void Fp8Block::note(Fp8Side side, std::size_t product, const QuantizeCounts& counts) {
  counts_.sampled += counts.sampled;
  counts_.underflow += counts.underflow;
  counts_.saturated += counts.saturated;
  const bool is_gradient = side == Fp8Side::gradient;
  float& amax = is_gradient ? counts_.gradient_amax : counts_.activation_amax;
  amax = std::max(amax, counts.amax);
  if (recipe_.scaling == Fp8Scaling::delayed) history(side, product).see(counts);
}

std::vector<double> pack_fp8(const Fp8Blocks& blocks) {
  if (std::ranges::none_of(blocks, [](const auto& block) { return block->remembers(); })) {
    return {};
  }
  std::vector<double> row = {static_cast<double>(blocks.size())};
  for (const auto& block : blocks) {
    const std::vector<double> state = block->state();
    row.push_back(static_cast<double>(state.size()));
    row.insert(row.end(), state.begin(), state.end());
  }
  return row;
}

Status unpack_fp8(std::span<const double> row, const Fp8Blocks& blocks) {
  if (row.empty()) {
    for (const auto& block : blocks) block->forget();
    return ok_status();
  }
  const auto count = static_cast<double>(blocks.size());
  if (const auto found = take(row, count, count); !found.ok()) return found.status();
  std::vector<std::span<const double>> parts;
  for (const auto& block : blocks) {
    const auto length = take(row, 0, static_cast<double>(row.size()) - 1);
    if (!length.ok()) return length.status();
    parts.push_back(row.first(static_cast<std::size_t>(*length)));
    row = row.subspan(parts.back().size());
    Fp8Block trial(block->recipe());
    if (Status fits = trial.load_state(parts.back()); !fits.ok()) return fits;
  }
  if (Status end = check_end(row); !end.ok()) return end;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    static_cast<void>(blocks[b]->load_state(parts[b]));
  }
  return ok_status();
}

}  // namespace cox::detail
