#include "coordinator/diagnosis/device_peaks.h"

#include <array>
#include <string>

namespace cox::diagnosis {
namespace {

struct Row {
  std::string_view name;  // lower case
  double teraflops;       // dense bf16, or fp16 where the device has no bf16
};
constexpr std::array<Row, 27> kPeaks = {
    {{"b200", 2250},     {"b100", 1750},    {"gb200", 2500}, {"h200", 989}, {"h100", 989},
     {"h100 pcie", 756}, {"h100 nvl", 835}, {"h800", 989},   {"h20", 148},  {"a100", 312},
     {"a800", 312},      {"a40", 149.7},    {"a30", 165},    {"a10", 125},  {"a10g", 70},
     {"a6000", 155},     {"l40", 181},      {"l40s", 362},   {"l4", 121},   {"v100", 125},
     {"t4", 65},         {"4090", 165},     {"4080", 98},    {"3090", 71},  {"mi300x", 1307},
     {"mi250", 383},     {"mi210", 181}}};

}  // namespace

std::optional<DevicePeak> device_peak(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const Row* best = nullptr;
  for (const Row& row : kPeaks) {
    const bool is_part = lower.find(row.name) != std::string::npos;
    if (is_part && (best == nullptr || row.name.size() > best->name.size())) best = &row;
  }
  if (best == nullptr) return std::nullopt;
  return DevicePeak{best->name, best->teraflops * 1e12};
}

}  // namespace cox::diagnosis
