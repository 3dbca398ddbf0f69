#include "tests/bench/averaging.h"

#include <torch/torch.h>

#include <array>
#include <cmath>
#include <stdexcept>

#include "sdk/src/parallel/gradient_norm.h"

namespace cox::bench {

void Averaging::sum(std::span<std::byte> bytes, const transport::Reduction& reduction) {
  const Status done = transport::finish(ranks_, ranks_.start_all_reduce(bytes, reduction), policy_);
  if (!done.ok()) throw std::runtime_error(done.text());
}

void Averaging::average(double loss, double weight) {
  std::array<double, 4> small = {loss * weight, weight, std::isfinite(loss) ? 0.0 : 1.0, 1};
  sum(std::as_writable_bytes(std::span(small)), transport::sum_f64());
  buckets_.fill(weight);
  for (detail::Bucket& bucket : buckets_.buckets()) {
    auto* bytes = static_cast<std::byte*>(bucket.flat.mutable_data_ptr());
    sum({bytes, static_cast<std::size_t>(bucket.flat.nbytes())}, transport::sum_f32());
  }
  buckets_.divide(small[1]);
  std::vector<at::Tensor> flats;
  for (const detail::Bucket& bucket : buckets_.buckets()) flats.push_back(bucket.gradients());
  if (!std::isfinite(detail::l2_norm(flats))) throw std::runtime_error("gradients blew up");
  buckets_.hand_back();
}

}  // namespace cox::bench
