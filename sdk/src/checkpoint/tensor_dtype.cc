#include "sdk/src/checkpoint/tensor_dtype.h"

#include <array>

namespace cox::detail {
namespace {

struct DtypePair {
  std::string_view name;
  c10::ScalarType type;
};
constexpr std::array<DtypePair, 15> kPairs = {{{"F64", c10::ScalarType::Double},
                                               {"F32", c10::ScalarType::Float},
                                               {"F16", c10::ScalarType::Half},
                                               {"BF16", c10::ScalarType::BFloat16},
                                               {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
                                               {"F8_E5M2", c10::ScalarType::Float8_e5m2},
                                               {"I64", c10::ScalarType::Long},
                                               {"I32", c10::ScalarType::Int},
                                               {"I16", c10::ScalarType::Short},
                                               {"I8", c10::ScalarType::Char},
                                               {"U64", c10::ScalarType::UInt64},
                                               {"U32", c10::ScalarType::UInt32},
                                               {"U16", c10::ScalarType::UInt16},
                                               {"U8", c10::ScalarType::Byte},
                                               {"BOOL", c10::ScalarType::Bool}}};

}  // namespace

std::string_view dtype_name(c10::ScalarType type) {
  for (const DtypePair& pair : kPairs) {
    if (pair.type == type) return pair.name;
  }
  return {};
}

std::optional<c10::ScalarType> dtype_from_name(std::string_view name) {
  for (const DtypePair& pair : kPairs) {
    if (pair.name == name) return pair.type;
  }
  return std::nullopt;
}

}  // namespace cox::detail
