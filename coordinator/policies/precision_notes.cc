#include "coordinator/policies/precision_notes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeader = 6;  // ranks, blocks, requests, applied, silent, pressed
constexpr double kLargest = 1e18;

template <class Notes>
using Values = std::array<double, sizeof(Notes) / sizeof(double)>;
constexpr std::size_t kOfBlock = std::tuple_size_v<Values<BlockNotes>>;
constexpr std::size_t kOfRank = std::tuple_size_v<Values<RankNotes>>;
constexpr std::size_t kOfRequest = 5;

template <class Notes>
void write(const std::vector<Notes>& notes, std::vector<double>& out) {
  for (const Notes& one : notes) {
    const auto values = std::bit_cast<Values<Notes>>(one);
    out.insert(out.end(), values.begin(), values.end());
  }
}

template <class Notes>
const double* read_all(const double* from, std::vector<Notes>& notes) {
  for (Notes& one : notes) {
    Values<Notes> values;
    std::copy_n(from, values.size(), values.begin());
    one = std::bit_cast<Notes>(values);
    from += values.size();
  }
  return from;
}

bool is_whole(double value, double most) {
  return value >= 0 && value <= most && value == std::floor(value);
}

bool is_sane(const BlockNotes& notes) {
  return is_whole(notes.seen, kPrecisions) && is_whole(notes.wish, kPrecisions) &&
         is_whole(notes.cause, static_cast<double>(FormatCause::rule)) && notes.failures >= 0 &&
         notes.rest_until >= 0 && notes.changed_round >= 0 && notes.good_since >= 0 &&
         notes.culprit >= -1 && notes.culprit < kMaxRanks;
}

bool read_request(const double* v, std::size_t blocks, StandingRequest& request) {
  const double every = PrecisionRequest::kEveryBlock;
  const bool names_block = is_whole(v[0], every) && (v[0] == every || v[0] < double(blocks));
  if (!names_block || !is_whole(v[1], 1) || !is_whole(v[2], kPrecisions - 1)) return false;
  if (!is_whole(v[3], kLargest) || !(v[4] >= -1 && v[4] < kMaxRanks)) return false;
  request.what.block = static_cast<std::uint16_t>(v[0]);
  request.what.what = static_cast<PrecisionRequest::What>(static_cast<int>(v[1]));
  request.what.format = static_cast<Precision>(static_cast<int>(v[2]));
  request.until = static_cast<std::uint64_t>(v[3]);
  request.asked_by = RankId(static_cast<std::int32_t>(v[4]));
  return true;
}

}  // namespace

PrecisionNotes::PrecisionNotes(const NumbersState& state, const JobFacts& job)
    : blocks(job.blocks.size()), ranks(static_cast<std::size_t>(job.world_size)) {
  if (read(state)) return;
  applied_before = silent_rounds = pressed = 0;
  requests.clear();
  blocks.assign(blocks.size(), {});
  ranks.assign(ranks.size(), {});
}

bool PrecisionNotes::read(const NumbersState& state) {
  const std::vector<double>& v = state.values;
  const auto sane = [](double value) { return std::fabs(value) <= kLargest; };
  if (state.version != kVersion || v.size() < kHeader) return false;
  if (!std::all_of(v.begin(), v.end(), sane)) return false;
  if (v[0] != static_cast<double>(ranks.size()) || v[1] != static_cast<double>(blocks.size()) ||
      !is_whole(v[2], kMostRequests)) {
    return false;
  }
  const auto standing = static_cast<std::size_t>(v[2]);
  if (v.size() !=
      kHeader + kOfBlock * blocks.size() + kOfRank * ranks.size() + kOfRequest * standing) {
    return false;
  }
  applied_before = v[3];
  silent_rounds = v[4];
  pressed = v[5];
  const double* at = read_all(v.data() + kHeader, blocks);
  at = read_all(at, ranks);
  for (std::size_t i = 0; i < standing; ++i, at += kOfRequest) {
    if (!read_request(at, blocks.size(), requests.emplace_back())) return false;
  }
  return std::all_of(blocks.begin(), blocks.end(), is_sane);
}

PolicyState PrecisionNotes::state() const {
  NumbersState state;
  state.version = kVersion;
  state.values = {static_cast<double>(ranks.size()),
                  static_cast<double>(blocks.size()),
                  static_cast<double>(requests.size()),
                  applied_before,
                  silent_rounds,
                  pressed};
  write(blocks, state.values);
  write(ranks, state.values);
  for (const StandingRequest& request : requests) {
    const auto add = [&state](auto value) { state.values.push_back(static_cast<double>(value)); };
    add(request.what.block);
    add(request.what.what);
    add(request.what.format);
    add(request.until);
    add(request.asked_by.value());
  }
  return PolicyState::of(std::move(state));
}

}  // namespace cox
