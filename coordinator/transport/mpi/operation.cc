#include "coordinator/transport/mpi/operation.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "coordinator/core/text.h"

namespace cox::transport {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kCombineBytes = 32 << 10;  // stays in the first-level cache
constexpr std::size_t kCarriedBytes = 4 << 10;   // copied behind the stamp if no larger

bool is_reduction(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce;
}

// MPI guarantees tags up to 32767. Far fewer operations than tags are ever in flight.
int tag_of(std::uint64_t number) {
  return static_cast<int>(number % 8192) * 2;
}

}  // namespace

Status mpi_status(int code, const char* call, const std::string& context) {
  if (code == MPI_SUCCESS) return ok_status();
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  std::string said(text.data(), static_cast<std::size_t>(length));
  if (said.empty()) said = concat("error ", code);
  return unavailable(call, " (", context, "): ", said);
}

void MpiOperation::FreeBytes::operator()(std::byte* p) const {
  ::operator delete[](p, kAlignment);
}

Status MpiOperation::begin(const MpiPlace& place, std::uint64_t number, const Call& call,
                           const CallStamp& stamp, const Buffers& buffers,
                           const Reduction& reduction) {
  place_ = &place;
  tag_ = tag_of(number);
  call_ = call;
  stamp_ = stamp;
  watched_since_.reset();
  buffers_ = buffers;
  reduction_ = reduction;
  failure_ = ok_status();
  requests_.clear();
  peers_.clear();
  if (!is_reduction(call.operation) || by_gather()) return begin_single();
  plan_chunks();
  return begin_exchange();
}

bool MpiOperation::by_gather() const {
  return call_.bytes <= place_->gather_limit_bytes / static_cast<std::size_t>(place_->size);
}

bool MpiOperation::has_all_parts() const {
  const bool to_all =
      call_.operation == Operation::all_gather || call_.operation == Operation::all_reduce;
  const bool to_root = call_.operation == Operation::gather || call_.operation == Operation::reduce;
  return to_all || (to_root && place_->rank == call_.root.value());
}

Status MpiOperation::begin_single() {
  stage_ = Stage::single;
  carries_bytes_ = is_reduction(call_.operation) || call_.bytes <= kCarriedBytes;
  stride_ = sizeof(CallStamp) + (carries_bytes_ ? call_.bytes : 0);
  const std::size_t ranks = has_all_parts() ? static_cast<std::size_t>(place_->size) : 0;
  own_ = scratch(round_up(stride_) + ranks * stride_);
  parts_ = own_ + round_up(stride_);
  std::memcpy(own_, &stamp_, sizeof stamp_);
  for (std::size_t r = 0; r < ranks; ++r) std::memset(part(static_cast<int>(r)), 0, sizeof stamp_);
  if (carries_bytes_ && !buffers_.send.empty())
    std::memcpy(own_ + sizeof stamp_, buffers_.send.data(), buffers_.send.size());
  Status begun = begin_collective(own_, parts_, stride_);
  if (!begun.ok() || carries_bytes_) return begun;
  const bool in_place = call_.operation == Operation::broadcast;
  auto* from = in_place ? buffers_.receive.data() : const_cast<std::byte*>(buffers_.send.data());
  return begin_collective(from, buffers_.receive.data(), call_.bytes);
}

// A broadcast receives into `send`.
Status MpiOperation::begin_collective(std::byte* send, std::byte* receive, std::size_t size) {
  const auto bytes = static_cast<MPI_Count>(size);
  const int root = call_.root.value();
  MPI_Request& request = request_with(root);
  const MPI_Comm comm = place_->comm;
  switch (call_.operation) {
    case Operation::gather:
    case Operation::reduce:
      return checked(
          MPI_Igather_c(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, root, comm, &request),
          "MPI_Igather", root);
    case Operation::broadcast:
      return checked(MPI_Ibcast_c(send, bytes, MPI_BYTE, root, comm, &request), "MPI_Ibcast", root);
    case Operation::all_gather:
    case Operation::all_reduce:
      return checked(
          MPI_Iallgather_c(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, comm, &request),
          "MPI_Iallgather", -1);
    default:
      return internal_error("mpi: ", describe(call_), " is not an operation that can be started");
  }
}

Status MpiOperation::finish_single() {
  stage_ = Stage::idle;
  if (Status same = check_stamps(); !same.ok()) return same;
  if (is_reduction(call_.operation)) {
    combine_gathered();
  } else if (carries_bytes_) {
    unpack();
  }
  return ok_status();
}

