#include "tests/fuzz/seeds.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>

#include "coordinator/core/config.h"
#include "coordinator/io/safetensors_header.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/journal.h"
#include "coordinator/runtime/journal_reader.h"
#include "coordinator/runtime/saved_state.h"
#include "coordinator/wire/mask.h"
#include "coordinator/wire/plan_codec.h"
#include "metrics/records/operator_table_file.h"
#include "metrics/records/planning_files.h"
#include "metrics/records/run_format.h"
#include "tests/metrics/analysis/made_trace.h"
#include "tests/planner/random_problem.h"
#include "tests/runtime/driven_job.h"
#include "tests/wire/random_values.h"

namespace cox::fuzz {
namespace {

using Seeds = std::vector<std::string>;

constexpr std::int32_t kRanks = 3;
constexpr std::size_t kBlocks = 5;

void append_bytes(std::string& out, const auto& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Seeds configs() {
  return {text(Config{}),
          "# a comment\nguard.hold_rounds = 7\nrun.name = \"a \\\"b\\\" # c\" # d\n",
          "memory.budget = 6GiB\nmemory.budget_of_rank = 2:balanced, 0:0.5\n"
          "memory.forbid = head*=recompute,*=tile\nmemory.mode = auto\n",
          "force.shares = 1,2,3\nprecision.force = transformer.h.*=bf16\n"
          "shares.hint = 0=0.5,1=2\nspeed_shares.mode = on\n",
          "--cox.guard.mode=observe\n--cox.http.port\n0\nrest\n--\n--cox.x=1\n",
          "COX_GUARD_MODE=on\nCOX_LOG=warning\nPATH=/bin\nCOX_CONFIG=none\n"};
}

Seeds control_states() {
  const JobFacts job = test::capable_job(kRanks, kBlocks);
  test::RandomValues random(3);
  Seeds seeds;
  for (const bool has_rounds : {false, true}) {
    ControlState state = initial_state(job);
    for (std::uint64_t round = 1; has_rounds && round <= 6; ++round)
      state =
          decide(job, {}, default_policies(), std::move(state), random.signals(job, RoundId(round)))
              .state;
    seeds.push_back(*runtime::control_state_file(state));
  }
  return seeds;
}

Seeds http_heads() {
  return {"GET /status HTTP/1.1\r\nHost: localhost:9464\r\n\r\n",
          "GET http://127.0.0.1:80/metrics?from=12&rank=3 HTTP/1.0\r\n\r\n",
          "HEAD /api/v1/status HTTP/1.1\r\nHost: node-a\r\nAuthorization: Bearer secret\r\n\r\nGET",
          "GET /api%2fv1/blocks HTTP/1.1\r\nHost: [::1]:9464\r\nX: a\r\n b\r\n\r\n",
          "POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde"};
}

Seeds instances() {
  return {R"({"instances": [{"id": "two", "base": 100, "bandwidth": 1, "boundary": [1, 1, 1],
"blocks": [
 {"interior": 50, "forward_us": 500, "backward_us": 900, "forward_ws": 2, "backward_ws": 3},
 {"interior": 50, "forward_us": 500, "backward_us": 900, "forward_ws": 2, "backward_ws": 3}],
"budgets": [{"budget": 160}, 120]}]})"};
}

// Returns the journal with few settings in its starts. Otherwise settings would be most of its
// bytes.
std::string with_few_settings(const std::filesystem::path& path) {
  auto reader = runtime::JournalReader::open(path);
  if (!reader.ok()) return {};
  std::string out = runtime::journal_header();
  for (;;) {
    auto entry = reader->next();
    if (!entry.ok() || std::holds_alternative<runtime::JournalEnd>(*entry)) return out;
    if (auto* start = std::get_if<wire::JournalStart>(&*entry)) {
      start->config = "guard.hold_rounds = 7\n";
      out += runtime::framed(runtime::RecordKind::start, wire::serialize(*start));
    } else {
      const auto& round = std::get<wire::JournalRound>(*entry);
      out += runtime::framed(runtime::RecordKind::round,
                             wire::serialize(round.signals, round.decision));
    }
  }
}

// Returns a journal with every kind of content: other plans, a first decision, memory.
std::string full_journal() {
  const JobFacts job = test::capable_job(kRanks, kBlocks);
  const test::TempFolder folder;
  const auto started = runtime::begin_journalled(job, {}, default_policies(), initial_state(job));
  auto writer = runtime::JournalWriter::open(folder / "j", started.head);
  if (!writer.ok()) return {};
  test::RandomValues random(5);
  constexpr std::array kCodes = {ReasonCode::straggler_found, ReasonCode::loss_spike,
                                 ReasonCode::shares_changed};
  for (std::uint64_t round = 1; round <= kCodes.size(); ++round) {
    Decision decision;
    decision.plan = random.plan(job, round);
    decision.reasons.push_back(random.reason());
    decision.reasons.back().code = kCodes[round - 1];
    if (!(*writer)->append(random.signals(job, RoundId(round)), decision).ok()) return {};
  }
  return (*writer)->close().ok() ? with_few_settings(folder / "j") : std::string();
}

