// The inputs of the control plane: journals, saved states, masks, plans and signals. After each
// decoder runs the code that uses its values, with Coxswain's policies.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/bytes.h"
#include "coordinator/core/hash.h"
#include "coordinator/decide/decide.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/journal_reader.h"
#include "coordinator/runtime/replay.h"
#include "coordinator/runtime/saved_state.h"
#include "coordinator/wire/mask.h"
#include "coordinator/wire/plan_codec.h"
#include "tests/fuzz/targets.h"
#include "tests/wire/random_values.h"

namespace cox::fuzz {
namespace {

constexpr std::int32_t kRanks = 3;
constexpr std::size_t kBlocks = 5;

// The units of shares, which policies learn in.
enum class Units { samples, micro_batches };

// Returns a measured job, so that every policy has something to decide.
JobFacts job(Units units = Units::samples) {
  JobFacts facts = test::capable_job(kRanks, kBlocks);
  if (units == Units::micro_batches) facts.micro_batch = 4;
  MemoryModel model;
  for (std::int64_t kept = 0; kept <= static_cast<std::int64_t>(kBlocks); ++kept) {
    std::vector<MemoryAction> actions(kBlocks, MemoryAction::recompute);
    actions.back() = recompute_level(2);
    std::fill_n(actions.begin(), kept, MemoryAction::keep);
    model.front.push_back({500'000'000 + 100'000'000 * kept, 60'000 - 10'000 * kept, actions});
  }
  model.base_bytes = 100'000'000;
  model.step_us = 200'000;
  model.samples = 20;
  model.kept_bytes.assign(kBlocks, 100'000'000);
  facts.memory.models = {model};
  facts.memory.limit_bytes.assign(kRanks, 1'200'000'000);
  facts.precision.blocks.assign(kBlocks, BlockFormats{{1000, 600, 600, 400}});
  return facts;
}

// Returns settings under which every policy acts as soon as possible.
Config eager_settings() {
  Config config;
  const Status applied = apply_text(config,
                                    "guard.hold_rounds = 1\n"
                                    "guard.nonfinite_streak = 1\n"
                                    "stragglers.min_rounds = 4\n"
                                    "memory.budget = 0.8\n"
                                    "memory.retry_rounds = 1\n"
                                    "precision.format = auto\n"
                                    "precision.emulate = on\n"
                                    "precision.patience_rounds = 1\n"
                                    "precision.dwell_rounds = 0\n"
                                    "precision.cooldown_rounds = 0\n"
                                    "loss_scale.growth_interval = 1\n"
                                    "shares.mode = on\n"
                                    "shares.settle_rounds = 1\n"
                                    "accumulation.mode = on\n"
                                    "accumulation.settle_rounds = 1\n",
                                    "fuzz");
  expect(applied.ok() && validate(config).ok(), "settings that exist");
  return config;
}

// Parsed once, because parsing takes longer than a round.
const Config& eager() {
  static const Config config = eager_settings();
  return config;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::uint64_t number(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// A file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    expect(descriptor_ >= 0, "a file in memory");
    const auto written = ::write(descriptor_, content.data(), content.size());
    expect(written == static_cast<ssize_t>(content.size()), "a file in memory to take its bytes");
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// Starts a job and runs some rounds. Every decision must be valid.
class Deciding {
 public:
  Deciding(JobFacts facts, ControlState state) : job_(std::move(facts)) {
    expect(validate(state.plan, job_).ok(), "a plan of the job at the start");
    state_ = begin_job(job_, config_, policies_, std::move(state)).state;
    expect(validate(state_.plan, job_).ok(), "a plan of the job from the start");
  }

  void round(const StepSignals& signals) {
    Decided decided = decide(job_, config_, policies_, std::move(state_), signals);
    state_ = std::move(decided.state);
    expect(validate(state_.plan, job_).ok(), "a plan of the job after a round");
  }

 private:
  JobFacts job_;
  const Config& config_ = eager();
  PolicySet policies_ = default_policies();
  ControlState state_;
};

// Cuts pieces of a fixed size off the front. Pads the last piece with zeros.
class Pieces {
 public:
  explicit Pieces(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }

  template <class T>
  T take() {
    T value;
    std::array<std::byte, sizeof(T)> bytes{};
    const std::string_view part = rest_.substr(0, sizeof(T));
    std::memcpy(bytes.data(), part.data(), part.size());
    std::memcpy(&value, bytes.data(), sizeof value);
    rest_.remove_prefix(part.size());
    return value;
  }

 private:
  std::string_view rest_;
};

void read_fragments(const RankSignal& signal) {
  static_cast<void>(read_block_profile(signal.fragment).ok());
  static_cast<void>(read_block_failure(signal.fragment).ok());
  static_cast<void>(read_precision_request(signal.fragment).ok());
  static_cast<void>(read_host_evidence(signal.fragment).ok());
  static_cast<void>(read_allocator_evidence(signal.fragment).ok());
}

// Returns a signal that its rank could have sent: only its values are made up.
RankSignal sealed(RankSignal signal, const JobFacts& facts) {
  signal.magic = RankSignal::kMagic;
  signal.version = RankSignal::kVersion;
  signal.incarnation = facts.incarnation;
  seal(signal);
  return signal;
}

}  // namespace

std::string repaired_journal(std::string_view bytes) {
  std::string out = runtime::journal_header();
  bytes.remove_prefix(std::min(bytes.size(), runtime::kJournalHeaderBytes));
  while (bytes.size() >= runtime::kRecordHeaderBytes) {
    const std::size_t left = bytes.size() - runtime::kRecordHeaderBytes;
    const std::size_t length = std::min<std::uint64_t>(number(bytes.substr(0, 4)), left);
    const auto kind = static_cast<runtime::RecordKind>(number(bytes.substr(4, 2)));
    out += runtime::framed(kind, bytes.substr(runtime::kRecordHeaderBytes, length));
    bytes.remove_prefix(runtime::kRecordHeaderBytes + length);
  }
  return out.append(bytes);
}

std::string repaired_control_state(std::string_view bytes) {
  constexpr std::size_t kHeader = 20;
  constexpr std::uint32_t kVersion = 5;
  const std::string_view payload = bytes.substr(std::min(bytes.size(), kHeader));
  ByteWriter out;
  out.append("COXSTATE");
  out.u32(kVersion);
  out.u32(static_cast<std::uint32_t>(payload.size()));
  out.u32(crc32(as_bytes(payload)));
  return std::string(out.text()).append(payload);
}

std::string repaired_frame(std::string_view bytes) {
  constexpr std::size_t kChecksum = 4;  // the checksum's 4 bytes
  std::string frame(bytes);
  if (frame.size() < wire::kContinuationHeaderBytes) return frame;
  frame[0] = static_cast<char>(wire::kMaskVersion);
  const auto size = std::min<std::size_t>(static_cast<unsigned char>(frame[2]), frame.size());
  frame.resize(size);
  if (size < wire::kContinuationHeaderBytes) return frame;
  std::fill_n(frame.begin() + kChecksum, 4, '\0');
  ByteWriter checksum;
  checksum.u32(crc32(as_bytes(frame)));
  frame.replace(kChecksum, 4, checksum.text());
  return frame;
}

Taken fuzz_journal(std::string_view bytes) {
  const MemoryFile file(repaired_journal(bytes));
  auto journal = runtime::JournalReader::open(file.path());
  expect(journal.ok(), "a journal with the right header to be opened");
  std::size_t told = 0;
  runtime::ReplayOptions options;
  options.tell = [&told](const std::string& line) { told += line.size(); };
  const auto report = runtime::replay(*journal, default_policies(), options);
  if (!report.ok() || report->segments == 0) return Taken::no;
  expect(report->segments + report->rounds <= bytes.size() / runtime::kRecordHeaderBytes,
         "records that take bytes");
  return Taken::yes;
}

Taken fuzz_control_state(std::string_view bytes) {
  const auto loaded = runtime::read_control_state(repaired_control_state(bytes));
  if (!loaded.ok()) return Taken::no;
  const JobFacts facts = job();
  Deciding deciding(facts, refit(*loaded, facts).state);
  test::RandomValues random(7);
  for (std::uint64_t round = 1; round <= 3; ++round)
    deciding.round(random.signals(facts, RoundId(round)));
  return Taken::yes;
}

Taken fuzz_mask(std::string_view bytes) {
  const JobFacts facts = job();
  Taken taken = Taken::no;
  wire::PlanAssembler assembler(facts, initial_plan(facts));
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, wire::kFrameBytes);
    bytes.remove_prefix(piece.size());
    const Plan before = assembler.held();
    static_cast<void>(assembler.feed(as_bytes(piece)).ok());
    static_cast<void>(assembler.feed(as_bytes(repaired_frame(piece))).ok());
    if (assembler.held() == before) continue;
    taken = Taken::yes;
    const Plan& held = assembler.held();
    expect(validate(held, facts).ok(), "only valid plans to be held");
    expect(held.id.number > before.id.number, "newer plans to replace older ones");
    static_cast<void>(diff(before, held).size() + text(held).size());
    const auto frames = wire::encode_plan(held, &before);
    expect(frames.ok(), "a plan that was decoded to be encoded again");
  }
  return taken;
}

Taken fuzz_plan(std::string_view bytes) {
  const JobFacts facts = job();
  const auto bits = bytes.starts_with('\x04') ? wire::BlockBits::four : wire::BlockBits::eight;
  const std::string_view coded = bytes.substr(std::min<std::size_t>(bytes.size(), 1));
  const auto plan = wire::read_full_payload(as_bytes(coded), wire::size_of(facts), bits);
  if (!plan.ok()) return Taken::no;
  const auto payload = wire::full_payload(*plan);
  const auto again =
      wire::read_full_payload(payload, wire::size_of(facts), wire::block_bits(*plan));
  expect(again.ok(), "a plan that was written to be read again");
  expect(wire::full_payload(*again) == payload, "the same plan after it was written");
  Plan of_job = *plan;
  of_job.id.incarnation = facts.incarnation;
  if (!validate(of_job, facts).ok()) return Taken::no;
  const Plan first = initial_plan(facts);
  expect(same_effect(of_job, of_job), "a plan to be equal to itself in effect");
  static_cast<void>(diff(first, of_job).size() + diff(of_job, first).size() + text(of_job).size());
  return Taken::yes;
}

Taken fuzz_signals(std::string_view bytes) {
  const JobFacts facts = job(bytes.size() % 2 == 0 ? Units::samples : Units::micro_batches);
  Deciding deciding(facts, initial_state(facts));
  Pieces pieces(bytes);
  for (std::uint64_t round = 1; !pieces.empty() && round <= 8; ++round) {
    std::vector<RankSignal> received;
    for (std::int32_t r = 0; r < kRanks; ++r) {
      const auto raw = pieces.take<RankSignal>();
      static_cast<void>(check(raw).ok());
      received.push_back(sealed(raw, facts));
      read_fragments(raw);
    }
    std::vector<BlockEvidence> evidence;
    for (std::size_t b = 0; b < kBlocks; ++b) evidence.push_back(pieces.take<BlockEvidence>());
    const double now = pieces.take<double>();
    deciding.round(collect(RoundId(round), facts.incarnation, facts.world_size, received,
                           std::move(evidence), {now}));
  }
  return Taken::yes;
}

}  // namespace cox::fuzz
