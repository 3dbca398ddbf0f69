#include "tests/metrics/analysis/made_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace cox::test {
namespace {

using diagnosis::TraceRow;
using Kind = diagnosis::OperationKind;

// A forward or backward pass of one micro-batch through one chunk of the model.
struct Pass {
  Kind kind{};
  int place = 0;  // the chunk's place in the model
  int microbatch = 0;
  auto operator<=>(const Pass&) const = default;
};

// One step of one data-parallel rank.
class Pipeline {
 public:
  Pipeline(const MadeLayout& layout, const MadeSeconds& seconds, int step, int dp_rank,
           std::vector<TraceRow>& rows)
      : layout_(layout), seconds_(seconds), step_(step), dp_rank_(dp_rank), rows_(rows) {}

  // Runs all passes. Returns when each stage is done. The first pass of a chunk waits for its
  // parameters, [stage][chunk].
  std::vector<double> run(const std::vector<std::vector<double>>& gathered) {
    std::vector<std::vector<Pass>> orders;
    for (int stage = 0; stage < layout_.stages; ++stage) orders.push_back(order_of(stage));
    std::vector<std::size_t> next(orders.size());
    gathered_ = &gathered;
    free_.assign(orders.size(), 0);
    pass_ends_.assign(orders.size(), {});
    for (bool moves = true; moves;) {
      moves = false;
      for (int stage = 0; stage < layout_.stages; ++stage) {
        auto& at = next[static_cast<std::size_t>(stage)];
        const auto& order = orders[static_cast<std::size_t>(stage)];
        while (at < order.size() && try_run(stage, order, at)) {
          ++at;
          moves = true;
        }
      }
    }
    return free_;
  }

  void add(int stage, Kind kind, int chunk, double start, double end) {
    TraceRow row;
    row.step = 10 + step_;
    row.dp_rank = dp_rank_;
    row.stage = stage;
    row.rank = stage * layout_.dp_ranks + dp_rank_;
    row.kind = kind;
    row.sequence = count_[{stage, kind}]++;
    row.chunk = chunk;
    row.global_chunk = chunk < 0 ? -1 : chunk * layout_.stages + stage;
    row.start_seconds = start;
    row.seconds = end - start;
    row.line = static_cast<std::uint32_t>(rows_.size() + 2);
    rows_.push_back(row);
  }
  double own(Kind kind, int stage, int sequence) const {
    return seconds_({kind, step_, dp_rank_, stage, sequence});
  }

 private:
  int last_place() const { return layout_.stages * layout_.chunks - 1; }

  std::vector<Pass> order_of(int stage) const {
    std::vector<Pass> order;
    const auto pass = [&](Kind kind, int chunk, int microbatch) {
      order.push_back({kind, chunk * layout_.stages + stage, microbatch});
    };
    const int all = layout_.microbatches;
    if (layout_.chunks > 1) {
      for (int c = 0; c < layout_.chunks; ++c)
        for (int m = 0; m < all; ++m) pass(Kind::forward_compute, c, m);
      for (int c = layout_.chunks; c-- > 0;)
        for (int m = 0; m < all; ++m) pass(Kind::backward_compute, c, m);
      return order;
    }
    const int ahead = std::min(all, layout_.stages - stage);
    for (int m = 0; m < ahead; ++m) pass(Kind::forward_compute, 0, m);
    for (int m = 0; m < all; ++m) {
      pass(Kind::backward_compute, 0, m);
      if (m + ahead < all) pass(Kind::forward_compute, 0, m + ahead);
    }
    return order;
  }

  bool try_run(int stage, const std::vector<Pass>& order, std::size_t at) {
    const Pass& pass = order[at];
    const auto s = static_cast<std::size_t>(stage);
    const int from = pass.place + (pass.kind == Kind::forward_compute ? -1 : 1);
    const int chunk = pass.place / layout_.stages;
    double start = std::max(free_[s], (*gathered_)[s][static_cast<std::size_t>(chunk)]);
    if (from >= 0 && from <= last_place()) {
      const auto sent = sent_.find({pass.kind, from, pass.microbatch});
      if (sent == sent_.end()) return false;
      start = std::max(start, receive(stage, order, at, sent->second));
    } else if (layout_.recorded == MadeLayout::Recorded::all) {
      const double posted = posted_at(stage, order, at);
      lane_[{stage, receive_of(pass)}] = posted;
      add(stage, receive_of(pass), -1, posted, posted);
    }
    const double end = start + own(pass.kind, stage, count_[{stage, pass.kind}]);
    add(stage, pass.kind, chunk, start, end);
    ends_[{stage, pass.kind}] = end;
    pass_ends_[s].push_back(end);
    free_[s] = end;
    send(stage, pass, end);
    return true;
  }

