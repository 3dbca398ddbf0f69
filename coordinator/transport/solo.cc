#include "coordinator/transport/solo.h"

#include <algorithm>

#include "coordinator/transport/call.h"

namespace cox::transport {
namespace {

class SoloCommunicator final : public Communicator {
 public:
  RankId rank() const override { return RankId(0); }
  std::int32_t size() const override { return 1; }
  std::int32_t ranks_on_node() const override { return 1; }
  const char* kind() const override { return "solo"; }

  Result<Progress> test(Request& request) override {
    request = Request{};
    return Progress::done;
  }

  Result<std::unique_ptr<Communicator>> duplicate() override {
    return std::unique_ptr<Communicator>(std::make_unique<SoloCommunicator>());
  }
  Result<std::unique_ptr<Communicator>> split_by_node() override { return duplicate(); }

 private:
  Result<Request> start(const Call&, const Buffers& buffers, const Reduction&) override {
    const bool is_in_place = buffers.send.data() == buffers.receive.data();
    if (!is_in_place) std::ranges::copy(buffers.send, buffers.receive.begin());
    return Request{0, 0};
  }
  Result<std::unique_ptr<Communicator>> part(std::int32_t) override { return duplicate(); }
  Result<SharedSegment> share(std::size_t bytes) override { return heap_segment(bytes); }
};

}  // namespace

std::unique_ptr<Communicator> solo_communicator() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace cox::transport