// Ranks in calls of other sizes may leave bytes that are no stamp. Notes then name the calls.
Status MpiOperation::check_stamps() const {
  const auto stamp_at = [](const std::byte* at) {
    CallStamp stamp;
    std::memcpy(&stamp, at, sizeof stamp);
    return stamp;
  };
  const bool is_sent = call_.operation == Operation::broadcast;
  const std::size_t ranks = has_all_parts() ? static_cast<std::size_t>(place_->size) : 0;
  bool is_same = !is_sent || stamp_at(own_).is_same(stamp_);
  for (std::size_t r = 0; r < ranks; ++r)
    is_same = is_same && stamp_at(part(static_cast<int>(r))).is_same(stamp_);
  if (is_same) return ok_status();
  std::vector<CallOf> calls;
  for (std::size_t r = 0; r < ranks; ++r)
    calls.push_back({place_->members[r], stamp_at(part(static_cast<int>(r)))});
  if (is_sent) {
    calls.push_back(
        {place_->members[static_cast<std::size_t>(call_.root.value())], stamp_at(own_)});
    calls.push_back({place_->members[static_cast<std::size_t>(place_->rank)], stamp_});
  }
  if (!std::ranges::all_of(calls, [](const CallOf& each) { return each.stamp.is_sound(); }))
    return data_loss(context(-1), ": expected the same call on all ranks, found other bytes");
  return check_same_call(calls);
}

void MpiOperation::unpack() {
  const std::size_t bytes = call_.bytes;
  if (bytes == 0) return;
  std::byte* into = buffers_.receive.data();
  const bool is_root = place_->rank == call_.root.value();
  if (call_.operation == Operation::broadcast && !is_root)
    std::memcpy(into, own_ + sizeof(CallStamp), bytes);
  for (int r = 0; r < place_->size && has_all_parts(); ++r, into += bytes)
    std::memcpy(into, part(r) + sizeof(CallStamp), bytes);
}

void MpiOperation::plan_chunks() {
  const std::size_t element = reduction_.element_bytes;
  const auto ranks = static_cast<std::size_t>(place_->size);
  elements_ = call_.bytes / element;
  // For each chunk, an all-reduce needs scratch for this rank's part from every rank. A reduce
  // needs scratch for the whole chunk from every rank.
  const std::size_t copies = call_.operation == Operation::all_reduce ? 1 : ranks;
  chunk_elements_ = std::max<std::size_t>(1, place_->scratch_limit_bytes / (copies * element));
  chunk_ = {0, std::min(chunk_elements_, elements_)};
}

bool MpiOperation::combines_here() const {
  return call_.operation != Operation::reduce || place_->rank == call_.root.value();
}

bool MpiOperation::sends_to(int peer) const {
  return call_.operation != Operation::reduce || peer == call_.root.value();
}

MpiOperation::Range MpiOperation::part_of(int rank) const {
  const auto ranks = static_cast<std::size_t>(place_->size);
  const auto r = static_cast<std::size_t>(rank);
  const std::size_t first = chunk_.count * r / ranks;
  return {chunk_.first + first, chunk_.count * (r + 1) / ranks - first};
}

Status MpiOperation::begin_exchange() {
  stage_ = Stage::exchange;
  const std::size_t element = reduction_.element_bytes;
  const bool all_reduce = call_.operation == Operation::all_reduce;
  const bool receives = combines_here();
  const std::size_t mine = (all_reduce ? part_of(place_->rank).count : chunk_.count) * element;
  stride_ = round_up(mine);
  std::byte* parts = receives ? scratch(stride_ * static_cast<std::size_t>(place_->size)) : nullptr;
  Status status;
  for (int i = 1; i < place_->size && receives && status.ok(); ++i) {
    const int peer = (place_->rank + i) % place_->size;
    status = receive(parts + static_cast<std::size_t>(peer) * stride_, mine, peer);
  }
  for (int i = 1; i < place_->size && status.ok(); ++i) {
    const int peer = (place_->rank + place_->size - i) % place_->size;
    if (!sends_to(peer)) continue;
    const Range part = all_reduce ? part_of(peer) : chunk_;
    status = send(buffers_.send.data() + part.first * element, part.count * element, peer);
  }
  return status;
}

Status MpiOperation::begin_collect() {
  stage_ = Stage::collect;
  const std::size_t element = reduction_.element_bytes;
  std::byte* buffer = buffers_.receive.data();
  Status status;
  for (int i = 1; i < place_->size && status.ok(); ++i) {
    const int peer = (place_->rank + i) % place_->size;
    const Range part = part_of(peer);
    status = receive(buffer + part.first * element, part.count * element, peer);
  }
  const Range mine = part_of(place_->rank);
  for (int i = 1; i < place_->size && status.ok(); ++i) {
    const int peer = (place_->rank + place_->size - i) % place_->size;
    status = send(buffer + mine.first * element, mine.count * element, peer);
  }
  return status;
}

