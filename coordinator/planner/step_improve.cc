#include "coordinator/planner/step_improve.h"

#include <algorithm>
#include <array>
#include <bit>

namespace cox::planner {
namespace {

constexpr std::size_t kWorkOfMove = 16;  // what a move costs beside the runs that it looks at
constexpr std::size_t kPeriod = 512;     // moves after which the price of excess is looked at
constexpr std::size_t kTries = 60;       // to draw what suits a move
constexpr std::size_t kNoEnd = std::size_t{1} << 16;

class Annealing {
 public:
  Annealing(StepRuns& steps, std::int64_t step_ns, std::size_t most_work, Draws& draws)
      : steps_(steps), draws_(draws), most_work_(most_work) {
    const auto operators = static_cast<double>(steps.runs().back().op + 1);
    hot_ = static_cast<double>(step_ns) / operators;
    const auto room = static_cast<double>(std::max<std::int64_t>(1, steps.room_bytes()));
    price_ = static_cast<double>(step_ns) / room / 2;
  }

  std::optional<Improved> run() {
    const std::size_t begun = steps_.work();
    note_best();
    double now = cost();
    for (std::size_t i = 0;; ++i) {
      const std::size_t spent = steps_.work() - begun + i * kWorkOfMove;
      if (spent >= most_work_) break;
      if (i % kPeriod == kPeriod - 1) {
        adapt_price();
        now = cost();
      }
      const double rest = 1 - static_cast<double>(spent) / static_cast<double>(most_work_);
      const double heat = hot_ * (rest * rest * rest + 0.02);
      move();
      if (changes_.empty()) continue;
      const double next = cost();
      if (next <= now || next <= now + heat * draws_.exponential()) {
        now = next;
        changes_.clear();
        note_best();
      } else {
        undo();
      }
      fitted_ += steps_.excess() == 0 ? 1 : 0;
    }
    return std::move(best_);
  }

 private:
  struct Change {
    Run run;
    bool is_insertion = false;
  };

  double cost() const {
    return static_cast<double>(steps_.added_ns()) + price_ * static_cast<double>(steps_.excess());
  }

  // So that between a third and two thirds of what is looked at fits.
  void adapt_price() {
    if (fitted_ < kPeriod / 3) price_ *= 1.05;
    if (fitted_ > kPeriod * 2 / 3) price_ /= 1.05;
    fitted_ = 0;
  }

  void note_best() {
    if (steps_.excess() > 0 || (best_ && best_->added_ns <= steps_.added_ns())) return;
    best_ = Improved{steps_.runs(), steps_.added_ns()};
  }

  void insert(Run run) {
    steps_.insert(run);
    changes_.push_back({run, true});
  }
  void erase(Run run) {
    steps_.erase(run);
    changes_.push_back({run, false});
  }
  void undo() {
    for (; !changes_.empty(); changes_.pop_back()) {
      if (changes_.back().is_insertion)
        steps_.erase(changes_.back().run);
      else
        steps_.insert(changes_.back().run);
    }
  }

  void move() {
    const std::size_t kind = draws_.below(12);
    if (kind < 1) {
      add_for_any_read();
    } else if (kind < 3) {
      if (const auto run = drawn_again()) take_away(*run, drawn_depth());
    } else if (kind < 6) {
      shift();
    } else if (kind < 9) {
      add_across_peak();
    } else if (const auto run = drawn_again()) {
      take_away(*run, drawn_depth());
      for (int i = 0; i < 2 && steps_.excess() > 0; ++i) add_across_peak();
    }
  }

  std::size_t drawn_depth() {
    static constexpr std::array<std::size_t, 6> kDepths{0, 0, 1, 2, 4, kNoEnd};
    return kDepths[draws_.below(kDepths.size())];
  }

  template <class Items>
  const auto& drawn(const Items& items) {
    return items[draws_.below(items.size())];
  }

  // A run that is not the first of its operator.
  std::optional<Run> drawn_again() {
    if (steps_.added_runs() == 0) return std::nullopt;
    for (std::size_t i = 0; i < 4 * kTries; ++i) {
      const Run run = drawn(steps_.runs());
      if (!run.is_first()) return run;
    }
    return std::nullopt;
  }

  void add_for_any_read() {
    const Run run = drawn(steps_.runs());
    if (steps_.reads(run.op).empty()) return;
    make_for(drawn(steps_.reads(run.op)), run, drawn_depth());
  }

