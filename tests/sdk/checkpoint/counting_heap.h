// Replaces the program's operator new to record the largest single request. Proves in tests that a
// reader claims no more memory than a hostile file has bytes. Any thread.
#pragma once

#include <cstddef>

void forget_largest_request();
std::size_t largest_request_bytes();
