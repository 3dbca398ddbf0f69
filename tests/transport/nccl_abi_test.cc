// Coxswain's own declarations match the real nccl.h.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "coordinator/transport/nccl/abi.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

template <class Ours, class Real>
constexpr bool is_same_value(Ours ours, Real real) {
  return sizeof(Ours) == sizeof(Real) && static_cast<long>(ours) == static_cast<long>(real);
}

static_assert(NCCL_VERSION_CODE >= nccl::kOldestVersion);
static_assert(NCCL_VERSION(2, 17, 0) == nccl::kOldestVersion);
static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));
static_assert(alignof(nccl::UniqueId) == alignof(ncclUniqueId));

static_assert(is_same_value(nccl::Outcome::success, ncclSuccess));
static_assert(is_same_value(nccl::Outcome::unhandled_cuda_error, ncclUnhandledCudaError));
static_assert(is_same_value(nccl::Outcome::system_error, ncclSystemError));
static_assert(is_same_value(nccl::Outcome::internal_error, ncclInternalError));
static_assert(is_same_value(nccl::Outcome::invalid_argument, ncclInvalidArgument));
static_assert(is_same_value(nccl::Outcome::invalid_usage, ncclInvalidUsage));
static_assert(is_same_value(nccl::Outcome::remote_error, ncclRemoteError));
static_assert(is_same_value(nccl::Outcome::in_progress, ncclInProgress));

static_assert(is_same_value(nccl::Type::int8, ncclInt8));
static_assert(is_same_value(nccl::Type::uint8, ncclUint8));
static_assert(is_same_value(nccl::Type::int32, ncclInt32));
static_assert(is_same_value(nccl::Type::uint32, ncclUint32));
static_assert(is_same_value(nccl::Type::int64, ncclInt64));
static_assert(is_same_value(nccl::Type::uint64, ncclUint64));
static_assert(is_same_value(nccl::Type::float16, ncclFloat16));
static_assert(is_same_value(nccl::Type::float32, ncclFloat32));
static_assert(is_same_value(nccl::Type::float64, ncclFloat64));
static_assert(is_same_value(nccl::Type::bfloat16, ncclBfloat16));

static_assert(is_same_value(nccl::Operator::sum, ncclSum));
static_assert(is_same_value(nccl::Operator::product, ncclProd));
static_assert(is_same_value(nccl::Operator::max, ncclMax));
static_assert(is_same_value(nccl::Operator::min, ncclMin));
static_assert(is_same_value(nccl::Operator::average, ncclAvg));

static_assert(offsetof(nccl::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(nccl::Config, cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(nccl::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(nccl::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(nccl::Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));

TEST_SUITE("nccl abi") {
  TEST_CASE("a fresh configuration has the values that NCCL's initializer gives these fields") {
    const ncclConfig_t real = NCCL_CONFIG_INITIALIZER;
    const nccl::Config ours;
    CHECK(ours.magic == real.magic);
    CHECK(ours.blocking == real.blocking);
    CHECK(ours.cluster_size == real.cgaClusterSize);
    CHECK(ours.min_ctas == real.minCTAs);
    CHECK(ours.max_ctas == real.maxCTAs);
    CHECK(ours.net_name == real.netName);
  }

  TEST_CASE("sizes of elements are those of C++") {
    CHECK(nccl::bytes_of(nccl::Type::uint8) == 1);
    CHECK(nccl::bytes_of(nccl::Type::bfloat16) == 2);
    CHECK(nccl::bytes_of(nccl::Type::float32) == sizeof(float));
    CHECK(nccl::bytes_of(nccl::Type::float64) == sizeof(double));
    CHECK(nccl::bytes_of(nccl::Type::uint64) == 8);
  }
}

}  // namespace
}  // namespace cox::transport
