#include "coxswain/detail/run_context.h"

#include <ATen/autocast_mode.h>

namespace cox::detail {
namespace {

const RunContext*& innermost_run_context() {
  thread_local const RunContext* context = nullptr;
  return context;
}

}  // namespace

const RunContext* current_context() {
  return innermost_run_context();
}

std::optional<MemoryAction> current_action() {
  const RunContext* context = innermost_run_context();
  if (context == nullptr) return std::nullopt;
  return context->is_covered ? MemoryAction::recompute : context->action;
}

ContextScope::ContextScope(const RunContext& context) : before_(innermost_run_context()) {
  innermost_run_context() = &context;
}
ContextScope::~ContextScope() {
  innermost_run_context() = before_;
}

NoCastCache::NoCastCache() : was_on_(at::autocast::is_autocast_cache_enabled()) {
  if (was_on_) at::autocast::set_autocast_cache_enabled(false);
}
NoCastCache::~NoCastCache() {
  if (was_on_) at::autocast::set_autocast_cache_enabled(true);
}

}  // namespace cox::detail
