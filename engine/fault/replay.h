// engine/fault/replay.h: a step that looks wrong is computed again on the same data, and that tells a faulty chip from a
// faulty program (--fault.mode).
//
// Steps are the same bit for bit on the same data, so equality is equality: another result is the chip's doing; the same
// result is the program's, the data's, or a defect that stays, and then the first tensor that went bad is named. What is
// compared is what each rank has computed before any rank sums it, so that one that erred is known: a hash of what its stage
// puts out for every micro-batch, its losses, and a hash of every gradient. What is looked at is the step's loss and gradient
// norm, which all ranks have; whatever one rank suspects, all look into (engine/fault/finding.h says what may come of it).
//
// What an attempt changes besides gradients is the scales of exact sums, and they are put back; data and random numbers are
// functions of the sample number. A hash costs one pass over the gradients as they come from backward, and is queued like any
// other op: on a GPU it is part of the step's graph. A step that is computed again is queued op by op there, and the host looks at
// what each put out. Nothing is allocated until something looks wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/fault/finding.h"
#include "engine/fault/spikes.h"
#include "engine/memory/backend.h"
#include "engine/model/model.h"
#include "engine/parallel/ranks.h"
#include "engine/progress.h"

namespace keel {

class Replay {
public:
    // Writes the samples of a step to a file and returns it; asked of rank 0 alone, of micro-batches of the whole step.
    using Dump = std::function<std::string(const StepPlan& plan, std::span<const std::int64_t> micro_batches)>;
    // All must outlive it.
    Replay(const Config& config, const Backend& backend, const Ranks& ranks, Model& model, const std::string& host, Findings& findings, Dump dump);

    void begin_step(std::int64_t step);  // counted from 1
    void begin_attempt();
    bool looks() const { return attempt_ > 0; }  // at every op of this attempt, as the host: it can be no graph
    // Of an attempt, in its order: micro-batch i of this replica has been forward through a chunk; its loss, where the head is;
    // a gradient that no rank has summed yet.
    void forward(std::int64_t micro_batch, int chunk, int slot);
    void loss(double sum);
    void gradient(int param, View<const float> x);

    // Collective, after an attempt: whether the step must be computed once more. If not, either the attempt may be committed, or
    // findings.stop() says why the run leaves; then the state is the one from before the step.
    bool again(const StepPlan& plan, const StepResult& result);

    StepSpikes spikes;  // of the steps committed; a checkpoint carries it

private:
    struct Trail {  // of one attempt on this rank
        std::vector<std::uint64_t> hashes, loss, result;  // by HashSlots, those of a step; by micro-batch
        bool operator==(const Trail&) const = default;
    };
    struct Bad {  // what is first not finite on this rank: its place in the order of the step, and its name
        std::int64_t order = never;
        std::string name;
    };
    static constexpr std::int64_t never = INT64_MAX;

    std::int64_t whole(std::int64_t micro_batch) const;
    std::int64_t place_of_forward(std::int64_t micro_batch, std::int64_t chunk) const;
    std::int64_t place_of_loss(std::int64_t micro_batch) const;
    std::int64_t place_of_gradient(int param) const;
    std::string name_of_forward(std::int64_t micro_batch, std::int64_t chunk) const;
    std::string name_of_loss(std::int64_t micro_batch) const;
    std::string name_of_gradient(int param) const;
    bool spiked(const StepResult& result) const;
    bool looks_wrong(const StepResult& result);
    void commit(const StepPlan& plan, const StepResult& result);
    Finding finding(const char* verdict, const StepPlan& plan, const StepResult& result) const;
    void passed_over(const StepPlan& plan, const StepResult& result);
    std::string dump(const StepPlan& plan, bool bad_only);
    void passing(const StepPlan& plan, const StepResult& result);
    void reproduced(const StepPlan& plan, const StepResult& result);
    Bad first_difference() const;
    std::string first_of_all(const Bad& mine) const;
    void note(std::int64_t order, const std::string& name);
    void put_back();
    View<const std::byte> on_host(View<const std::byte> x);
    bool finite(View<const std::byte> x, Dtype dtype);  // of the backend's memory

    FaultSection config_;
    Backend backend_;
    Ranks ranks_;
    Model& model_;
    std::string host_;
    Findings& findings_;
    Dump dump_;
    std::int64_t step_ = 0, chunks_, micro_batches_ = 0, replicas_;  // micro-batches: the most of a replica
    int attempt_ = 0;
    std::int64_t losses_ = 0, passed_over_ = 0;
    std::vector<int> scales_;  // from before the step
    Trail now_, first_, second_;
    std::string difference_;   // of the first and the second attempt
    Bad bad_;
    std::vector<int> shown_;            // by parameter: how often this attempt has shown its gradient
    std::vector<std::byte> looked_at_;  // from a GPU
};

}  // namespace keel
