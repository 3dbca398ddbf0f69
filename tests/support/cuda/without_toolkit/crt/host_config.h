// Empty. nvcc's version lists the supported host compilers. See host_defines.h.
#pragma once
