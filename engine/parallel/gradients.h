// engine/parallel/gradients.h: what becomes of gradients between backward and update, and of parameters between update and
// forward.
//
// The life of one gradient (docs/parallelism.md): backward accumulates it over the micro-batches of a step; when the last one
// has added to it, it is ready. A tied embedding is then the sum of its two uses; a gain that every tensor-parallel rank holds
// is summed over them. Once all gradients of a bucket are ready, the bucket is reduce-scattered over the replicas: each is left
// with the sums of its own shard, updates that, and the new parameters are gathered back, bucket by bucket, the ones forward
// reads first in front. Rajbhandari et al. 2020, arXiv:1910.02054 (stage 1).
//
// With overlap a worker of its own (engine/overlap/worker.h) reduces and gathers while backward and forward go on. It changes no
// bit: which ranks add what in which order is fixed by the bucket. On a GPU a gather ahead is queued when the next step begins,
// so that it is part of that step's graph, or by whoever needs parameters before.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/model/params.h"
#include "engine/observe/spans.h"
#include "engine/overlap/worker.h"
#include "engine/parallel/exact.h"
#include "engine/parallel/ranks.h"

namespace keel {

class Gradients {
public:
    struct Buffers {
        View<float> grad;                     // [flat_size]
        std::optional<View<float>> lookup;    // [vocab, hidden]  of a tied embedding as an embedding, where grad has it as a head
        View<float> gains;                    // [gain_elements(params)]
        View<double> squares;                 // [params.owned]
        View<std::byte> scratch;              // reduce_scratch_bytes(flat_size)
        std::byte* param;                     // [flat_size] of param_bytes each
        std::int64_t param_bytes;
        std::optional<ExactSums::Buffers> exact;  // where gradients are summed as integers; grad then has one sequence's
    };
    // Everything must outlive it.
    Gradients(const Backend& backend, const Ranks& ranks, const ModelSection& model, const Shard& shard, const ParamTable& params,
              const Buffers& buffers);

    // Elements of the gains that are summed over the tensor-parallel ranks.
    static std::int64_t gain_elements(const ParamTable& params);

    void overlap(bool reduce, bool gather);  // from the next step on: beside backward, beside forward

    // Shown every gradient of this rank when backward is through with it, before any rank sums it: parameter `param` of the
    // table. Where gradients are summed exactly, of every sequence, a tied embedding twice. It may change what it is shown.
    using Tap = std::function<void(int param, View<float> gradient)>;
    void tap(Tap tap) { tap_ = std::move(tap); }

    // A new step begins: nothing is ready.
    void begin();
    // A graph queues a step again from its beginning, with what it gathers (engine/overlap/step_graph.h).
    void repeat() { behind_ = false; }
    // A step was given up before all of it was queued; what it had gathered may be in a graph that will never be.
    void give_up();
    // The gradients of parameters [first, last) of the table will not change any more in this step.
    void ready(int first, int last);
    bool all_ready() const;
    // All are ready: afterwards this rank's pieces (ParamTable::owned) hold the sums over all ranks. What `norm` will need of
    // them is queued.
    void finish();

    // Of all ranks' gradients, each parameter counted once; not finite if any gradient is not. Its bits do not depend on the
    // pipeline: squares are summed parameter by parameter, then in the order of the whole model. `squares`: what has become of
    // Buffers::squares, as the host reads it.
    double norm(const double* squares);

    // Exact sums only. A sequence has been through backward: what it gave to parameters [first, last) is added up.
    void add_sequence(int first, int last);
    // After finish. False: the step must be run again, with the scales that were chosen now. Without exact sums always true.
    bool fits(std::int64_t sequences);
    ExactSums* exact() { return exact_ ? &*exact_ : nullptr; }
    const std::vector<int>& whole_index() const { return whole_index_; }

    // Parameters were updated where this rank owns them: the others' pieces are fetched.
    void gather();
    void need(int first, int last);  // waits until parameters [first, last) are there
    void need_all();

    // Where reductions and gathers are written, those of the thread beside apart; may be null.
    void record(Spans* here, Spans* beside) { spans_ = here, spans_beside_ = beside; }
    // Seconds the communicating thread has worked, and that others have waited for it: what was hidden, and what was not.
    double hidden_seconds() const { return worker_ ? worker_->busy_seconds() - exposed_seconds_ : 0; }
    double exposed_seconds() const { return exposed_seconds_; }

private:
    void reduce(int bucket, Group& group, Stream& stream);
    void fetch(int bucket, Group& group, Stream& stream);
    void fetch_all();
    void sum_gains(int bucket);
    void square();
    bool counts(const ShardPiece& piece) const;  // in the norm: elsewhere it is counted by another rank
    void wait(std::int64_t task);

    Backend backend_;
    Stream& stream_;  // the backend's
    Ranks ranks_;
    const ParamTable& params_;
    Buffers b_;
    bool tied_, tied_across_stages_, overlap_reduce_ = false, overlap_gather_ = false;
    bool behind_ = false;                          // parameters were updated, and a gather is still to be queued
    std::vector<int> whole_index_;                 // of each parameter, in the whole model
    std::vector<double> whole_squares_;            // of each of the whole model
    std::vector<int> missing_;                     // per bucket: gradients that are not ready
    std::vector<char> is_ready_;                   // per parameter
    std::vector<std::int64_t> reducing_, fetching_;  // per bucket: the worker's task, 0 where there is none
    std::vector<char> reduced_;
    std::unique_ptr<Worker> worker_;
    std::optional<ExactSums> exact_;
    Tap tap_;
    double exposed_seconds_ = 0;
    Spans *spans_ = nullptr, *spans_beside_ = nullptr;
};

}  // namespace keel