// Returns a journal of a job with a slow rank, in the last representable rounds.
std::string last_rounds() {
  constexpr std::uint64_t kRounds = 24;
  const JobFacts job = test::driven_job(2);
  const test::TempFolder folder;
  auto writer = runtime::JournalWriter::open(folder / "j",
                                             {job, {}, initial_state(job), default_policies(), {}});
  if (!writer.ok()) return {};
  for (std::uint64_t i = kRounds; i > 0; --i) {
    const RoundId round(UINT64_MAX - i + 1);
    std::vector<RankSignal> reports;
    for (std::int32_t r = 0; r < 2; ++r) {
      RankSignal report;
      report.rank = RankId(r);
      report.incarnation = job.incarnation;
      report.round = round;
      report.rounds = report.samples = 1;
      report.phase_seconds[static_cast<std::size_t>(Phase::forward)] = r == 0 ? 0.1f : 0.4f;
      seal(report);
      reports.push_back(report);
    }
    const StepSignals signals =
        collect(round, job.incarnation, job.world_size, reports, {}, {1.7e9});
    if (!(*writer)->append(signals, {}).ok()) return {};
  }
  return (*writer)->close().ok() ? with_few_settings(folder / "j") : std::string();
}

Seeds journals() {
  const test::TempFolder folder;
  test::write_journal(folder / "j", 2, 8, 6);
  return {with_few_settings(folder / "j"), full_journal(), last_rounds()};
}

Seeds jsons() {
  return {R"({"a":[1,-2.5e-3,true,false,null,"x\u00e9\n\"\\"],"b":{"c":{}},"d":[]})", "[[[[1]]]]",
          "18446744073709551615", R"("\ud83d\ude00")"};
}

Seeds manifests() {
  io::SaveManifest manifest{.id = io::save_id(1, 2),
                            .step = 120,
                            .world_size = 2,
                            .writer = "run \"a\" on host node-a, process 17"};
  manifest.written = UnixTime{1.7e9};
  manifest.files = {{"model.safetensors", 34, 5}, {"job.json", 7, 6}};
  const std::string small = io::to_json(manifest);
  manifest.pieces = {{"w", "F32", {2, 3}, 0, 4, "model.safetensors", 10, 16, 7},
                     {"w", "F32", {2, 3}, 4, 2, "model.safetensors", 26, 8, 8}};
  return {small, io::to_json(manifest)};
}

// Every frame fills a piece.
void append_frames(std::string& out, const Plan& plan, const Plan* base) {
  const auto frames = wire::encode_plan(plan, base);
  if (!frames.ok()) return;
  for (const wire::Frame& frame : *frames) append_bytes(out, frame.bytes);
}

Seeds masks() {
  const JobFacts job = test::capable_job(kRanks, kBlocks);
  test::RandomValues random(9);
  const Plan first = random.plan(job, 1);
  const Plan second = random.next_plan(job, first);
  std::string full;
  append_frames(full, first, nullptr);
  std::string both = full;
  append_frames(both, second, &first);
  return {full, both};
}

Seeds memory_profiles() {
  testing::Random random(3);
  planner::RankProfile rank;
  rank.ranks = {0, 1};
  rank.problem = test::block_chain(random, 3, test::Copies::some, test::Levels::some);
  for (std::size_t i = 0; i < rank.problem.stages.size(); ++i)
    rank.stage_names.push_back("stage" + std::to_string(i));
  return {io::to_json({{rank}})};
}

Seeds operators() {
  OperatorTable table;
  table.steps = 3;
  table.newest = StepId(130);
  table.blocks = {{"h.0", 0.5, 1}, {"h.1", 0.25, 0.75}};
  table.rows = {{"aten::gelu", "h.0", 3, 7, 64},
                {"aten::mm", "h.0", 6, 90, 128, OperatorFlops{1000, 2000}},
                {"aten::mm", "h.1", 6, 95, 128, OperatorFlops{1000, 1000}}};
  return {io::to_json(table)};
}

// A byte that has the bits of a block, then a payload.
std::string coded_plan(const Plan& plan) {
  std::string out(1, static_cast<char>(wire::block_bits(plan)));
  for (const std::byte each : wire::full_payload(plan)) out += static_cast<char>(each);
  return out;
}

Seeds plans() {
  const JobFacts job = test::capable_job(kRanks, kBlocks);
  test::RandomValues random(11);
  Seeds seeds = {coded_plan(initial_plan(job))};
  for (std::uint64_t number = 1; number <= 3; ++number)
    seeds.push_back(coded_plan(random.plan(job, number)));
  return seeds;
}

Seeds queries() {
  return {"from=12&rank=3", "rank=18446744073709551615&&=5", "from"};
}

Seeds runs() {
  metrics::RunInfo info;
  info.name = "a \"run\"";
  info.started = 17.5;
  info.config = {{"lr", 0.001}, {"layers", std::int64_t{12}}};
  std::string lines;
  for (std::uint64_t step = 0; step < 5; ++step) {
    metrics::StepRow row;
    row.step = StepId(step);
    row.loss = 2.5;
    lines += metrics::step_line(row);
  }
  return {metrics::run_json(info, {1.5, 5, 0}), lines, lines + "{\"step\":5,\"time"};
}

