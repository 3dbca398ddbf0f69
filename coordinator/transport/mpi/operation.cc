#include "coordinator/transport/mpi/operation.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace cox::transport {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kCombineBytes = 32 << 10;  // stays in the first-level cache

bool is_reduction(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce;
}

// Every tag that MPI must offer is below 32768; as many operations are never in flight.
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
  if (said.empty()) said = "error " + std::to_string(code);
  return unavailable(call, " (", context, "): ", said);
}

void MpiOperation::FreeBytes::operator()(std::byte* p) const {
  ::operator delete[](p, kAlignment);
}

Status MpiOperation::begin(const MpiPlace& place, std::uint64_t number, const Call& call,
                           const Buffers& buffers, const Reduction& reduction) {
  place_ = &place;
  tag_ = tag_of(number);
  call_ = call;
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

Status MpiOperation::begin_single() {
  stage_ = Stage::single;
  const auto bytes = static_cast<MPI_Count>(call_.bytes);
  const auto ranks = static_cast<std::size_t>(place_->size);
  const int root = call_.root.value();
  const void* send = buffers_.send.data();
  void* receive = buffers_.receive.data();
  MPI_Request& request = request_with(root);
  const MPI_Comm comm = place_->comm;
  switch (call_.operation) {
    case Operation::gather:
      return checked(
          MPI_Igather_c(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, root, comm, &request),
          "MPI_Igather", root);
    case Operation::broadcast:
      return checked(MPI_Ibcast_c(receive, bytes, MPI_BYTE, root, comm, &request), "MPI_Ibcast",
                     root);
    case Operation::all_gather:
      return checked(
          MPI_Iallgather_c(send, bytes, MPI_BYTE, receive, bytes, MPI_BYTE, comm, &request),
          "MPI_Iallgather", -1);
    case Operation::all_reduce:
      stride_ = call_.bytes;
      return checked(MPI_Iallgather_c(receive, bytes, MPI_BYTE, scratch(ranks * stride_), bytes,
                                      MPI_BYTE, comm, &request),
                     "MPI_Iallgather", -1);
    case Operation::reduce:
      stride_ = call_.bytes;
      return checked(MPI_Igather_c(receive, bytes, MPI_BYTE,
                                   place_->rank == root ? scratch(ranks * stride_) : nullptr, bytes,
                                   MPI_BYTE, root, comm, &request),
                     "MPI_Igather", root);
    default:
      return internal_error("mpi: ", describe(call_), " is no operation that can be started");
  }
}

void MpiOperation::plan_chunks() {
  const std::size_t element = reduction_.element_bytes;
  const auto ranks = static_cast<std::size_t>(place_->size);
  elements_ = call_.bytes / element;
  // An all-reduce needs scratch for its own part of a chunk from every rank, a reduce for all of
  // the chunk from every rank.
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
  if (stage_ == Stage::single) {
    stage_ = Stage::idle;
    if (is_reduction(call_.operation)) combine_gathered();
    return ok_status();
  }
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
  std::memcpy(into.data(), scratch_.get(), into.size());
  for (int r = 1; r < place_->size; ++r) {
    reduction_.apply(into.data(), scratch_.get() + static_cast<std::size_t>(r) * stride_,
                     into.size() / reduction_.element_bytes);
  }
}

// Adds in ascending rank order whatever this rank's place among them: starting from rank 0's part,
// which is ours only on rank 0.
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
  std::string text = describe(call_) + " on communicator " + place_->name + ", rank " +
                     std::to_string(place_->rank) + " of " + std::to_string(place_->size);
  if (peer >= 0) text += ", peer " + std::to_string(peer);
  return text;
}

}  // namespace cox::transport