  static Kind receive_of(const Pass& pass) {
    return pass.kind == Kind::forward_compute ? Kind::forward_recv : Kind::backward_recv;
  }

  // Returns when the receive for a pass is posted: after the last receive in the lane, and after
  // the last pass in the same direction. The first backward receive is posted when all but one of
  // the earlier passes have ended.
  double posted_at(int stage, const std::vector<Pass>& order, std::size_t at) {
    const Pass& pass = order[at];
    const double posted = std::max(lane_[{stage, receive_of(pass)}], ends_[{stage, pass.kind}]);
    const bool is_first_backward =
        pass.kind == Kind::backward_compute && count_[{stage, pass.kind}] == 0;
    if (!is_first_backward || at < 2) return posted;
    return std::max(posted, pass_ends_[static_cast<std::size_t>(stage)][at - 2]);
  }

  double receive(int stage, const std::vector<Pass>& order, std::size_t at, std::size_t send_row) {
    const Kind kind = receive_of(order[at]);
    const double posted = posted_at(stage, order, at);
    TraceRow send = rows_[send_row];
    double& send_lane = lane_[{send.stage, send.kind}];
    send.start_seconds = std::max(send.start_seconds, send_lane);
    const double both = std::max(posted, send.start_seconds);
    send_lane = both + own(send.kind, send.stage, send.sequence);
    send.seconds = send_lane - send.start_seconds;
    rows_[send_row] = send;
    const double end = both + own(kind, stage, count_[{stage, kind}]);
    add(stage, kind, -1, posted, end);
    lane_[{stage, kind}] = end;
    return end;
  }

  void send(int stage, const Pass& pass, double end) {
    const bool is_forward = pass.kind == Kind::forward_compute;
    const Kind kind = is_forward ? Kind::forward_send : Kind::backward_send;
    const int to = pass.place + (is_forward ? 1 : -1);
    const bool has_partner = to >= 0 && to <= last_place();
    if (!has_partner && layout_.recorded == MadeLayout::Recorded::with_partner) return;
    if (has_partner) sent_[pass] = rows_.size();
    add(stage, kind, -1, end, end);
  }

  const MadeLayout& layout_;
  const MadeSeconds& seconds_;
  int step_;
  int dp_rank_;
  std::vector<TraceRow>& rows_;
  std::map<std::pair<int, Kind>, int> count_;
  std::map<std::pair<int, Kind>, double> lane_;  // [stage, kind]: end of its last communication
  std::map<std::pair<int, Kind>, double> ends_;  // [stage, kind]: end of its last pass
  std::map<Pass, std::size_t> sent_;             // row of the send of each pass
  const std::vector<std::vector<double>>* gathered_ = nullptr;
  std::vector<double> free_;                    // [stage]: end of the last pass
  std::vector<std::vector<double>> pass_ends_;  // [stage], in order
};

// All data-parallel ranks of one step, which meet at gathers, scatters and the norm of gradients.
class Step {
 public:
  Step(const MadeLayout& layout, const MadeSeconds& seconds, int step, std::vector<TraceRow>& rows)
      : layout_(layout),
        at_(static_cast<std::size_t>(layout.dp_ranks),
            std::vector<double>(static_cast<std::size_t>(layout.stages))) {
    for (int d = 0; d < layout.dp_ranks; ++d) ranks_.emplace_back(layout, seconds, step, d, rows);
  }

