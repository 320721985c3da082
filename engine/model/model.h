// engine/model/model.h: a Llama-shaped model that trains: parameters, gradients, optimizer state, forward and backward.
//
// The element type is chosen at run time by config.model.dtype; behind the interface everything is one template.
// After construction nothing here allocates. Losses are sums over tokens; the caller divides, once.
#pragma once

#include <memory>
#include <string>

#include "data/loader.h"
#include "engine/config.h"
#include "engine/memory/plan.h"
#include "engine/model/block.h"
#include "engine/model/layout.h"
#include "engine/model/params.h"
#include "kernels/base/stream.h"

namespace keel {

// One AdamW update of every parameter.
struct Update {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;   // 1 / tokens, times the clipping factor
    std::int64_t step;  // 1 for the first
};

class Model {
public:
    virtual ~Model() = default;

    virtual const ParamTable& params() const = 0;
    virtual Dtype dtype() const = 0;
    virtual const MemoryPlan& plan() const = 0;
    virtual std::int64_t arena_bytes() const = 0;  // what was really allocated

    // Draws initial weights, clears gradients and moments.
    virtual void init(std::uint64_t seed) = 0;

    // Begins a step: the next micro-batch starts the gradients anew. (Matrices are then written instead of added to, so
    // only what is summed otherwise is cleared here.)
    virtual void zero_grads() = 0;
    // Forward and backward of one micro-batch: gradients of the summed loss accumulate. Returns the summed loss, with
    // its z term if there is one.
    virtual double train_micro_batch(const Batch& batch) = 0;
    // Forward only. Returns the summed loss without the z term; token_loss() has the parts until the next call.
    virtual double evaluate(const Batch& batch) = 0;
    virtual View<const float> token_loss() const = 0;
    // Forward only: every position's logits, [tokens, vocab]. For tests and tools; training never holds them whole.
    virtual void logits(const Batch& batch, View<float> out) = 0;

    virtual double grad_norm() = 0;  // of the summed loss; not finite if any gradient is not
    virtual void update(const Update& update) = 0;

    // Flat state, at the offsets of params(). For float parameters master() is the parameters.
    virtual View<float> grads() = 0;
    virtual View<float> master() = 0;
    virtual View<float> first_moment() = 0;
    virtual View<float> second_moment() = 0;
    virtual std::byte* param_data() = 0;  // elements of dtype()
    virtual void params_from_master() = 0;  // rounds master into the parameters, after a load
    virtual void master_from_params() = 0;
};

// The reservations and the arena for them, and a model on top. Throws before allocating if it cannot fit.
std::unique_ptr<Model> make_model(const Config& config, Stream& stream, const ModelUse& use);

// The same plan without memory, for `keel estimate`.
MemoryPlan plan_model(const Config& config, const ModelUse& use);
ModelUse training_use(const Config& config);

}  // namespace keel
