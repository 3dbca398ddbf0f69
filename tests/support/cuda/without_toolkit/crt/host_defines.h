// Defines the parts of the toolkit's crt/host_defines.h that CUDA's headers need in a C++ compiler.
// The wheel unpacked by scripts/bootstrap lacks this header, which belongs to nvcc. So the
// stand-ins need no toolkit.
#pragma once

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __cudart_builtin__
#define __specialization_static
