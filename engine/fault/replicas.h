// engine/fault/replicas.h: ranks that hold the same parameter hold the same bits of it (--fault.replica_interval).
//
// Compared are hashes over the bits: of every parameter among its replicas (dp x cp), of what all tensor-parallel ranks hold
// among those, and of a tied embedding between first and last stage. It happens between backward and update: what was wrong
// when the step was computed is found before an update writes it into every replica. A step of which something differs is not
// committed, and the run leaves (engine/fault/finding.h). Master weights and moments have one owner, and nothing to compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/fault/finding.h"
#include "engine/model/model.h"
#include "engine/parallel/ranks.h"
#include "engine/progress.h"

namespace keel {

class Replicas {
public:
    // All must outlive it. Nothing is allocated afterwards, unless something differs.
    Replicas(const Config& config, Stream& host_stream, const Ranks& ranks, Model& model, const std::string& host, Findings& findings);

    // Collective, once per step, counted from 1, before its update. Compares where a comparison is due.
    void compare(std::int64_t step, const StepPlan& plan);

private:
    struct Among {  // the parameters that all ranks of a group hold whole and alike
        Group& group;
        std::vector<int> params;
        std::vector<std::int64_t> mine, all;
    };
    void add(Group& group, std::vector<int> params);
    std::string differing(const Among& among) const;

    Stream& stream_;  // of the host
    Ranks ranks_;
    Model& model_;
    std::string host_;
    Findings& findings_;
    std::int64_t interval_;
    std::vector<Among> among_;
};

}  // namespace keel