Seeds safetensors() {
  io::SafetensorsHeader header;
  header.entries = {{.name = "a", .dtype = "F32", .shape = {2, 3}, .begin = 0, .end = 24},
                    {.name = "b.c", .dtype = "BF16", .shape = {}, .begin = 24, .end = 26},
                    {.name = "flag", .dtype = "BOOL", .shape = {4}, .begin = 26, .end = 30},
                    {.name = "none", .dtype = "U8", .shape = {0}, .begin = 30, .end = 30}};
  header.metadata = {{"format", "pt"}};
  const std::string size = {30, 0};
  return {size + io::format_safetensors_header(header), std::string(2, '\0') + "{}"};
}

// Returns gzip(1) output for a few lines, and two such files one after another.
Seeds packed() {
  constexpr char kPacked[] =
      "\037\213\010\000\000\000\000\000\002\003\053\056\111\055\320\111\051\210\057\112"
      "\314\313\346\062\320\061\204\143\000\010\360\226\371\031\000\000\000";
  const std::string one(kPacked, sizeof kPacked - 1);
  return {one, one + one};
}

Seeds phases() {
  return {
      "{\"step\":0,\"timestamp\":5.5,\"phases\":{\"forward\":0.5,\"comm\":0.25},\"scalars\":"
      "{\"loss\":NaN}}\n{\"step\":1,\"timestamp\":6,\"phases\":{\"forward\":0.75}}\n{\"step\":2,"};
}

// Only the second seed has gradient buckets.
Seeds steps() {
  Seeds seeds = phases();
  seeds.emplace_back(
      "{\"step\":0,\"timestamp\":5.5,\"phases\":{\"backward\":0.5,\"comm\":0.25},\"reduction\":0.5,"
      "\"reduction_exposed\":0.25,\"round\":9,\"buckets\":[[1,64,-0.25,-0.125],[2,128,-0.2,0.25]]}"
      "\n");
  return seeds;
}

Seeds kernels() {
  return {
      "{\"traceEvents\":[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"ts\":1,\"dur\":5},"
      "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"ncclAllReduce\",\"ts\":4,\"dur\":6}]}",
      "[{\"ph\":\"X\",\"cat\":\"gpu_memcpy\",\"name\":\"copy\",\"ts\":1.5,\"dur\":2}]"};
}

Seeds pipelines() {
  return {"{\"microbatches\":2,\"intervals\":[[0,0.0,1.0],[0,1,2],[1,1,2],[1,2,3.5]]}",
          "{\"traceEvents\":[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"pid\":0,\"ts\":1,"
          "\"dur\":5},"
          "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"pid\":1,\"ts\":4,\"dur\":6}]}"};
}

Seeds page_values() {
  return {"<script>alert('x')</script> & \"y\"", "javascript:alert(1)", "12.5;\xff\x01"};
}

Seeds traces() {
  return {
      test::csv_of(test::made_trace({.dp_ranks = 2, .stages = 1, .microbatches = 1, .steps = 2})),
      test::csv_of(test::made_trace({.dp_ranks = 1, .stages = 2, .microbatches = 2, .steps = 1})),
      test::csv_of(test::made_trace(
          {.dp_ranks = 1, .stages = 2, .chunks = 2, .microbatches = 1, .steps = 1}))};
}

Seeds signals() {
  const JobFacts job = test::capable_job(kRanks, kBlocks);
  test::RandomValues random(13);
  std::string rounds;
  for (std::uint64_t round = 1; round <= 4; ++round) {
    const StepSignals values = random.signals(job, RoundId(round));
    for (std::int32_t r = 0; r < kRanks; ++r)
      append_bytes(rounds, random.signal(job, RankId(r), RoundId(round)));
    for (const BlockEvidence& seen : values.evidence) append_bytes(rounds, seen);
    append_bytes(rounds, 1.7e9 + static_cast<double>(round));
  }
  return {rounds, rounds.substr(0, rounds.size() / 4)};
}

}  // namespace

std::vector<std::string> seeds_of(std::string_view target) {
  static const std::map<std::string_view, Seeds (*)()> kMakers = {
      {"config", configs},
      {"control_state", control_states},
      {"gzip", packed},
      {"http_head", http_heads},
      {"instances", instances},
      {"journal", journals},
      {"json", jsons},
      {"kernels", kernels},
      {"manifest", manifests},
      {"mask", masks},
      {"memory_profile", memory_profiles},
      {"operators", operators},
      {"page", page_values},
      {"phases", phases},
      {"pipeline", pipelines},
      {"plan", plans},
      {"query", queries},
      {"run", runs},
      {"safetensors", safetensors},
      {"signals", signals},
      {"steps", steps},
      {"trace", traces}};
  return kMakers.at(target)();
}

}  // namespace cox::fuzz
