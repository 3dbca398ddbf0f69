// What CUDA's headers expect of the toolkit's crt/host_defines.h where a C++ compiler reads them.
// The wheel that scripts/bootstrap unpacks has those headers, but not this one, which belongs to
// nvcc: so the stand-ins need no toolkit.
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
