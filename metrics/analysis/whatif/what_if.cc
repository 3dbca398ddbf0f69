#include "metrics/analysis/whatif/what_if.h"

#include <algorithm>
#include <numeric>

#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

using Traffic = OperationType::Traffic;

constexpr std::size_t kWorstPercent = 3;
constexpr double kCulpritShare = 0.5;

// Plain addition, as in the published figures.
double plain_mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Calls visit(place, operation, dp_rank) for each own time.
void for_each_time(const JobModel& model, auto&& visit) {
  std::size_t place = 0;
  for (std::size_t s = 0; s < model.steps.size(); ++s) {
    for (std::size_t o = 0; o < model.operations.size(); ++o) {
      for (std::size_t d = 0; d < model.dp_ranks; ++d) visit(place++, model.operations[o], d);
    }
  }
}

std::vector<double> ideal_seconds(const JobModel& model) {
  std::vector<std::vector<double>> samples(model.types.size());
  for_each_time(model, [&](std::size_t place, const Operation& operation, std::size_t) {
    samples[operation.type].push_back(model.own_seconds[place]);
  });
  std::vector<double> ideal;
  for (std::size_t t = 0; t < samples.size(); ++t) {
    const bool is_mean = model.types[t].centre == OperationType::Centre::mean;
    ideal.push_back(samples[t].empty() ? 0
                    : is_mean          ? plain_mean(samples[t])
                                       : median_of(samples[t]));
  }
  return ideal;
}

// Runs the simulations, each with the real times of some operations.
class Simulations {
 public:
  explicit Simulations(const JobModel& model)
      : model_(model), ideal_(ideal_seconds(model)), own_(model.own_seconds.size()) {}

  const std::vector<double>& ideal_of_types() const { return ideal_; }

  std::vector<double> actual() const { return simulate(model_, model_.own_seconds); }
  // Uses real times where is_real(operation, dp_rank) holds, ideal times elsewhere.
  std::vector<double> with_real(auto&& is_real) {
    for_each_time(model_, [&](std::size_t place, const Operation& operation, std::size_t d) {
      own_[place] = is_real(operation, d) ? model_.own_seconds[place] : ideal_[operation.type];
    });
    return simulate(model_, own_);
  }
  // Uses the real times of one data-parallel rank. The others are alike, so one lane represents
  // them.
  std::vector<double> with_real_rank(std::size_t rank) {
    const std::size_t lanes = std::min<std::size_t>(2, model_.dp_ranks);
    std::vector<double> own;
    own.reserve(lanes * own_.size() / model_.dp_ranks);
    std::size_t place = rank;
    for (std::size_t s = 0; s < model_.steps.size(); ++s) {
      for (const Operation& operation : model_.operations) {
        own.push_back(model_.own_seconds[place]);
        if (lanes == 2) own.push_back(ideal_[operation.type]);
        place += model_.dp_ranks;
      }
    }
    return simulate(model_, own, lanes);
  }
  std::vector<double> without(Traffic traffic) {
    for_each_time(model_, [&](std::size_t place, const Operation& operation, std::size_t) {
      const bool is_free = model_.types[operation.type].traffic == traffic;
      own_[place] = is_free ? 0 : model_.own_seconds[place];
    });
    return simulate(model_, own_);
  }

 private:
  const JobModel& model_;
  std::vector<double> ideal_;
  std::vector<double> own_;
};

Blame blame_of(Simulations& simulations, const WhatIf& so_far, auto&& is_blamed) {
  Blame blame;
  blame.removed_seconds = plain_mean(simulations.with_real(
      [&](const Operation& operation, std::size_t d) { return !is_blamed(operation, d); }));
  blame.added_seconds = plain_mean(simulations.with_real(is_blamed));
  const double lost = so_far.actual_seconds - so_far.ideal_seconds;
  // Rounding errors of a job without delays are no loss.
  constexpr double kRounding = 1e-12;
  if (std::abs(lost) <= kRounding * so_far.ideal_seconds) return blame;
  blame.removed_share = (so_far.actual_seconds - blame.removed_seconds) / lost;
  blame.added_share = (blame.added_seconds - so_far.ideal_seconds) / lost;
  return blame;
}

void add_labels(WhatIf& figures, Simulations& simulations, const JobModel& model) {
  for (const OperationType& type : model.types) {
    if (std::ranges::count(figures.labels, type.label, &LabelSlowdown::label) > 0) continue;
    LabelSlowdown label{type.label, 1, {}};
    label.of_steps = simulations.with_real([&](const Operation& operation, std::size_t) {
      return model.types[operation.type].label == type.label;
    });
    label.slowdown = plain_mean(label.of_steps) / figures.ideal_seconds;
    for (std::size_t s = 0; s < label.of_steps.size(); ++s)
      label.of_steps[s] /= figures.steps[s].ideal_seconds;
    figures.labels.push_back(std::move(label));
  }
  std::ranges::stable_sort(figures.labels, std::greater<>(), &LabelSlowdown::slowdown);
}

