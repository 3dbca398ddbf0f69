#include "tests/bench/sent_bytes.h"

#include <algorithm>
#include <utility>

#include "coordinator/transport/call.h"

namespace cox::bench {
namespace {

using transport::Buffers;
using transport::Call;
using transport::Communicator;
using transport::Operation;
using transport::Progress;
using transport::Reduction;
using transport::Request;

class Counted final : public Communicator {
 public:
  Counted(std::unique_ptr<Communicator> inner, SentBytes& sent)
      : inner_(std::move(inner)), sent_(sent) {}

  RankId rank() const override { return inner_->rank(); }
  std::int32_t size() const override { return inner_->size(); }
  std::int32_t ranks_on_node() const override { return inner_->ranks_on_node(); }
  const char* kind() const override { return inner_->kind(); }

  Result<Progress> test(Request& request) override { return inner_->test(request); }

  Result<std::unique_ptr<Communicator>> duplicate() override {
    return counted_too(inner_->duplicate());
  }
  Result<std::unique_ptr<Communicator>> split_by_node() override {
    return counted_too(inner_->split_by_node());
  }

 private:
  Result<Request> start(const Call& call, const Buffers& buffers,
                        const Reduction& reduction) override {
    const auto [send, receive] = buffers;
    switch (call.operation) {
      case Operation::gather:
        sent_.add(Sent::gather, call.bytes);
        return inner_->start_gather(send, receive, call.root);
      case Operation::broadcast:
        sent_.add(Sent::broadcast, call.bytes);
        return inner_->start_broadcast(receive, call.root);
      case Operation::reduce:
        sent_.add(Sent::reduce, call.bytes);
        return inner_->start_reduce(receive, reduction, call.root);
      case Operation::all_reduce:
        sent_.add(Sent::other, call.bytes);
        return inner_->start_all_reduce(receive, reduction);
      default:
        sent_.add(Sent::other, call.bytes);
        return inner_->start_all_gather(send, receive);
    }
  }
  Result<std::unique_ptr<Communicator>> part(std::int32_t color) override {
    return counted_too(inner_->split(color));
  }
  Result<transport::SharedSegment> share(std::size_t bytes) override {
    return inner_->shared_segment(bytes);
  }
  Result<std::unique_ptr<Communicator>> counted_too(Result<std::unique_ptr<Communicator>> made) {
    if (!made.ok()) return made.status();
    return counted(std::move(*made), sent_);
  }

  std::unique_ptr<Communicator> inner_;
  SentBytes& sent_;
};

}  // namespace

void SentBytes::add(Sent kind, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  ++counts_[kind][bytes];
}

std::size_t SentBytes::most_common(Sent kind) const {
  const std::scoped_lock lock(mutex_);
  const auto found = counts_.find(kind);
  if (found == counts_.end()) return 0;
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(found->second.begin(), found->second.end(), fewer)->first;
}

std::uint64_t SentBytes::count(Sent kind, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto found = counts_.find(kind);
  if (found == counts_.end()) return 0;
  const auto size = found->second.find(bytes);
  return size == found->second.end() ? 0 : size->second;
}

std::unique_ptr<Communicator> counted(std::unique_ptr<Communicator> communicator, SentBytes& sent) {
  return std::make_unique<Counted>(std::move(communicator), sent);
}

}  // namespace cox::bench
