// Operators that make or take apart sparse tensors are LibTorch's own on every device. All other
// operators on sparse tensors are the CPU's (kernels.cc).
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <torch/library.h>

namespace cox::standin {
namespace {

TORCH_LIBRARY_IMPL(aten, SparseCUDA, kernels) {
  kernels.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  kernels.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  kernels.impl("_sparse_coo_tensor_with_dims_and_tensors",
               TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  kernels.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  kernels.impl("_values", TORCH_FN(at::native::_values_sparse));
  kernels.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  kernels.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  kernels.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  kernels.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  kernels.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  kernels.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  kernels.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  kernels.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  kernels.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
}

}  // namespace
}  // namespace cox::standin
