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

  Result<Request> start_gather(ConstBytes send, Bytes receive, RankId root) override {
    return copy({Operation::gather, send.size(), root}, {send, receive});
  }
  Result<Request> start_broadcast(Bytes buffer, RankId root) override {
    return check({Operation::broadcast, buffer.size(), root}, {{}, buffer});
  }
  Result<Request> start_all_gather(ConstBytes send, Bytes receive) override {
    return copy({Operation::all_gather, send.size()}, {send, receive});
  }
  Result<Request> start_all_reduce(Bytes buffer, const Reduction& reduction) override {
    Status fits = check_reduction(reduction, buffer.size());
    if (!fits.ok()) return fits;
    return done();
  }
  Result<Request> start_reduce(Bytes buffer, const Reduction& reduction, RankId root) override {
    Status fits = check_reduction(reduction, buffer.size());
    if (!fits.ok()) return fits;
    return check({Operation::reduce, buffer.size(), root, reduction.element_bytes}, {{}, buffer});
  }
  Result<Request> start_reduce_scatter(ConstBytes send, Bytes receive,
                                       const Reduction& reduction) override {
    Status fits = check_reduction(reduction, send.size());
    if (!fits.ok()) return fits;
    return copy({Operation::reduce_scatter, send.size(), RankId(-1), reduction.element_bytes},
                {send, receive});
  }
  Result<Progress> test(Request& request) override {
    request = Request{};
    return Progress::done;
  }

  Result<std::unique_ptr<Communicator>> split(std::int32_t color) override {
    Status fits = check_color(color);
    if (!fits.ok()) return fits;
    return another();
  }
  Result<std::unique_ptr<Communicator>> duplicate() override { return another(); }
  Result<std::unique_ptr<Communicator>> split_by_node() override { return another(); }
  Result<SharedSegment> shared_segment(std::size_t bytes) override { return heap_segment(bytes); }

 private:
  static Request done() { return Request{0, 0}; }
  static Result<std::unique_ptr<Communicator>> another() {
    return std::unique_ptr<Communicator>(std::make_unique<SoloCommunicator>());
  }
  static Result<Request> check(const Call& call, const Buffers& buffers) {
    Status fits = check_call(call, buffers, RankId(0), 1);
    if (!fits.ok()) return fits;
    return done();
  }
  static Result<Request> copy(const Call& call, const Buffers& buffers) {
    Result<Request> request = check(call, buffers);
    if (request.ok()) std::ranges::copy(buffers.send, buffers.receive.begin());
    return request;
  }
};

}  // namespace

std::unique_ptr<Communicator> solo_communicator() {
  return std::make_unique<SoloCommunicator>();
}

}  // namespace cox::transport
