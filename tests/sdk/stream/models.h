// The models of the examples, for tests of the operator stream.
#pragma once

#include "sdk/examples/models/models.h"

namespace stream_models {
using namespace plain_models;
}