MPI_Request& MpiOperation::request_with(int peer) {
  peers_.push_back(peer);
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

Status MpiOperation::receive(std::byte* into, std::size_t bytes, int peer) {
  if (bytes == 0) return ok_status();
  return checked(MPI_Irecv_c(into, static_cast<MPI_Count>(bytes), MPI_BYTE, peer, tag(),
                             place_->comm, &request_with(peer)),
                 "MPI_Irecv", peer);
}

Status MpiOperation::send(const std::byte* from, std::size_t bytes, int peer) {
  if (bytes == 0) return ok_status();
  return checked(MPI_Isend_c(from, static_cast<MPI_Count>(bytes), MPI_BYTE, peer, tag(),
                             place_->comm, &request_with(peer)),
                 "MPI_Isend", peer);
}

Result<Progress> MpiOperation::advance() {
  if (stage_ == Stage::failed) return failure_;
  if (stage_ == Stage::idle) return Progress::done;
  Result<bool> over = stage_is_over();
  if (over.ok() && !*over) return Progress::pending;
  failure_ = over.ok() ? after_stage() : over.status();
  if (!failure_.ok()) {
    stage_ = Stage::failed;
    abandon();
    return failure_;
  }
  return stage_ == Stage::idle ? Progress::done : Progress::pending;
}

Result<bool> MpiOperation::stage_is_over() {
  int flag = 1;
  statuses_.resize(requests_.size());
  const int code =
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &flag, statuses_.data());
  if (code == MPI_ERR_IN_STATUS) return failed_peer();
  if (code != MPI_SUCCESS) return checked(code, "MPI_Testall", -1);
  return flag != 0;
}

Status MpiOperation::failed_peer() const {
  for (std::size_t i = 0; i < statuses_.size(); ++i) {
    const int code = statuses_[i].MPI_ERROR;
    if (code != MPI_SUCCESS && code != MPI_ERR_PENDING) {
      return checked(code, "MPI_Testall", peers_[i]);
    }
  }
  return unavailable("MPI_Testall (", context(-1), "): failed without a reason");
}

Status MpiOperation::after_stage() {
  requests_.clear();
  peers_.clear();
  if (stage_ == Stage::single) return finish_single();
  if (stage_ == Stage::exchange) {
    combine_exchanged();
    if (call_.operation == Operation::all_reduce) return begin_collect();
  }
  return next_chunk();
}

Status MpiOperation::next_chunk() {
  const std::size_t first = chunk_.first + chunk_.count;
  chunk_ = {first, std::min(chunk_elements_, elements_ - first)};
  if (chunk_.count > 0) return begin_exchange();
  stage_ = Stage::idle;
  return ok_status();
}

void MpiOperation::combine_gathered() {
  if (!combines_here()) return;
  const Bytes into = buffers_.receive;
  if (into.empty()) return;
  std::memcpy(into.data(), part(0) + sizeof(CallStamp), into.size());
  for (int r = 1; r < place_->size; ++r) {
    reduction_.apply(into.data(), part(r) + sizeof(CallStamp),
                     into.size() / reduction_.element_bytes);
  }
}

// Adds in ascending rank order, whatever this rank's number: the sum starts from rank 0's part,
// which is local only on rank 0.
void MpiOperation::combine_exchanged() {
  if (!combines_here()) return;
  const std::size_t element = reduction_.element_bytes;
  const Range range = call_.operation == Operation::all_reduce ? part_of(place_->rank) : chunk_;
  const std::byte* own = buffers_.send.data() + range.first * element;
  std::byte* into = buffers_.receive.data() + range.first * element;
  const std::size_t block = std::max<std::size_t>(1, kCombineBytes / element);
  for (std::size_t first = 0; first < range.count; first += block) {
    const std::size_t count = std::min(block, range.count - first);
    const std::size_t at = first * element;
    std::byte* sum = place_->rank == 0 ? into + at : scratch_.get() + at;
    for (int r = 1; r < place_->size; ++r) {
      const std::byte* part = scratch_.get() + static_cast<std::size_t>(r) * stride_;
      reduction_.apply(sum, (r == place_->rank ? own : part) + at, count);
    }
    if (place_->rank != 0) std::memcpy(into + at, sum, count * element);
  }
}

std::byte* MpiOperation::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset(static_cast<std::byte*>(::operator new[](bytes, kAlignment)));
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void MpiOperation::abandon() {
  for (const MPI_Request request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    static_cast<void>(scratch_.release());
    scratch_bytes_ = 0;
    break;
  }
  requests_.clear();
}

Status MpiOperation::checked(int code, const char* call, int peer) const {
  return code == MPI_SUCCESS ? ok_status() : mpi_status(code, call, context(peer));
}

std::string MpiOperation::context(int peer) const {
  std::string text = concat(describe(call_), " on communicator ", place_->name, ", rank ",
                            place_->rank, " of ", place_->size);
  if (peer >= 0) text += concat(", peer ", peer);
  return text;
}

}  // namespace cox::transport
