// tests/engine/fault_runs.h: runs that suffer faults, and how they left.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/base/file.h"
#include "tests/engine/rank_runs.h"

namespace keel::test {

class FaultRuns : public testing::Test {
protected:
    FaultRuns() { write_token_file(dir_.path() / "a.tok", 61, 1500, 1); }

    Config config(const std::string& name, const std::vector<std::string>& faults = {}) const {
        Config c = tiny_config("f32");
        c.model.layers = 2;
        c.run.dir = (dir_.path() / name).string();
        c.run.threads = 1;
        c.data.train = {(dir_.path() / "a.tok").string()};
        c.train.steps = 5, c.train.micro_batch = 1;
        c.ckpt.keep_last = 0;
        c.parallel.vocab_multiple = 1;
        c.inject.faults = faults;
        return c;
    }
    struct Ending {
        std::string why, told;
        Finding finding;  // of rank 0; its code is ok if the run was left for no fault
    };
    // As `keel train`, with whatever `before` does to each rank's run first.
    static Ending run(const Config& c, const std::function<void(keel::Run&)>& before = {}) {
        Ending end;
        std::exception_ptr error;
        testing::internal::CaptureStderr();
        try {
            on_ranks(c, [&](keel::Run& run) {
                if (before) before(run);
                const char* why = train(run);
                if (run.world.rank() != 0) return;
                end.why = why;
                if (run.findings->stop()) end.finding = *run.findings->stop();
            });
        } catch (...) {
            error = std::current_exception();
        }
        end.told = testing::internal::GetCapturedStderr();
        if (error) std::rethrow_exception(error);
        return end;
    }
    // Lines of faults.jsonl.
    static std::vector<nlohmann::json> findings(const Config& c) {
        std::vector<nlohmann::json> out;
        std::ifstream in(std::filesystem::path(c.run.dir) / "faults.jsonl");
        for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
        return out;
    }
    static std::filesystem::path at_step(const Config& c, std::int64_t step) { return checkpoint_of(c.run.dir, step); }
    TempFolder dir_;
};

}  // namespace keel::test