void add_places(WhatIf& figures, Simulations& simulations, const JobModel& model) {
  for (std::size_t rank = 0; rank < model.dp_ranks; ++rank) {
    const std::vector<double> seconds = simulations.with_real_rank(rank);
    figures.of_dp_ranks.push_back(plain_mean(seconds) / figures.ideal_seconds);
  }
  for (std::size_t stage = 0; stage < model.stages; ++stage) {
    const auto seconds = simulations.with_real(
        [stage](const Operation& operation, std::size_t) { return operation.stage == stage; });
    figures.of_stages.push_back(plain_mean(seconds) / figures.ideal_seconds);
  }
  for (const double of_dp_rank : figures.of_dp_ranks) {
    for (const double of_stage : figures.of_stages)
      figures.of_workers.push_back(std::min(of_dp_rank, of_stage));
  }
}

// Returns the places of the most costly workers. The lower rank wins a tie.
std::vector<std::size_t> worst_places(const WhatIf& figures, const JobModel& model) {
  std::vector<std::size_t> places(model.ranks.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::ranges::sort(places, [&](std::size_t a, std::size_t b) {
    if (figures.of_workers[a] != figures.of_workers[b])
      return figures.of_workers[a] > figures.of_workers[b];
    return model.ranks[a] < model.ranks[b];
  });
  places.resize((places.size() * kWorstPercent + 99) / 100);
  return places;
}

void add_blame(WhatIf& figures, Simulations& simulations, const JobModel& model) {
  std::vector<bool> is_worst(model.ranks.size());
  for (const std::size_t place : worst_places(figures, model)) {
    is_worst[place] = true;
    figures.worst_ranks.push_back(model.ranks[place]);
  }
  figures.worst = blame_of(simulations, figures, [&](const Operation& operation, std::size_t d) {
    return is_worst[d * model.stages + operation.stage];
  });
  figures.last_stage = blame_of(simulations, figures, [&](const Operation& operation, std::size_t) {
    return operation.stage + 1 == model.stages;
  });
}

void add_work(WhatIf& figures, const JobModel& model) {
  std::vector<std::size_t> label_of(model.types.size());
  for (std::size_t t = 0; t < model.types.size(); ++t)
    label_of[t] = static_cast<std::size_t>(
        std::ranges::find(figures.labels, model.types[t].label, &LabelSlowdown::label) -
        figures.labels.begin());
  const std::size_t labels = figures.labels.size();
  figures.work_seconds.assign(model.ranks.size() * labels, 0);
  const auto steps = static_cast<double>(model.steps.size());
  for_each_time(model, [&](std::size_t place, const Operation& operation, std::size_t d) {
    const std::size_t worker = d * model.stages + operation.stage;
    figures.work_seconds[worker * labels + label_of[operation.type]] +=
        model.own_seconds[place] / steps;
  });
}

void add_culprits(WhatIf& figures, Simulations& simulations, const JobModel& model) {
  const double lost = figures.slowdown - 1;
  if (lost < kLeastLoss || !model.doubt.empty()) return;
  std::vector<bool> is_culprit;
  for (const double worker : figures.of_workers)
    is_culprit.push_back(worker - 1 >= kCulpritShare * lost);
  const auto count = static_cast<std::size_t>(std::ranges::count(is_culprit, true));
  if (count == 0 || 2 * count > is_culprit.size()) return;
  figures.culprits.blame =
      blame_of(simulations, figures, [&](const Operation& operation, std::size_t d) {
        return is_culprit[d * model.stages + operation.stage];
      });
  if (figures.culprits.blame.removed_share.value_or(0) < kCulpritShare) return;
  for (std::size_t place = 0; place < is_culprit.size(); ++place) {
    if (is_culprit[place]) figures.culprits.ranks.push_back(model.ranks[place]);
  }
  std::ranges::sort(figures.culprits.ranks);
}

std::optional<double> speed_up_without(Traffic traffic, const WhatIf& figures,
                                       Simulations& simulations, const JobModel& model) {
  if (std::ranges::count(model.types, traffic, &OperationType::traffic) == 0) return std::nullopt;
  const double seconds = plain_mean(simulations.without(traffic));
  if (seconds <= 0) return std::nullopt;
  return figures.actual_seconds / seconds;
}

}  // namespace

Result<WhatIf> what_if(const JobModel& model) {
  Simulations simulations(model);
  const std::vector<double> actual = simulations.actual();
  const std::vector<double> ideal =
      simulations.with_real([](const Operation&, std::size_t) { return false; });
  WhatIf figures;
  figures.traced_seconds = plain_mean(model.traced_seconds);
  figures.actual_seconds = plain_mean(actual);
  figures.ideal_seconds = plain_mean(ideal);
  if (!(figures.actual_seconds > 0 && figures.ideal_seconds > 0))
    return invalid_argument("expected operations that take time, found none that do");
  figures.slowdown = figures.actual_seconds / figures.ideal_seconds;
  for (std::size_t s = 0; s < model.steps.size(); ++s)
    figures.steps.push_back({model.steps[s], model.traced_seconds[s], actual[s], ideal[s]});
  for (std::size_t t = 0; t < model.types.size(); ++t)
    figures.types.push_back({model.types[t].name, simulations.ideal_of_types()[t]});
  add_labels(figures, simulations, model);
  add_places(figures, simulations, model);
  add_work(figures, model);
  add_blame(figures, simulations, model);
  add_culprits(figures, simulations, model);
  figures.pipeline_free = speed_up_without(Traffic::pipeline, figures, simulations, model);
  figures.data_parallel_free =
      speed_up_without(Traffic::data_parallel, figures, simulations, model);
  return figures;
}

}  // namespace cox::diagnosis
