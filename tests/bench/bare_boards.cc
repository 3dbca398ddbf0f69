#include "tests/bench/bare_boards.h"

#include <sched.h>

#include <array>
#include <chrono>

#include "coordinator/transport/wait.h"

namespace cox::bench {

using transport::BoardShape;
using transport::MaskBoard;
using transport::SignalBoard;

namespace {

constexpr std::size_t kMaskBytes = 128;
constexpr std::size_t kMaskRoom = 1024;

}  // namespace

BareBoards::BareBoards(transport::SharedSegment memory, SignalBoard signals, MaskBoard masks,
                       RankId rank)
    : memory_(std::move(memory)), signals_(signals), masks_(masks), reader_(masks), rank_(rank) {
  if (rank_ == kRoot) thread_ = std::thread([this] { answer(); });
}

BareBoards::~BareBoards() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  signals_.notify();
  thread_.join();
}

Result<std::unique_ptr<BareBoards>> BareBoards::start(transport::Communicator& world) {
  const BoardShape shape{world.size(), 0};
  const std::size_t first = (SignalBoard::bytes_needed(shape) + 63) / 64 * 64;
  auto node = world.split_by_node();
  if (!node.ok()) return node.status();
  auto memory = (*node)->shared_segment(first + MaskBoard::bytes_needed(kMaskRoom));
  if (!memory.ok()) return memory.status();
  const auto front = memory->bytes().first(first);
  const auto back = memory->bytes().subspan(first);
  // Eight bytes, because an empty operation would not wait for the others.
  std::uint64_t here = 1;
  const auto meet = [&] {
    return transport::finish(
        world,
        world.start_all_reduce(std::as_writable_bytes(std::span(&here, 1)), transport::sum_u64()),
        transport::wait_policy(world.ranks_on_node(), 1));
  };
  const bool formats = world.rank() == kRoot;
  if (!formats) static_cast<void>(meet());
  auto signals = formats ? SignalBoard::format(front, shape) : SignalBoard::attach(front, shape);
  auto masks = formats ? MaskBoard::format(back, kMaskRoom) : MaskBoard::attach(back);
  if (formats) static_cast<void>(meet());
  if (!signals.ok()) return signals.status();
  if (!masks.ok()) return masks.status();
  return std::unique_ptr<BareBoards>(
      new BareBoards(std::move(*memory), *signals, *masks, world.rank()));
}

void BareBoards::answer() {
  const std::array<std::byte, kMaskBytes> mask{};
  const std::array<std::span<const std::byte>, 1> frames = {mask};
  while (!stopping_.load()) {
    const auto woken = signals_.wait(signals_.shape().ranks, std::chrono::seconds(1));
    if (woken != transport::BoardWake::complete) continue;
    signals_.collect();
    static_cast<void>(masks_.publish(frames));
  }
}

bool BareBoards::round() {
  RankSignal signal;
  signal.rank = rank_;
  const auto start = std::chrono::steady_clock::now();
  if (!signals_.post(rank_.value(), signal, {})) return false;
  for (std::uint32_t polls = 1; !reader_.poll(); ++polls) {
    sched_yield();
    const bool look = polls % 4096 == 0;
    if (look && std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) return false;
  }
  return true;
}

}  // namespace cox::bench
