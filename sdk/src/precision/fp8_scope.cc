#include "sdk/src/precision/fp8_scope.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/precision/fp8_frame.h"
#include "sdk/src/precision/fp8_intercept.h"

namespace cox::detail {
namespace {

Fp8Scope*& innermost() {
  thread_local Fp8Scope* scope = nullptr;
  return scope;
}

void set_interception(bool included, bool excluded) {
  c10::impl::tls_set_dispatch_key_included(fp8_key(), included);
  c10::impl::tls_set_dispatch_key_excluded(fp8_key(), excluded);
}

// The frame of a scope that opens inside of `outer`: a new one, or that of the first time.
std::shared_ptr<Fp8Frame> frame_inside(Fp8Scope& outer) {
  std::vector<std::shared_ptr<Fp8Frame>>& calls = outer.place().frame->calls;
  const std::size_t call = outer.place().next_call++;
  if (outer.pass() == Fp8Pass::first) calls.push_back(std::make_shared<Fp8Frame>());
  if (call < calls.size()) return calls[call];
  throw Error(failed_precondition(
      "FP8: a function that ran again called more blocks than the first time (" +
      std::to_string(calls.size()) + "); it must compute the same each time"));
}

}  // namespace

Fp8Scope::Fp8Scope(std::shared_ptr<Fp8Block> block) : outer_(innermost()) {
  place_.block = std::move(block);
  place_.frame = outer_ != nullptr ? frame_inside(*outer_) : std::make_shared<Fp8Frame>();
  if (outer_ != nullptr) pass_ = outer_->pass();
  enter();
}

Fp8Scope::Fp8Scope(const std::optional<Fp8Place>& captured)
    : pass_(captured ? Fp8Pass::again : Fp8Pass::first), outer_(innermost()) {
  place_ = captured ? *captured : Fp8Place{nullptr, std::make_shared<Fp8Frame>()};
  enter();
}

void Fp8Scope::enter() {
  was_included_ = c10::impl::tls_is_dispatch_key_included(fp8_key());
  was_excluded_ = c10::impl::tls_is_dispatch_key_excluded(fp8_key());
  const bool is_on = place_.block != nullptr;
  set_interception(is_on, !is_on);
  innermost() = this;
}

Fp8Scope::~Fp8Scope() {
  innermost() = outer_;
  set_interception(was_included_, was_excluded_);
}

Fp8Scope* current_fp8() {
  return innermost();
}

std::optional<Fp8Place> capture_fp8() {
  Fp8Scope* scope = innermost();
  if (scope == nullptr) return std::nullopt;
  return scope->place();
}

}  // namespace cox::detail
