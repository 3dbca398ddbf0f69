// Autocast knows no FP8: a block in fp8 runs under bf16 autocast, and this mark of the thread says
// that fp8 was asked for. Set by PrecisionScope, put back when a block is computed again.
#pragma once

#include <c10/core/DeviceType.h>

namespace cox::detail {

bool fp8_asked(c10::DeviceType device);
void ask_fp8(c10::DeviceType device, bool asked);

}  // namespace cox::detail
