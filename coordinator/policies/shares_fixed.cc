#include "coordinator/policies/shares_fixed.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "coordinator/policies/shares_levels.h"

namespace cox {
namespace {

constexpr double kLeastReports = 4;  // on either side of the change
constexpr double kLeastMove = 0.1;   // of the samples, so that a rank says anything
constexpr double kLeastPart = 0.02;  // of the mean samples, first number tried
constexpr double kStep = 1.15;       // to the next
constexpr int kSteps = 44;           // the last one is about nine times the mean

// One rank before and after its samples changed.
struct Move {
  double before = 0;  // samples of a step
  double after = 0;
  double work_ratio = 1;  // seconds after over seconds before
};

double reports_since(SharesNotes& notes, std::size_t rank) {
  return std::min<double>(notes.seen()[rank] - notes.seen_before()[rank], SharesNotes::kRecent);
}

double level_since(SharesNotes& notes, std::size_t rank) {
  return trimmed_mean(notes, rank, static_cast<std::size_t>(reports_since(notes, rank)));
}

std::vector<Move> moves_of(SharesNotes& notes) {
  std::vector<Move> moves;
  for (std::size_t r = 0; r < notes.ranks(); ++r) {
    const double before = notes.samples_before()[r];
    const double after = notes.samples()[r];
    const bool known = notes.work_before()[r] > 0 && reports_since(notes, r) >= kLeastReports;
    if (!known || std::fabs(after / before - 1) < kLeastMove) continue;
    const double work = level_since(notes, r) * notes.scale() * (after + notes.fixed_samples());
    moves.push_back({before, after, work / notes.work_before()[r]});
  }
  return moves;
}

double mean_error(const std::vector<Move>& moves, double fixed_samples) {
  double sum = 0;
  for (const Move& move : moves) {
    const double expected = (move.after + fixed_samples) / (move.before + fixed_samples);
    sum += std::fabs(log_ratio(move.work_ratio / expected));
  }
  return sum / static_cast<double>(moves.size());
}

struct Fit {
  double fixed_samples = 0;
  double error = 0;
};

Fit best_fit(const std::vector<Move>& moves) {
  double mean = 0;
  for (const Move& move : moves) mean += move.before / static_cast<double>(moves.size());
  Fit best{0, mean_error(moves, 0)};
  double fixed_samples = kLeastPart * mean;
  for (int i = 0; i < kSteps; ++i, fixed_samples *= kStep) {
    const double error = mean_error(moves, fixed_samples);
    if (error < best.error) best = {fixed_samples, error};
  }
  return best;
}

void put_on_new_terms(SharesNotes& notes, double fixed_samples) {
  for (std::size_t r = 0; r < notes.ranks(); ++r) {
    const double samples = notes.samples()[r];
    if (notes.count()[r] == 0 || samples == 0) continue;
    const double ratio = (samples + notes.fixed_samples()) / (samples + fixed_samples);
    notes.level()[r] *= ratio;
    for (double& time : notes.recent(r)) time *= ratio;
    notes.up()[r] = notes.up_since()[r] = notes.down()[r] = notes.down_since()[r] = 0;
    if (reports_since(notes, r) < kLeastReports) continue;
    notes.level()[r] = level_since(notes, r);
    notes.count()[r] = reports_since(notes, r);
  }
  notes.fixed_samples() = fixed_samples;
  notes.has_news() = 1;
}

}  // namespace

void remember_work(SharesNotes& notes) {
  for (std::size_t r = 0; r < notes.ranks(); ++r) {
    const double samples = notes.samples()[r];
    const bool known = notes.count()[r] >= kLeastReports && samples > 0;
    const double work = notes.level()[r] * notes.scale() * (samples + notes.fixed_samples());
    notes.work_before()[r] = known ? work : 0;
    notes.samples_before()[r] = samples;
    notes.seen_before()[r] = notes.seen()[r];
  }
}

void learn_fixed_samples(SharesNotes& notes, double least_error) {
  const std::vector<Move> moves = moves_of(notes);
  if (moves.size() < 2) return;
  const double error = mean_error(moves, notes.fixed_samples());
  const double noise = std::sqrt(2 * notes.pooled_variance() / kLeastReports);
  if (error < std::max(least_error, noise)) return;
  const Fit fit = best_fit(moves);
  if (fit.error <= error / 2) put_on_new_terms(notes, fit.fixed_samples);
}

}  // namespace cox
