// Blocks without editing a model: wrap() turns the elements of a torch::nn::Sequential into blocks,
// and detach() takes every block out of a model again.
//
// Names, parameters, results and files of a wrapped Sequential are those of the unwrapped one; a
// clone of it is wrapped too, with blocks of its own. Only at<T>(i) and ptr<T>(i) refuse a wrapped
// element, because torch compares the wrapper's type there; ptr(i), operator[] and named_children()
// give the element itself. Not thread-safe. Call them before Session::attach, Trainer or fit, which
// look for blocks. Neither communicates.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
class Sequential;
}  // namespace torch::nn

namespace cox {

// WrapNote names an element that wrap() left as it is.
struct WrapNote {
  std::size_t index = 0;
  std::string why;
};

// Makes every element that is called with one tensor and returns one a block; any other call passes
// through it unmeasured. Leaves elements as they are that are known never to be called so, and
// returns a note on each. Wrapping twice changes nothing.
std::vector<WrapNote> wrap(torch::nn::Sequential& sequential);

// Puts the model back as it was before Block and wrap touched it. Blocks that the model keeps still
// run, as plain calls, and no session finds them any more.
void detach(torch::nn::Module& model);

}  // namespace cox
