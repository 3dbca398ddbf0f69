// Replaces the program's operator new, and records the largest single request in bytes. Tests use
// the record to show that a reader of a hostile file allocates no more memory than the file has
// bytes. Any thread.
#pragma once

#include <cstddef>

void forget_largest_request();
std::size_t largest_request_bytes();
