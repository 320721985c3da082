// engine/model/model.h: a Llama-shaped model that trains: parameters, gradients, optimizer state, forward and backward.
//
// The element type is chosen at run time by config.model.dtype; behind the interface everything is one template.
// After construction nothing here allocates. Losses are sums over tokens; the caller divides, once.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "data/loader.h"
#include "engine/config.h"
#include "engine/memory/backend.h"
#include "engine/memory/plan.h"
#include "engine/model/block.h"
#include "engine/model/layout.h"
#include "engine/model/params.h"
#include "engine/parallel/gradients.h"
#include "engine/parallel/ranks.h"
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
    virtual const Shard& shard() const = 0;
    virtual Dtype dtype() const = 0;
    virtual const MemoryPlan& plan() const = 0;
    virtual std::int64_t arena_bytes() const = 0;  // what was really allocated

    // Draws initial weights, clears gradients and moments.
    virtual void init(std::uint64_t seed) = 0;

    // Begins a step: the next micro-batch starts the gradients anew. (Matrices are then written instead of added to, so
    // only what is summed otherwise is cleared here.)
    virtual void zero_grads() = 0;
    // The gradients of backward are those of the loss times `scale`, 1 at first, from the next micro-batch on; grad_norm and
    // update take it out again (engine/fault/loss_scale.h). The same on all ranks, and through a step.
    virtual void scale_loss(float scale) = 0;

    // One micro-batch through the part of the model that this rank holds. `slot` is where it is kept between its forward and
    // its backward (engine/parallel/pipeline.h); there is one, unless a pipeline has more under way.
    virtual void load(int slot, const Batch& batch) = 0;  // with one stage the batch must stay until its backward
    // On a GPU, for a step that is queued again as it was (engine/overlap/step_graph.h): its losses are taken as if its
    // `micro_batches` had been queued anew; and another batch, where the `i`th of that step was loaded from.
    virtual void repeat(std::int64_t micro_batches) = 0;
    virtual void refill(std::int64_t i, const Batch& batch) = 0;
    virtual void forward(int chunk, int slot) = 0;
    // Gradients of the summed loss accumulate. It works in one of the buffers of gradients. `last`: of this step, so that
    // gradients are final and may be reduced.
    virtual void backward(int chunk, int slot, int buffer, bool last) = 0;
    // The summed loss, with its z term if there is one, of each backward through the head since zero_grads or the last call, in
    // their order; at most ModelUse::micro_batches. Waits for them.
    virtual std::span<const double> take_losses() = 0;
    // After forward of the last chunk: the summed loss without the z term; token_loss() has the parts until the next call.
    virtual double loss(int slot) = 0;
    virtual View<const float> token_loss() const = 0;

    // A hash of what lies in the backend's memory: queued, into one of hash_slots(). hashes() has all of them, once what was
    // queued is done, for which it waits.
    virtual void hash(std::int64_t slot, View<const std::byte> x) = 0;
    virtual const HashSlots& hash_slots() const = 0;
    virtual std::span<const std::uint64_t> hashes() = 0;

    // What passes between stages, as bytes. Forward reads `input` and writes `output`; backward turns what lies in its buffer of
    // `gradient`, that of the output, into that of the input.
    virtual View<std::byte> input(int chunk, int slot) = 0;
    virtual View<std::byte> output(int slot) = 0;
    virtual View<std::byte> gradient(int slot, int buffer) = 0;
    // After forward: what went into a chunk's layer, counted from its first.
    virtual View<std::byte> layer_input(int chunk, int layer, int slot) = 0;

    // All of the model on one rank, all at once.
    double train_micro_batch(const Batch& batch) {
        load(0, batch), forward(0, 0), backward(0, 0, 0, false);
        return take_losses().back();
    }
    double evaluate(const Batch& batch) {
        load(0, batch), forward(0, 0);
        return loss(0);
    }
    // Forward only: every position's logits, [tokens, vocab]. For tests and tools; training never holds them whole.
    virtual void logits(const Batch& batch, View<float> out) = 0;

    // Gradients of all micro-batches and all ranks come together (engine/parallel/gradients.h).
    virtual void reduce_grads() = 0;
    virtual double grad_norm() = 0;  // of the summed loss, unscaled, after reduce_grads; not finite if any gradient is not
    virtual void update(const Update& update) = 0;
    virtual Gradients& gradients() = 0;

    // What is updated here: parameters().owned says which element of which parameter lies where. With one replica all of it,
    // at the offsets of params(). For float parameters master() is the parameters. Memory of the backend.
    virtual View<float> grads() = 0;  // of the scaled loss
    virtual View<float> master() = 0;
    virtual View<float> first_moment() = 0;
    virtual View<float> second_moment() = 0;
    virtual std::byte* param_data() = 0;  // elements of dtype()
    virtual void master_from_params() = 0;

    // The state as the host reads and writes it: on the CPU where it lies, of a GPU a copy in the host's memory. fetch_state
    // brings the copy up to date before a save; share_params sends it back after a load, and parameters that this rank owns go
    // to the other replicas.
    struct HostState {
        std::byte* param;         // [flat_size] of dtype()
        View<float> master, m, v;
    };
    virtual HostState host_state() = 0;
    virtual void fetch_state() = 0;
    virtual void share_params() = 0;
    virtual View<std::byte> snapshot() = 0;  // room on the host for a copy of what this rank saves; none without ModelUse::snapshot
};

// The reservations and the arena for them, and a model on top. Throws before allocating if it cannot fit. `ranks` and the
// groups behind it must outlive the model; without them it is the only rank. `backend` must be of `use.device`.
std::unique_ptr<Model> make_model(const Config& config, const Backend& backend, const ModelUse& use, const Ranks& ranks);
std::unique_ptr<Model> make_model(const Config& config, const Backend& backend, const ModelUse& use);

// The same plan without memory, for `keel estimate`, as the rank at `place` makes it.
MemoryPlan plan_model(const Config& config, const ModelUse& use, const RankPlace& place = {});
// What training needs on the pipeline stage of `place`.
ModelUse training_use(const Config& config, const RankPlace& place = {});

}  // namespace keel