  void run() {
    const auto stages = static_cast<std::size_t>(layout_.stages);
    const std::vector<double> at_once(static_cast<std::size_t>(layout_.chunks));
    gathered_.assign(ranks_.size(), std::vector<std::vector<double>>(stages, at_once));
    if (layout_.dp_ranks > 1) meet_by_stage(Kind::params_all_gather);
    for (std::size_t d = 0; d < ranks_.size(); ++d) at_[d] = ranks_[d].run(gathered_[d]);
    work(Kind::gc);
    work(Kind::layernorm_grads_all_reduce);
    meet_at_ends();
    if (layout_.dp_ranks > 1) meet_by_stage(Kind::grads_reduce_scatter);
    meet_all(Kind::optimizer_clip_main_grad);
    work(Kind::optimizer);
  }

 private:
  double& at(std::size_t d, int stage) { return at_[d][static_cast<std::size_t>(stage)]; }
  void finish(std::size_t d, int stage, Kind kind, int chunk, double begun) {
    const double end = begun + ranks_[d].own(kind, stage, chunk < 0 ? 0 : chunk);
    ranks_[d].add(stage, kind, chunk, at(d, stage), end);
    at(d, stage) = end;
  }

  void work(Kind kind) {
    for (std::size_t d = 0; d < ranks_.size(); ++d)
      for (int s = 0; s < layout_.stages; ++s) finish(d, s, kind, -1, at(d, s));
  }
  void meet_by_stage(Kind kind) {
    for (int s = 0; s < layout_.stages; ++s) {
      for (int chunk = 0; chunk < layout_.chunks; ++chunk) {
        double begun = 0;
        for (std::size_t d = 0; d < ranks_.size(); ++d) begun = std::max(begun, at(d, s));
        for (std::size_t d = 0; d < ranks_.size(); ++d) {
          finish(d, s, kind, chunk, begun);
          gathered_[d][static_cast<std::size_t>(s)][static_cast<std::size_t>(chunk)] = at(d, s);
        }
      }
    }
  }
  void meet_at_ends() {
    const int last = layout_.stages - 1;
    for (std::size_t d = 0; d < ranks_.size(); ++d) {
      const double begun = std::max(at(d, 0), at(d, last));
      finish(d, 0, Kind::embedding_grads_all_reduce, -1, begun);
      if (last > 0) finish(d, last, Kind::embedding_grads_all_reduce, -1, begun);
    }
  }
  void meet_all(Kind kind) {
    double begun = 0;
    for (const auto& rank : at_) begun = std::max(begun, *std::ranges::max_element(rank));
    for (std::size_t d = 0; d < ranks_.size(); ++d)
      for (int s = 0; s < layout_.stages; ++s) finish(d, s, kind, -1, begun);
  }

  const MadeLayout& layout_;
  std::vector<std::vector<double>> at_;  // [dp_rank][stage]
  std::vector<Pipeline> ranks_;
  std::vector<std::vector<std::vector<double>>> gathered_;  // times, [dp_rank][stage][chunk]
};

}  // namespace

double usual_seconds(const MadeOperation& operation) {
  switch (operation.kind) {
    case Kind::forward_compute:
      return 0.010;
    case Kind::backward_compute:
      return 0.020;
    case Kind::optimizer:
      return 0.004;
    case Kind::gc:
    case Kind::layernorm_grads_all_reduce:
      return 0;
    case Kind::params_all_gather:
    case Kind::grads_reduce_scatter:
      return 0.003;
    default:
      return 0.0005;
  }
}

std::vector<TraceRow> made_trace(const MadeLayout& layout, const MadeSeconds& seconds) {
  std::vector<TraceRow> rows;
  for (int step = 0; step < layout.steps; ++step) Step(layout, seconds, step, rows).run();
  return rows;
}

std::string csv_of(const std::vector<TraceRow>& rows) {
  std::string out = "step,dp_rank,stage,rank,op,seq,chunk,global_chunk,microbatch,start_s,dur_s\n";
  for (const TraceRow& r : rows)
    out += fmt::format("{},{},{},{},{},{},{},{},-1,{},{}\n", r.step, r.dp_rank, r.stage, r.rank,
                       to_string(r.kind), r.sequence, r.chunk, r.global_chunk, r.start_seconds,
                       std::max(0.0, r.seconds));
  return out;
}

}  // namespace cox::test
