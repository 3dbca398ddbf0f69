// Nothing: it tells nvcc which host compilers it takes. See host_defines.h.
#pragma once
