#include "coxswain/detail/run_context.h"

#include <ATen/autocast_mode.h>

namespace cox::detail {
namespace {

const RunContext*& innermost() {
  thread_local const RunContext* context = nullptr;
  return context;
}

}  // namespace

const RunContext* current_context() {
  return innermost();
}

std::optional<MemoryAction> current_action() {
  const RunContext* context = innermost();
  if (context == nullptr) return std::nullopt;
  return context->is_covered ? MemoryAction::recompute : context->action;
}

ContextScope::ContextScope(const RunContext& context) : before_(innermost()) {
  innermost() = &context;
}
ContextScope::~ContextScope() {
  innermost() = before_;
}

NoCastCache::NoCastCache() : was_on_(at::autocast::is_autocast_cache_enabled()) {
  if (was_on_) at::autocast::set_autocast_cache_enabled(false);
}
NoCastCache::~NoCastCache() {
  if (was_on_) at::autocast::set_autocast_cache_enabled(true);
}

}  // namespace cox::detail
