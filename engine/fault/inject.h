// engine/fault/inject.h: a run's rank suffers the faults it was told to (--inject.faults), so that what is to catch them can
// be seen to.
//
// What a fault is and when it strikes: engine/fault/injected_fault.h. Every strike is told on stderr and kept as a line
// "RANK STEP FAULT" of injected.txt in the run's folder, written before it strikes: a run that is started again, and comes to
// the same step again, goes past it (but for `lasting` ones). The second of two that are written alike is "FAULT #2" there.
// Without --inject.faults no Injector is made, and nothing asks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/fault/inject_files.h"
#include "engine/fault/injected_fault.h"
#include "engine/fault/self_test.h"
#include "engine/memory/backend.h"
#include "engine/model/model.h"
#include "engine/observe/ledger.h"

namespace keel {

class Injector {
public:
    // `config` is resolved; `model` must outlive it. Refuses ranks and tensors that are not there.
    Injector(const Config& config, const Backend& backend, int rank, int ranks, Model& model);

    // To be shown by one rank of a run that begins with `first_step`: what will be injected, and what has been.
    std::string warning(std::int64_t first_step) const;

    // Before the forward pass of an attempt at this step, counted from 1: whatever is not of gradients strikes here.
    void begin(std::int64_t step);
    // The gradient of parameter `param` of the table, which no rank has summed yet, strikes if its time has come.
    void gradient(int param, View<float> x);
    // What the next self-test of this rank is to find.
    Tampering tampering();

private:
    struct Armed {
        InjectedFault fault;  // of `step`, once its time has come
        std::string name;     // in injected.txt
        int rank;         // of the world
        Random random;    // what was left open, by step
        bool here = false;  // due in this attempt, on this rank, and a gradient
        std::int64_t last = 0;  // step at which it struck in this process
        bool waits = false;     // for its time
        std::optional<Clock::time_point> since = {};
        std::set<std::int64_t> struck = {};  // steps, in the run's whole life
    };
    std::uint64_t draw(const Armed& a, int what, std::uint64_t below) const;
    void tell(Armed& a, const std::string& what);
    int tensor_of(const Armed& a) const;
    void look_at_clock(Armed& a);
    void strike(Armed& a);
    void strike_parameter(Armed& a);
    void spoil(const InjectedFault& fault, std::byte* element, Dtype dtype, int bit);
    void corrupt_checkpoint(Armed& a);

    const Config& config_;
    Backend backend_;
    int rank_, ranks_;
    Model& model_;
    std::int64_t step_ = 0;
    bool bad_core_ = false;
    std::filesystem::path record_;
    std::vector<Armed> armed_;
    std::optional<FileTroubles> files_;
};

}  // namespace keel
