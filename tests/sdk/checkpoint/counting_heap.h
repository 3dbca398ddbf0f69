// Replaces the program's operator new to remember the largest single request. For tests that prove
// a reader claims no more memory than a hostile file has bytes. Safe from any thread.
#pragma once

#include <cstddef>

void forget_largest_request();
std::size_t largest_request_bytes();
