#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/runtime/journal_reader.h"
#include "coordinator/wire/control_codec.h"
#include "metrics/analysis/timeline/idle_time.h"
#include "metrics/analysis/timeline/rank_lanes.h"
#include "metrics/analysis/timeline/rank_survey.h"
#include "metrics/command/commands.h"
#include "metrics/json_parts.h"
#include "metrics/records/host_lines.h"
#include "metrics/records/run_reader.h"
#include "metrics/records/run_record.h"
#include "metrics/records/step_lines.h"
#include "metrics/records/trace_event_file.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

using diagnosis::kCoordinatorProcess;
using diagnosis::RankLanes;
using diagnosis::StepLine;
using diagnosis::TraceArgument;
using diagnosis::TraceEvent;
using diagnosis::TraceKind;
using diagnosis::TraceSink;

constexpr std::size_t kMostNotes = 20;
constexpr double kSecondsAround = 1;  // drawn by the coordinator's lanes before and after the steps
constexpr std::int32_t kSavesLane = 1'000;

// ---- The request.

struct StepRange {
  double first = -std::numeric_limits<double>::infinity();
  double last = std::numeric_limits<double>::infinity();
  bool has(double step) const { return step >= first && step <= last; }
};

std::optional<std::int64_t> whole(std::string_view text) {
  const auto value = parsed_number<std::int64_t>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

Result<StepRange> step_range(std::string_view text) {
  StepRange range;
  if (text.empty()) return range;
  const std::size_t colon = text.find(':');
  const std::string_view first = text.substr(0, colon);
  const std::string_view last = colon == std::string_view::npos ? first : text.substr(colon + 1);
  const auto a = whole(first);
  const auto b = whole(last);
  const bool fits = (a || first.empty()) && (b || last.empty()) && !(a && b && *a > *b);
  if (!fits)
    return invalid_argument("--steps: expected two step numbers as in 100:200, found '",
                            shown(text), "'");
  if (a) range.first = static_cast<double>(*a);
  if (b) range.last = static_cast<double>(*b);
  return range;
}

struct RankRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

// Returns the ranges of ranks; an empty text means all ranks.
Result<std::vector<RankRange>> rank_ranges(std::string_view text) {
  std::vector<RankRange> out;
  if (text.empty()) out.push_back({0, kMaxRanks});
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    while (part.starts_with(' ')) part.remove_prefix(1);
    const std::size_t dash = part.find('-');
    const auto first = whole(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : whole(part.substr(dash + 1));
    if (!first || !last || *last < *first)
      return invalid_argument("--ranks: expected ranks as in 0,4-7, found '", shown(text), "'");
    out.push_back({*first, *last});
  }
  return out;
}

// ---- Survey: a first pass over each rank, which keeps no steps.

struct RankInPicture {
  io::RankFolder folder;
  diagnosis::RankSurvey survey;
  double begin_seconds = diagnosis::absent();  // of the first drawn step, by the rank's clock
  std::size_t damaged = 0;
  diagnosis::ClockShift clock;
  bool is_clock_known = true;
};

Status each_step(const fs::path& folder, const StepRange& range,
                 const io::StepLineReader::Take& take, std::size_t* damaged = nullptr) {
  io::StepLineReader lines([&](const StepLine& line) {
    if (range.has(line.step)) take(line);
  });
  const Status read = io::read_step_lines(folder / "steps.jsonl", lines);
  if (damaged != nullptr) *damaged = lines.damaged() + (lines.is_torn() ? 1 : 0);
  return read;
}

Result<RankInPicture> look_at(io::RankFolder folder, const StepRange& range) {
  RankInPicture out;
  out.folder = std::move(folder);
  const Status read = each_step(
      out.folder.path, range, [&](const StepLine& line) { out.survey.note(line); }, &out.damaged);
  if (!read.ok()) return read;
  out.survey.finish();
  out.begin_seconds = out.survey.begin_seconds();
  return out;
}

// ---- The coordinator's decisions, from its journal.

enum Lane : std::int32_t { kStarts = 1, kPlans, kFaults, kReasons };  // then one for each policy

// CoordinatorLanes draws a lane for starts of the job, one for plans, one for reports that are
// missing or do not count, and one for the reasons of each policy. The lanes keep the journal's
// facts about ranks for the ranks' own lanes.
class CoordinatorLanes {
 public:
  // Rounds outside of these Unix times are not drawn.
  struct Window {
    double origin_seconds = 0;  // the picture's beginning
    double first_seconds = 0;
    double last_seconds = 0;
  };
  explicit CoordinatorLanes(const Window& window) : window_(window) {}

  void begin(const TraceSink& sink);
  // Read the next entry of the journal.
  void start(wire::JournalStart start);
  void round(const wire::JournalRound& round, const TraceSink& sink);

  // Returns the newest evidence of hosts, by rank. Ranks without evidence have no entry.
  const std::map<std::int32_t, HostEvidence>& hosts() const { return hosts_; }
  // Returns the times of a rank's blocks since the newest start of the job.
  diagnosis::BlockTimes block_times(std::int32_t rank) const { return profiles_.times(rank); }

 private:
  void draw_plan(const Plan& plan, const TraceSink& sink);
  void draw_reason(const Reason& reason, const TraceSink& sink);
  void draw_faults(const StepSignals& signals, const TraceSink& sink) const;
  void name_lane(std::int32_t lane, std::string_view name, const TraceSink& sink);

  Window window_;
  std::int64_t at_ns_ = 0;  // time of the round
  std::string start_text_;  // of a start whose first round has not come; empty = none
  std::vector<Reason> first_reasons_;
  Plan plan_;
  std::set<std::int32_t> named_;  // lanes with a name
  std::map<std::int32_t, HostEvidence> hosts_;
  diagnosis::BlockProfiles profiles_;
};

void CoordinatorLanes::begin(const TraceSink& sink) {
  sink({TraceKind::process, kCoordinatorProcess, 0, "coordinator"});
}

void CoordinatorLanes::name_lane(std::int32_t lane, std::string_view name, const TraceSink& sink) {
  if (named_.insert(lane).second) sink({TraceKind::lane, kCoordinatorProcess, lane, name});
}

void CoordinatorLanes::start(wire::JournalStart start) {
  start_text_ = concat("start ", start.job.incarnation, ": ", start.job.world_size, " ranks, ",
                       start.job.blocks.size(), " blocks");
  profiles_ = diagnosis::BlockProfiles(std::move(start.job.blocks));
  plan_ = std::move(start.state.plan);
  first_reasons_.clear();
  if (start.first && start.first->plan) plan_ = *std::move(start.first->plan);
  if (start.first) first_reasons_ = std::move(start.first->reasons);
  hosts_.clear();
}

void CoordinatorLanes::round(const wire::JournalRound& round, const TraceSink& sink) {
  for (const RankSignal& report : round.signals.reports) {
    profiles_.note(report);
    if (const auto host = read_host_evidence(report.fragment); host.ok())
      hosts_[report.rank.value()] = *host;
  }
  const double now = round.signals.now.seconds;
  const bool is_drawn = now >= window_.first_seconds && now <= window_.last_seconds;
  if (is_drawn) {
    constexpr double kMost = static_cast<double>(diagnosis::kMostTraceNs) / 1e9;
    const double since = std::clamp(now - window_.origin_seconds, 0.0, kMost);
    at_ns_ = std::max(at_ns_, static_cast<std::int64_t>(std::llround(since * 1e9)));
    if (!start_text_.empty()) {
      name_lane(kStarts, "starts of the job", sink);
      sink({TraceKind::moment, kCoordinatorProcess, kStarts, start_text_, at_ns_});
    }
    for (const Reason& reason : first_reasons_) draw_reason(reason, sink);
    if (round.decision.plan) draw_plan(*round.decision.plan, sink);
    for (const Reason& reason : round.decision.reasons) draw_reason(reason, sink);
    if (!round.signals.faults.empty()) {
      name_lane(kFaults, "missing, late or damaged reports", sink);
      draw_faults(round.signals, sink);
    }
  }
  start_text_.clear();
  first_reasons_.clear();
  if (round.decision.plan) plan_ = *round.decision.plan;
}

void CoordinatorLanes::draw_plan(const Plan& plan, const TraceSink& sink) {
  name_lane(kPlans, "plans published", sink);
  const std::string name = concat("plan ", plan.id.number);
  const std::string changes = joined(diff(plan_, plan), "; ");
  const std::array<TraceArgument, 2> arguments = {
      {{"changes", std::string_view(changes)},
       {"not before round", static_cast<double>(plan.earliest_round.value())}}};
  sink({TraceKind::moment, kCoordinatorProcess, kPlans, name, at_ns_, 0, arguments});
}

void CoordinatorLanes::draw_reason(const Reason& reason, const TraceSink& sink) {
  const auto lane = kReasons + static_cast<std::int32_t>(reason.policy);
  const bool is_own = reason.policy == PolicyKind::none;
  name_lane(lane, is_own ? "decisions" : concat("decisions: ", reason.policy), sink);
  const std::string name = concat(reason.code, " (", reason.outcome, ")");
  const std::array<TraceArgument, 3> arguments = {
      {{"why", std::string_view(reason.text)},
       {"round", static_cast<double>(reason.round.value())},
       {"rank", static_cast<double>(reason.rank.value())}}};
  const std::size_t told = reason.rank.value() < 0 ? 2 : 3;
  sink({TraceKind::moment, kCoordinatorProcess, lane, name, at_ns_, 0,
        std::span(arguments).first(told)});
}

// Draws one moment for all faults of a round.
void CoordinatorLanes::draw_faults(const StepSignals& signals, const TraceSink& sink) const {
  std::vector<std::size_t> ranks;
  for (const FaultyReport& fault : signals.faults) {
    if (fault.rank.value() < 0) continue;
    const auto rank = static_cast<std::size_t>(fault.rank.value());
    if (ranks.empty() || ranks.back() < rank) ranks.push_back(rank);
  }
  constexpr std::size_t kMostRanges = 20;
  const std::string text = ranges_text(ranks, kMostRanges);
  const std::string name = concat(signals.faults.front().fault, " reports");
  const std::array<TraceArgument, 2> arguments = {
      {{"ranks", std::string_view(text)}, {"round", static_cast<double>(signals.round.value())}}};
  sink({TraceKind::moment, kCoordinatorProcess, kFaults, name, at_ns_, 0, arguments});
}

// ---- The picture.

class Picture {
 public:
  Picture(const TraceRequest& request, StepRange range, io::TraceEventFile::Put put)
      : request_(request), range_(range), file_(std::move(put)) {}

  Status survey(std::vector<io::RankFolder> folders, const std::vector<RankRange>& wanted) {
    const auto tracks = io::read_host_tracks(folders, notes_);
    if (!tracks.empty()) idle_ = diagnosis::idle_time_of(tracks);
    for (io::RankFolder& folder : folders) {
      const auto has = [&](const RankRange& r) {
        return folder.rank >= r.first && folder.rank <= r.last;
      };
      if (std::ranges::none_of(wanted, has)) continue;
      auto rank = look_at(std::move(folder), range_);
      if (!rank.ok()) return rank.status();
      ranks_.push_back(*std::move(rank));
    }
    const auto steps = [](const RankInPicture& r) { return r.survey.rows() > 0; };
    if (std::ranges::any_of(ranks_, steps)) return ok_status();
    return data_loss(request_.run, ": expected steps in the steps.jsonl of rank",
                     request_.ranks.empty() ? "s" : "s " + shown(request_.ranks),
                     request_.steps.empty() ? "" : " among " + shown(request_.steps),
                     ", found none");
  }

  Status draw() {
    choose_steps();
    align();
    find_origin();
    CoordinatorLanes coordinator(window());
    const std::uint64_t of_coordinator = request_.most_events / 10;
    file_.allow(of_coordinator);
    draw_coordinator(coordinator);
    note_left_out("what the coordinator decided");
    std::uint64_t left = request_.most_events - of_coordinator;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::uint64_t share = left / (ranks_.size() - r);
      const std::uint64_t before = file_.written();
      file_.allow(share);
      if (Status drawn = draw_rank(ranks_[r], coordinator); !drawn.ok()) return drawn;
      note_left_out(concat("rank ", ranks_[r].folder.rank));
      left -= std::min(left, file_.written() - before);
    }
    return file_.finish(facts(coordinator));
  }

  const std::vector<std::string>& notes() const { return notes_; }
  std::uint64_t events() const { return file_.written(); }
  std::size_t ranks() const { return ranks_.size(); }

 private:
  void note(std::string text) { notes_.push_back(std::move(text)); }

  void note_left_out(const std::string& whose) {
    const std::uint64_t now = file_.left_out();
    if (now > left_out_)
      note(concat(whose, ": ", now - left_out_, " events are left out: the picture holds at most ",
                  request_.most_events, " (--events); choose fewer by --steps or --ranks"));
    left_out_ = now;
  }

  // Restricts the picture to the newest steps if not all steps fit.
  void choose_steps() {
    std::uint64_t events = 0;
    const RankInPicture* longest = &ranks_.front();
    for (const RankInPicture& rank : ranks_) {
      events += rank.survey.events();
      if (rank.survey.rows() > longest->survey.rows()) longest = &rank;
    }
    const double room = (idle_ ? 0.8 : 0.9) * static_cast<double>(request_.most_events);
    if (static_cast<double>(events) <= room) return;
    constexpr double kReserve = 0.95;  // later steps may have more events than the mean step
    const auto& place = longest->survey.behind(1 - kReserve * room / static_cast<double>(events));
    range_.first = std::max(range_.first, place.step);
    for (RankInPicture& rank : ranks_) {
      if (const diagnosis::RankSurvey::Place* first = rank.survey.from(range_.first))
        rank.begin_seconds = first->begin_seconds;
    }
    note(concat("only the steps from ", static_cast<std::int64_t>(place.step),
                " on are drawn: all of them would be ", events,
                " events, and the picture holds at most ", request_.most_events,
                " (--events); choose others by --steps or --ranks"));
  }

  void find_origin() {
    origin_ = std::numeric_limits<double>::infinity();
    for (const RankInPicture& rank : ranks_) {
      if (!diagnosis::is_absent(rank.begin_seconds))
        origin_ = std::min(origin_, rank.begin_seconds + rank.clock.offset_seconds);
    }
    if (!std::isfinite(origin_)) origin_ = 0;
  }

  CoordinatorLanes::Window window() const {
    double last = origin_;
    for (const RankInPicture& rank : ranks_) {
      if (!diagnosis::is_absent(rank.survey.end_seconds()))
        last = std::max(last, rank.survey.end_seconds() + rank.clock.offset_seconds);
    }
    return {origin_, origin_ - kSecondsAround, last + kSecondsAround};
  }

  TraceSink sink() {
    return [this](const TraceEvent& event) { file_.take(event); };
  }

  void draw_coordinator(CoordinatorLanes& lanes) {
    lanes.begin(sink());
    draw_saves();
    if (!io::is_there(journal())) {
      note("no journal.cox in the run directory: plans and decisions are not drawn");
      return;
    }
    if (Status read = read_journal(lanes); !read.ok())
      note(concat("plans and decisions are drawn as far as the journal can be read: ",
                  read.message()));
  }

  Status read_journal(CoordinatorLanes& lanes) {
    return runtime::read_journal(
        journal(), io::Links::refused,
        {.start = [&](wire::JournalStart start) { lanes.start(std::move(start)); },
         .round = [&](const wire::JournalRound& round) { lanes.round(round, sink()); }});
  }

  void draw_saves() {
    if (request_.saves.empty()) return;
    file_.take({TraceKind::lane, kCoordinatorProcess, kSavesLane, "saves"});
    std::size_t drawn = 0;
    std::size_t damaged = 0;
    for (const fs::path& save : io::saves_in(request_.saves)) {
      const auto manifest = io::read_manifest(save);
      if (!manifest.ok() && io::is_there(save)) ++damaged;
      const double at = manifest.ok() ? manifest->written.seconds - origin_ : -1;
      if (!(at >= 0 && at <= window().last_seconds - origin_)) continue;
      const std::string name = concat("save of step ", manifest->step);
      file_.take(
          {TraceKind::moment, kCoordinatorProcess, kSavesLane, name, std::llround(at * 1e9)});
      ++drawn;
    }
    if (drawn == 0)
      note(concat(request_.saves, ": expected saves that were written during the run, found none"));
    if (damaged > 0)
      note(concat(request_.saves, ": ", damaged,
                  " saves whose manifest cannot be read are left "
                  "out"));
  }

  // Aligns the ranks' clocks to that of the lowest rank. Ranks on the lowest rank's node share its
  // clock.
  void align() {
    const RankInPicture& reference = ranks_.front();
    const std::optional<JobFacts> job = first_job();
    for (RankInPicture& rank : ranks_) {
      if (&rank == &reference || shares_node(job, reference.folder.rank, rank.folder.rank))
        continue;
      const auto shift = shift_between(reference.survey.reductions(), rank.survey.reductions());
      rank.is_clock_known = shift.has_value();
      if (shift) rank.clock = *shift;
      if (!shift)
        note(concat(
            "rank ", rank.folder.rank,
            ": drawn by the rank's own clock: too few reductions to compare it with that of rank ",
            reference.folder.rank));
    }
  }

  fs::path journal() const { return fs::path(request_.run) / "journal.cox"; }

  // Returns the job from the journal's first entry; nullopt without a readable journal.
  std::optional<JobFacts> first_job() const {
    auto reader = runtime::JournalReader::open(journal(), io::Links::refused);
    if (!reader.ok()) return std::nullopt;
    auto entry = reader->next();
    auto* start = entry.ok() ? std::get_if<wire::JournalStart>(&*entry) : nullptr;
    return start != nullptr ? std::optional(std::move(start->job)) : std::nullopt;
  }

  static bool shares_node(const std::optional<JobFacts>& job, std::int32_t a, std::int32_t b) {
    if (!job || std::max(a, b) >= job->world_size) return false;
    const std::vector<NodeId>& nodes = job->node_of_rank;
    return nodes.empty() ||
           nodes[static_cast<std::size_t>(a)] == nodes[static_cast<std::size_t>(b)];
  }

  Status draw_rank(const RankInPicture& rank, const CoordinatorLanes& coordinator) {
    RankLanes lanes(rank.folder.rank, {origin_, rank.clock.offset_seconds},
                    coordinator.block_times(rank.folder.rank));
    lanes.begin(sink());
    const Status read = each_step(rank.folder.path, range_,
                                  [&](const StepLine& line) { lanes.draw(line, sink()); });
    lanes.finish(sink());
    const auto tell = [&](std::size_t count, std::string_view what) {
      diagnosis::tell_gap(notes_, rank.folder.rank, count, what);
    };
    tell(rank.damaged, " damaged lines are left out");
    tell(lanes.moved(),
         " steps are drawn later than their timestamps say, because they would "
         "overlap: a clock was set back, or times are wrong");
    tell(lanes.impossible(), " impossible times within steps are left out");
    tell(lanes.beyond(),
         " steps are left out: their times are years away from those of other steps");
    draw_host(rank);
    return read;
  }

  // Draws samples of the host, in at most about a tenth of the picture's events. Ignores a file
  // that cannot be read, because an earlier note names the file.
  void draw_host(const RankInPicture& rank) {
    const fs::path path = rank.folder.path / io::kHostFileName;
    const double last = rank.survey.end_seconds() + kSecondsAround;
    std::uint64_t events = 0;
    bool lacks_gpus = false;
    const Status counted = io::each_host_sample(path, [&](const HostSample& sample) {
      if (sample.timestamp <= last) events += diagnosis::events_of(sample);
      lacks_gpus = lacks_gpus || (sample.node && sample.start && sample.start->gpus < 0);
    });
    if (!counted.ok()) return;
    if (lacks_gpus)
      note(concat("the node of rank ", rank.folder.rank, ": no NVML, so GPUs are not drawn"));
    const std::uint64_t room = request_.most_events / 10 / ranks_.size() + 1;
    diagnosis::HostLanes lanes(rank.folder.rank, {origin_, rank.clock.offset_seconds}, last,
                               events / room + 1);
    static_cast<void>(
        io::each_host_sample(path, [&](const HostSample& sample) { lanes.draw(sample, sink()); }));
    if (!idle_) return;
    const auto idle = std::ranges::find(idle_->ranks, rank.folder.rank, &diagnosis::RankIdle::rank);
    if (idle != idle_->ranks.end()) lanes.draw_idle(idle->spans, sink());
  }

  std::string facts(const CoordinatorLanes& coordinator) const {
    io::JsonWriter json;
    json.begin_object().field("made_by", "cox trace");
    json.field("run", ranks_.front().folder.info.name);
    json.field("begins_unix_seconds", origin_);
    json.key("clocks").begin_array();
    for (const RankInPicture& rank : ranks_) {
      json.begin_object().field("rank", rank.folder.rank);
      json.field("offset_seconds", rank.clock.offset_seconds);
      json.key("error_seconds");
      rank.is_clock_known ? json.value(rank.clock.error_seconds) : json.null();
      json.field("compared_rounds", rank.clock.rounds);
      const auto host = coordinator.hosts().find(rank.folder.rank);
      if (host != coordinator.hosts().end()) {
        json.field("host", host_name(host->second));
        if (host->second.clock_error_seconds >= 0)
          json.field("waiting_error_seconds", host->second.clock_error_seconds);
      }
      json.end_object();
    }
    json.end_array();
    metrics::put_list(json, "left_out", notes_);
    json.end_object();
    return json.take();
  }

  const TraceRequest& request_;
  StepRange range_;
  io::TraceEventFile file_;
  std::vector<RankInPicture> ranks_;
  double origin_ = 0;  // Unix time
  std::uint64_t left_out_ = 0;
  std::vector<std::string> notes_;
  std::optional<diagnosis::IdleTime> idle_;
};

