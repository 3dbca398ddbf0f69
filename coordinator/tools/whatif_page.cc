#include "coordinator/tools/whatif_report.h"
namespace cox::tools {
std::string whatif_page(const WhatIfReport&) {
  return {};
}
}  // namespace cox::tools
