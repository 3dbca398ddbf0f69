// A GPT-2 model in the two files of Hugging Face's transformers: config.json and model.safetensors
// in one folder. Blocks on the disk; does not communicate.
#pragma once

#include <filesystem>

#include "coordinator/core/status.h"
#include "sdk/examples/gpt2/model.h"

namespace gpt2 {

// Writes both files and creates the folder. Each file is replaced in one step.
cox::Status save_model(const std::filesystem::path& folder, const Gpt2& model);

// Copies the weights of a safetensors file into the model. Names, shapes and dtypes must fit
// exactly; an error copies nothing. Besides the model's own names, the function accepts:
// - names without the leading "transformer." (files of the bare GPT2Model)
// - "lm_head.weight" if it equals the embedding to which it is tied
// - the causal masks "attn.bias" and "attn.masked_bias" of old files, which are not read
cox::Status load_weights(const std::filesystem::path& file, Gpt2& model);

}  // namespace gpt2