void tell(const std::vector<std::string>& notes) {
  for (std::size_t i = 0; i < std::min(notes.size(), kMostNotes); ++i)
    fmt::print(stderr, "cox: {}\n", printable(notes[i]));
  if (notes.size() > kMostNotes)
    fmt::print(stderr, "cox: {} more such lines are in the file, under otherData\n",
               notes.size() - kMostNotes);
}

Status put_to_stdout(std::string_view text) {
  const int error = io::write_all(STDOUT_FILENO, text);
  return error == 0 ? ok_status() : io::errno_status(error, "standard output");
}

}  // namespace

Status trace_command(const TraceRequest& request) {
  const auto range = step_range(request.steps);
  if (!range.ok()) return range.status();
  const auto wanted = rank_ranges(request.ranks);
  if (!wanted.ok()) return wanted.status();
  auto folders = io::folders_of_run(request.run);
  if (!folders.ok()) return folders.status();
  std::optional<io::AtomicFile> file;
  Picture picture(request, *range, [&file](std::string_view text) {
    return file ? file->write(text.data(), text.size()) : put_to_stdout(text);
  });
  if (Status looked = picture.survey(*std::move(folders), *wanted); !looked.ok()) return looked;
  if (!request.out.empty()) {
    auto created = io::AtomicFile::create(request.out);
    if (!created.ok()) return created.status();
    file.emplace(*std::move(created));
  }
  if (Status drawn = picture.draw(); !drawn.ok()) return drawn;
  tell(picture.notes());
  if (!file) return ok_status();
  if (Status kept = file->commit(); !kept.ok()) return kept;
  fmt::print("{}: {} events of {} ranks; open it in ui.perfetto.dev\n", printable(request.out),
             picture.events(), picture.ranks());
  return ok_status();
}

}  // namespace cox::tools
