#include "coordinator/planner/chain_front.h"

#include <algorithm>
#include <array>
#include <vector>

#include "coordinator/planner/step_tables.h"

namespace cox::planner {
namespace {

constexpr std::int64_t kNowhere = std::int64_t{1} << 60;

// Stages from one on: their reach above the level before them, and what led there.
struct Reach {
  std::int64_t bytes = 0;
  std::int64_t added_us = 0;
  std::uint32_t next = 0;  // index among the points of the stage behind
  std::uint8_t action = 0;
};

struct Step {
  std::uint32_t next;
  std::uint8_t action;
};

// The points behind the stage, seen through one action of it.
struct Lane {
  const StageOption* option = nullptr;
  std::uint8_t action = 0;
  std::size_t at = 0;
  std::int64_t bytes = 0;  // of the point at `at`
};

std::int64_t high_of(const StageOption& option) {
  return std::max(option.forward_high_bytes, option.backward_high_bytes);
}

bool is_no_better(const StageOption& a, const StageOption& b) {
  return a.kept_bytes >= b.kept_bytes && high_of(a) >= high_of(b) && a.added_us >= b.added_us;
}

class ChainPass {
 public:
  ChainPass(const MemoryProblem& problem, std::size_t most_points)
      : problem_(problem), most_points_(most_points), steps_(problem.stages.size()) {}

  ChainFront run() {
    points_ = {{-kNowhere, 0, 0, 0}};  // what the last stage keeps is in nobody's way
    for (std::size_t i = problem_.stages.size(); i-- > 0;) {
      extend(problem_.stages[i]);
      if (points_.size() > most_points_) drop();
      result_.labels += points_.size();
      for (const Reach& p : points_) steps_[i].push_back({p.next, p.action});
    }
    for (std::size_t i = 0; i < points_.size(); ++i) result_.front.push_back(point(i));
    return std::move(result_);
  }

 private:
  void place(Lane& lane) const {
    const StageOption& option = *lane.option;
    const std::int64_t high = high_of(option);
    if (lane.at >= points_.size()) return;
    // Of the points that stay below the stage's own mark only the last, the cheapest, matters.
    while (lane.at + 1 < points_.size() && points_[lane.at + 1].bytes + option.kept_bytes <= high)
      ++lane.at;
    lane.bytes = std::max(high, option.kept_bytes + points_[lane.at].bytes);
  }

  std::vector<Lane> lanes_of(const Stage& stage) const {
    std::vector<Lane> lanes;
    for (std::size_t a = 0; a < kActions; ++a) {
      const StageOption& option = stage.options[a];
      if (!option.allowed || option.is_copied()) continue;
      const auto beats = [&](const Lane& lane) { return is_no_better(option, *lane.option); };
      if (std::any_of(lanes.begin(), lanes.end(), beats)) continue;
      std::erase_if(lanes, [&](const Lane& lane) { return is_no_better(*lane.option, option); });
      lanes.push_back({&option, static_cast<std::uint8_t>(a), 0, 0});
      place(lanes.back());
    }
    return lanes;
  }

  // Merges the lanes by bytes and keeps what is cheaper than all before it.
  void extend(const Stage& stage) {
    std::vector<Lane> lanes = lanes_of(stage);
    next_.clear();
    while (true) {
      Lane* least = nullptr;
      for (Lane& lane : lanes) {
        if (lane.at >= points_.size()) continue;
        if (!least || lane.bytes < least->bytes ||
            (lane.bytes == least->bytes && added(lane) < added(*least)))
          least = &lane;
      }
      if (!least) break;
      if (next_.empty() || added(*least) < next_.back().added_us)
        next_.push_back(
            {least->bytes, added(*least), static_cast<std::uint32_t>(least->at), least->action});
      ++least->at;
      place(*least);
    }
    points_.swap(next_);
  }

  std::int64_t added(const Lane& lane) const {
    return points_[lane.at].added_us + lane.option->added_us;
  }

  // One point of each band of bytes stays: the one nearest to the line between the ends.
  void drop() {
    result_.is_exact = false;
    const Reach first = points_.front();
    const Reach last = points_.back();
    const double span = static_cast<double>(last.bytes - first.bytes) + 1;
    const double slope = static_cast<double>(first.added_us - last.added_us) / span;
    const double bands = static_cast<double>(most_points_ - 2);
    const auto lean = [&](const Reach& p) {
      return static_cast<double>(p.added_us) + slope * static_cast<double>(p.bytes - first.bytes);
    };
    next_ = {first};
    std::size_t band = 0;
    for (std::size_t i = 1; i + 1 < points_.size(); ++i) {
      const double part = static_cast<double>(points_[i].bytes - first.bytes) / span;
      const std::size_t own = 1 + static_cast<std::size_t>(bands * part);
      if (own != band)
        next_.push_back(points_[i]);
      else if (lean(points_[i]) < lean(next_.back()))
        next_.back() = points_[i];
      band = own;
    }
    next_.push_back(last);
    points_.swap(next_);
  }

  MemoryPoint point(std::size_t index) const {
    MemoryPoint out{problem_.base_bytes + points_[index].bytes, points_[index].added_us, {}};
    out.actions.reserve(steps_.size());
    for (const std::vector<Step>& steps : steps_) {
      out.actions.push_back(static_cast<MemoryAction>(steps[index].action));
      index = steps[index].next;
    }
    return out;
  }

  const MemoryProblem& problem_;
  std::size_t most_points_;
  std::vector<std::vector<Step>> steps_;
  std::vector<Reach> points_;
  std::vector<Reach> next_;
  ChainFront result_;
};

}  // namespace

ChainFront chain_front(const MemoryProblem& problem, std::size_t most_points) {
  return ChainPass(problem, most_points).run();
}

}  // namespace cox::planner
