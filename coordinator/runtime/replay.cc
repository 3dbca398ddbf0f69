#include "coordinator/runtime/replay.h"

#include <algorithm>
#include <string_view>

#include "coordinator/core/config.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/decide/decide.h"

namespace cox::runtime {
namespace {

std::string listed(const std::vector<std::string>& words) {
  return words.empty() ? "none" : joined(words);
}

// Returns the policies in the order of the journal, which may have fewer.
Result<PolicySet> recorded_policies(const std::vector<std::string>& names, const PolicySet& known) {
  PolicySet set;
  for (const std::string& name : names) {
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const auto& policy) { return policy->name() == name; });
    if (found == known.end())
      return failed_precondition("the journal was made with the policies ", listed(names),
                                 ", and '", name,
                                 "' is not built into this program; replay it with the program "
                                 "that registers it");
    set.push_back(*found);
  }
  return set;
}

// Returns the recorded configuration. A policy without settings of its own gets a key for its mode.
Result<Config> recorded_config(const wire::JournalStart& start, const ReplayOptions& options) {
  Config config;
  for (const std::string& policy : start.policies) {
    config.policy_modes.emplace(policy, PolicyMode::on);
  }
  if (Status s = apply_text(config, start.config, "the journal's configuration"); !s.ok()) return s;
  if (Status s = apply_text(config, options.file_text, options.file_name); !s.ok()) return s;
  const auto applied = apply_flags(config, options.flags);
  if (!applied.ok()) return applied.status();
  if (!applied->rest.empty())
    return invalid_argument("expected --cox.key=value, found '", applied->rest.front(), "'");
  if (Status s = validate(config); !s.ok()) return s;
  return config;
}

std::string about(const Reason& reason) {
  return concat(to_string(reason.policy), " ", to_string(reason.code), " (",
                to_string(reason.outcome), "): ", reason.text);
}

std::string name_of(const Plan& plan) {
  return concat("plan ", plan.id.number);
}

class Replayer {
 public:
  Replayer(const PolicySet& known, const ReplayOptions& options)
      : known_(known), options_(options) {}

  Status begin(wire::JournalStart start) {
    auto policies = recorded_policies(start.policies, known_);
    if (!policies.ok()) return policies.status();
    auto config = recorded_config(start, options_);
    if (!config.ok()) return config.status();
    policies_ = std::move(*policies);
    config_ = std::move(*config);
    job_ = std::move(start.job);
    state_ = std::move(start.state);
    ++report_.segments;
    tell(concat("job '", job_.name, "', start ", job_.incarnation, ": ", job_.world_size,
                " ranks, ", job_.blocks.size(), " blocks, policies ", listed(start.policies)));
    if (start.first) compare_start(*start.first);
    return ok_status();
  }

  void play(const wire::JournalRound& recorded) {
    Decided decided = decide(job_, config_, policies_, state_, recorded.signals);
    where_ = concat("round ", recorded.signals.round.value());
    found_ = 0;
    compare_plans(recorded.decision.plan, decided.decision.plan, state_.plan);
    compare_reasons(recorded.decision.reasons, decided.decision.reasons);
    state_ = std::move(decided.state);
    ++report_.rounds;
    report_.reasons += recorded.decision.reasons.size();
    if (recorded.decision.plan) ++report_.plans;
    if (found_ > 0) ++report_.different_rounds;
  }

  ReplayReport finish(std::uint64_t torn_bytes) {
    report_.torn_bytes = torn_bytes;
    return std::move(report_);
  }

 private:
  void compare_start(const Decision& recorded) {
    Begun begun = begin_job(job_, config_, policies_, state_);
    where_ = concat("start ", job_.incarnation);
    found_ = 0;
    compare_plans(recorded.plan, begun.state.plan, state_.plan);
    compare_reasons(recorded.reasons, begun.reasons);
    state_ = std::move(begun.state);
    if (found_ > 0) ++report_.different_starts;
  }

  void compare_plans(const std::optional<Plan>& recorded, const std::optional<Plan>& now,
                     const Plan& before) {
    if (now) {
      tell(concat(where_, ": ", name_of(*now)));
      for (const std::string& line : diff(before, *now)) tell(concat("  ", line));
    }
    if (recorded == now) return;
    if (!recorded)
      return difference(concat("the journal has no plan, the replay sends ", name_of(*now)));
    if (!now)
      return difference(concat("the journal has ", name_of(*recorded), ", the replay sends none"));
    std::vector<std::string> lines = diff(*recorded, *now);
    if (lines.empty())
      lines.push_back(concat("id or earliest round, expected ", name_of(*recorded), " from round ",
                             recorded->earliest_round.value(), ", found ", name_of(*now),
                             " from round ", now->earliest_round.value()));
    for (const std::string& line : lines) difference(concat(name_of(*now), ": ", line));
  }

  void compare_reasons(const std::vector<Reason>& recorded, const std::vector<Reason>& now) {
    for (const Reason& reason : now) tell(concat(where_, ": ", about(reason)));
    const std::size_t count = std::max(recorded.size(), now.size());
    for (std::size_t i = 0; i < count; ++i) {
      if (i < recorded.size() && i < now.size() && recorded[i] == now[i]) continue;
      if (i < recorded.size()) difference(concat("the journal says ", about(recorded[i])));
      if (i < now.size()) difference(concat("the replay says ", about(now[i])));
    }
  }

  void tell(const std::string& line) const {
    if (options_.tell) options_.tell(line);
  }

  void difference(const std::string& line) {
    ++found_;
    if (report_.differences.size() < options_.max_differences)
      report_.differences.push_back(concat(where_, ": ", line));
  }

  const PolicySet& known_;
  const ReplayOptions& options_;
  PolicySet policies_;
  JobFacts job_;
  Config config_;
  ControlState state_;
  std::string where_;      // for messages: "round 7"
  std::size_t found_ = 0;  // differences in that round or start
  ReplayReport report_;
};

}  // namespace

Result<ReplayReport> replay(JournalReader& journal, const PolicySet& policies,
                            const ReplayOptions& options) {
  Replayer replayer(policies, options);
  for (;;) {
    auto entry = journal.next();
    if (!entry.ok()) return entry.status();
    if (const auto* end = std::get_if<JournalEnd>(&*entry)) return replayer.finish(end->torn_bytes);
    if (auto* start = std::get_if<wire::JournalStart>(&*entry)) {
      if (Status status = replayer.begin(std::move(*start)); !status.ok()) return status;
    } else {
      replayer.play(std::get<wire::JournalRound>(*entry));
    }
  }
}

}  // namespace cox::runtime