  // Makes a tensor again for its next read, that now lies there while the memory is high.
  void add_across_peak() {
    const Run high = steps_.runs()[high_position()];
    const std::size_t before = changes_.size();
    for (std::size_t i = 0; i < kTries && changes_.size() == before; ++i) {
      const auto tensor = static_cast<std::int32_t>(draws_.below(steps_.tensors()));
      const std::vector<Run>& uses = steps_.uses(tensor);
      if (!(uses.front() < high) || !(high < uses.back())) continue;
      if (std::ranges::binary_search(uses, high)) continue;
      const UsesAround its = steps_.around(tensor, high);
      if (steps_.is_needed(tensor, its.after)) make_for(tensor, *its.after, drawn_depth());
    }
  }

  std::size_t high_position() {
    const std::vector<std::int64_t>& bytes = steps_.bytes();
    if (steps_.excess() > 0 && draws_.below(2) == 0) {
      for (std::size_t i = 0; i < kTries; ++i) {
        const std::size_t p = draws_.below(bytes.size());
        if (bytes[p] > steps_.room_bytes()) return p;
      }
    }
    return static_cast<std::size_t>(std::ranges::max_element(bytes) - bytes.begin());
  }

  // Makes a tensor again in the turn of `reader`, and mostly also, up to `depth` steps back, what
  // is read for that and would otherwise have to stay for it.
  void make_for(std::int32_t tensor, Run reader, std::size_t depth) {
    const Run run{reader.turn, steps_.maker(tensor)};
    if (run.op >= run.turn || !(run < reader) || steps_.has(run)) return;
    insert(run);
    if (depth == 0) return;
    for (const std::int32_t t : steps_.reads(run.op)) {
      const UsesAround its = steps_.around(t, run);
      if (steps_.is_needed(t, its.after) || its.before->turn == run.turn) continue;
      if (draws_.below(8) > 0) make_for(t, run, depth - 1);
    }
  }

  // Takes a run away, and up to `depth` steps back what ran in its turn for it alone.
  void take_away(Run run, std::size_t depth) {
    erase(run);
    if (depth == 0) return;
    for (const std::int32_t t : steps_.reads(run.op)) {
      const UsesAround its = steps_.around(t, run);
      if (steps_.is_needed(t, its.after)) continue;
      const Run before = *its.before;
      const bool was_for_it =
          before.op == steps_.maker(t) && !before.is_first() && before.turn == run.turn;
      if (was_for_it && !steps_.is_useful(before)) take_away(before, depth - 1);
    }
  }

  // Moves a run to the turn of another use of what it reads or makes, or to a turn close by.
  void shift() {
    const std::optional<Run> run = drawn_again();
    if (!run) return;
    std::int32_t turn = run->turn;
    if (draws_.below(4) == 0) {
      turn += static_cast<std::int32_t>(draws_.below(9)) - 4;
    } else {
      const std::vector<Run>& uses = steps_.uses(drawn_neighbour(run->op));
      const auto place = std::ranges::lower_bound(uses, *run) - uses.begin();
      const auto step = static_cast<std::ptrdiff_t>(1 + draws_.below(2));
      const auto other = draws_.below(2) == 0 ? place - step : place + step;
      if (other < 0 || other >= std::ssize(uses)) return;
      turn = uses[static_cast<std::size_t>(other)].turn;
    }
    const Run to{turn, run->op};
    if (turn <= run->op || turn >= steps_.operators() || steps_.has(to)) return;
    erase(*run);
    insert(to);
  }

  std::int32_t drawn_neighbour(std::int32_t op) {
    const auto& makes = steps_.makes(op);
    const std::size_t drawn = draws_.below(makes.size() + steps_.reads(op).size());
    return drawn < makes.size() ? makes[drawn] : steps_.reads(op)[drawn - makes.size()];
  }

  StepRuns& steps_;
  Draws& draws_;
  const std::size_t most_work_;
  double hot_ = 0;    // ns that a change may cost at first
  double price_ = 0;  // ns for each byte of excess
  std::size_t fitted_ = 0;
  std::vector<Change> changes_;  // of the move that is looked at
  std::optional<Improved> best_;
};

}  // namespace

std::uint64_t Draws::next() {
  state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
  return state_ >> 33;
}

// -log2 of a number from 0 to 1, straight between powers of two.
double Draws::exponential() {
  const std::uint64_t drawn = next() | 1;
  const int width = std::bit_width(drawn);
  const auto part = static_cast<double>(drawn) / static_cast<double>(std::uint64_t{1} << width);
  return 0.693 * (31 - width + 2 * (1 - part));
}

std::optional<Improved> improve(StepRuns& steps, std::int64_t step_ns, std::size_t most_work,
                                Draws& draws) {
  return Annealing(steps, step_ns, most_work, draws).run();
}

}  // namespace cox::planner
