// Calls of cox::run that must not compile, each with a part of the sentence that the compiler has
// to print. With -DACCEPTED only the calls that must compile are left. Compiled by refused.cmake,
// never linked; also the proof that run.h gets by without torch/torch.h.
#include <functional>
#include <memory>
#include <string>

#include "coxswain/run.h"
#include "coxswain/tile.h"

#ifdef TORCH_API_INCLUDE_EXTENSION_H
#error "run.h pulls in torch's whole C++ API"
#endif

struct Layer {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
using Block = cox::Block<std::shared_ptr<Layer>>;

at::Tensor accepted(const Block& block, const at::Tensor& x) {
  const int copies = 2;
  const auto owned = cox::owned([copies](Layer&, const at::Tensor& in) { return in.mul(copies); });
  const at::Tensor y = cox::run(block, &Layer::forward, x);
  const at::Tensor z =
      cox::tile([](const at::Tensor& part, double by) { return part.mul(by); }, y, 0, 4, 0.5);
  return cox::run(block, owned,
                  cox::run(
                      block, [](Layer&, const at::Tensor& in) { return in; }, z));
}

#ifndef ACCEPTED
void refused(const Block& block, const at::Tensor& x) {
  int factor = 2;
  // expect: it must not capture
  (void)cox::run(
      block, [&](Layer&, const at::Tensor& in) { return in.mul(factor); }, x);
  // expect: it must not capture
  (void)cox::run(block, std::function<at::Tensor(Layer&, const at::Tensor&)>(&Layer::forward), x);
  // expect: may dangle when f runs again
  (void)cox::run(
      block, [](Layer&, const at::Tensor& in, int* n) { return in.mul(*n); }, x, &factor);
  // expect: so it must be copyable
  (void)cox::run(
      block, [](Layer&, const at::Tensor& in, const std::unique_ptr<int>&) { return in; }, x,
      std::make_unique<int>(1));
  // expect: f must return at::Tensor
  (void)cox::run(
      block, [](Layer&, const at::Tensor& in) { return in.dim(); }, x);
  // expect: f must return by value
  (void)cox::run(
      block, [](Layer&, const at::Tensor& in) -> const at::Tensor& { return in; }, x);
  // expect: f must be callable as
  (void)cox::run(
      block, [](Layer&, int in) { return at::Tensor(); }, std::string("one"));
  // expect: it must not capture
  (void)cox::tile([&](const at::Tensor& part) { return part.mul(factor); }, x, 0, 4);
  // expect: may dangle when f runs again
  (void)cox::tile([](const at::Tensor& part, int* n) { return part.mul(*n); }, x, 0, 4, &factor);
  // expect: f must be callable as f(part, more...)
  (void)cox::tile([](const at::Tensor& part) { return part.dim(); }, x, 0, 4);
  // expect: the function must be copyable
  (void)cox::owned([p = std::make_unique<int>(1)](Layer&, const at::Tensor& in) { return in; });
}
#endif
