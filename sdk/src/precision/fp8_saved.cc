#include "sdk/src/precision/fp8_saved.h"

#include <algorithm>
#include <string>

namespace cox::detail {
namespace {

using Parts = std::vector<std::span<const double>>;  // the state of each block

Status damaged(const char* expected, double found) {
  return invalid_argument(std::string("state of FP8 scaling: expected ") + expected + ", found " +
                          std::to_string(found));
}

Result<Parts> split(std::span<const double> row, std::size_t blocks) {
  if (row.front() != static_cast<double>(blocks)) {
    return damaged("as many blocks as the model has", row.front());
  }
  row = row.subspan(1);
  Parts parts;
  for (std::size_t b = 0; b < blocks; ++b) {
    const double length = row.empty() ? -1 : row.front();
    if (!(length >= 0 && length < static_cast<double>(row.size()))) {
      return damaged("the numbers of every block", length);
    }
    parts.push_back(row.subspan(1, static_cast<std::size_t>(length)));
    row = row.subspan(1 + static_cast<std::size_t>(length));
  }
  if (!row.empty()) return damaged("nothing behind the last block", row.front());
  return parts;
}

}  // namespace

std::vector<double> pack_fp8(const Fp8Blocks& blocks) {
  if (std::none_of(blocks.begin(), blocks.end(),
                   [](const auto& block) { return block->remembers(); })) {
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
  const auto parts = split(row, blocks.size());
  if (!parts.ok()) return parts.status();
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    Fp8Block trial(blocks[b]->recipe());
    if (Status fits = trial.load_state((*parts)[b]); !fits.ok()) return fits;
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    static_cast<void>(blocks[b]->load_state((*parts)[b]));
  }
  return ok_status();
}

}  // namespace cox::detail
