#include "coordinator/runtime/mask_broadcast.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "coordinator/core/hash.h"

namespace cox::runtime {

using transport::DeviceLane;
using transport::NcclGroup;
using transport::NcclLibrary;
using transport::Progress;
using transport::StagingBuffer;

// The bytes of a broadcast. Frames come last, so that kernels find them at a fixed place.
struct MaskBroadcast::Parcel {
  std::uint32_t checksum = 0;  // of all that follows
  std::uint32_t sequence = 0;  // number of earlier broadcasts
  std::uint32_t frames = 0;
  std::uint32_t unused = 0;
  std::array<std::uint16_t, kFramesAtOnce> sizes{};
  std::array<std::array<std::byte, wire::kFrameBytes>, kFramesAtOnce> bytes{};
};

namespace {

template <class Parcel>
std::uint32_t checksum_of(const Parcel& parcel) {
  return crc32(std::as_bytes(std::span(&parcel, 1)).subspan(sizeof parcel.checksum));
}

}  // namespace

MaskBroadcast::MaskBroadcast(std::unique_ptr<DeviceLane> lane, std::array<StagingBuffer, 2> buffers,
                             std::unique_ptr<NcclGroup> group, std::chrono::nanoseconds limit)
    : lane_(std::move(lane)), group_(std::move(group)), buffers_(buffers), limit_(limit) {}

// A rank that cannot join votes with its error, so every rank learns why.
Result<std::unique_ptr<MaskBroadcast>> MaskBroadcast::create(transport::Communicator& world,
                                                             const Setup& setup) {
  static_assert(std::is_trivially_copyable_v<Parcel>);
  std::unique_ptr<DeviceLane> lane;
  std::array<StagingBuffer, 2> buffers;
  Status ready = setup.make_lane ? transport::take(setup.make_lane(), lane)
                                 : unavailable("masks over NCCL: expected a device, found none");
  for (StagingBuffer& buffer : buffers) {
    if (ready.ok()) ready = transport::take(lane->staging(sizeof(Parcel)), buffer);
  }
  const Result<NcclLibrary> library =
      ready.ok() ? NcclLibrary::open(setup.library) : Result<NcclLibrary>(ready);
  transport::NcclGroupOptions options;
  options.start_limit = setup.limit;
  options.max_ctas = 1;  // a few hundred bytes: one thread block beside the training kernels
  options.wait = setup.wait;
  auto group = NcclGroup::create(world, library, options, [&] { return lane->select_device(); });
  if (!group.ok()) return group.status();
  return std::unique_ptr<MaskBroadcast>(
      new MaskBroadcast(std::move(lane), buffers, std::move(*group), setup.limit));
}

MaskLane MaskBroadcast::lane() const {
  if (!status_.ok()) return MaskLane::failed;
  return stage_ == Stage::idle ? MaskLane::free : MaskLane::busy;
}

void MaskBroadcast::start(Frames frames) {
  if (!status_.ok()) return;
  patience_.reset();
  count_ = 0;
  stage_ = Stage::launching;
  if (group_->rank() == kRoot) fill(frames);
  status_ = launch();
}

void MaskBroadcast::fill(Frames frames) {
  Parcel parcel;
  parcel.sequence = started_;
  parcel.frames = static_cast<std::uint32_t>(std::min(frames.size(), kFramesAtOnce));
  for (std::size_t i = 0; i < parcel.frames; ++i) {
    const std::size_t size = std::min(frames[i].size(), wire::kFrameBytes);
    parcel.sizes[i] = static_cast<std::uint16_t>(size);
    std::copy_n(frames[i].begin(), size, parcel.bytes[i].begin());
  }
  parcel.checksum = checksum_of(parcel);
  std::memcpy(buffers_[started_ % 2].host.data(), &parcel, sizeof parcel);
}

Status MaskBroadcast::launch() {
  const StagingBuffer& buffer = buffers_[started_ % 2];
  if (group_->rank() == kRoot) {
    if (Status sent = lane_->upload(buffer, sizeof(Parcel)); !sent.ok()) return sent;
  }
  return group_->broadcast(buffer.device, buffer.device, sizeof(Parcel),
                           transport::nccl::Type::uint8, kRoot, lane_->stream());
}

void MaskBroadcast::round_agreed() {
  if (stage_ != Stage::idle && !patience_) patience_.emplace(limit_);
}

MaskBroadcast::Arrival MaskBroadcast::poll() {
  if (stage_ == Stage::idle || !status_.ok()) return Arrival::nothing;
  status_ = move_on();
  if (!status_.ok() || stage_ != Stage::idle) return Arrival::nothing;
  return unpack();
}

// Polls NCCL during the copy as well: a late error would otherwise leave the copy hanging.
Status MaskBroadcast::move_on() {
  const std::uint32_t slot = started_ % 2;
  const auto settled = group_->settle();
  if (!settled.ok()) return settled.status();
  if (stage_ == Stage::launching && *settled == Progress::done) {
    Status given = lane_->download(buffers_[slot], sizeof(Parcel));
    if (given.ok()) given = lane_->mark(slot);
    if (!given.ok()) return given;
    stage_ = Stage::copying;
  }
  if (stage_ == Stage::copying) {
    const auto passed = lane_->passed(slot);
    if (!passed.ok()) return passed.status();
    if (*passed == Progress::done) stage_ = Stage::idle;
  }
  if (stage_ == Stage::idle || !patience_ || !patience_->is_over()) return ok_status();
  const double seconds = std::chrono::duration<double>(limit_).count();
  return unavailable("NCCL: mask broadcast ", started_, ": expected it to finish within ",
                     significant(seconds, 3),
                     " s of the step in which all ranks had started the broadcast");
}

MaskBroadcast::Arrival MaskBroadcast::unpack() {
  const StagingBuffer& buffer = buffers_[started_ % 2];
  Parcel parcel;
  std::memcpy(&parcel, buffer.host.data(), sizeof parcel);
  const bool is_sound = parcel.checksum == checksum_of(parcel) && parcel.sequence == started_ &&
                        parcel.frames <= kFramesAtOnce &&
                        std::ranges::all_of(parcel.sizes, [](std::uint16_t size) {
                          return size <= wire::kFrameBytes;
                        });
  ++started_;
  if (!is_sound) return Arrival::damaged;
  count_ = parcel.frames;
  for (std::size_t i = 0; i < count_; ++i) {
    frames_[i] =
        buffer.host.subspan(offsetof(Parcel, bytes) + i * wire::kFrameBytes).first(parcel.sizes[i]);
  }
  return count_ == 0 ? Arrival::nothing : Arrival::frames;
}

void MaskBroadcast::give_up(const Status& why) {
  if (status_.ok()) status_ = why;
  group_->abort(status_);
}

}  // namespace cox::runtime
