// engine/config_check.h: turns what a user wrote into a configuration that can run, or refuses it.
//
// Everything that can be known from the settings alone is checked here, in one place, before anything is opened or
// allocated. Every message names the flags, the numbers and the fix; tests/engine/config_check_test.cpp reads each of them.
#pragma once

#include "engine/config.h"
#include "kernels/base/stream.h"

namespace keel {

// Fills kv_heads, head_dim and the other derived sizes of a shape, and refuses an impossible one. vocab may still be 0
// (the tokenizer's size is not known yet): call again once it is.
void resolve_model(ModelSection& model);

// Fills global_batch and micro_batch from each other or from what the batch grows by, and checks that.
void resolve_batch(Config& config);

// The whole configuration of a training run: fills what follows from the rest (preset, shape, samples from steps,
// batches, the end of the decay) and refuses contradictions. Idempotent: a resolved configuration resolves to itself.
void resolve_and_validate(Config& config);

Device device_of(const Config& config);
// Refuses a device that this machine does not have, and what cannot be done on it yet; `ranks` as they were started.
void check_device(const Config& config, std::int64_t ranks);

}  // namespace keel
