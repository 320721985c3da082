#include "engine/fault/dump.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/observe/print.h"
#include "kernels/base/file.h"

namespace keel {

std::string dump_samples(const std::filesystem::path& run, std::int64_t step, Loader& loader, const StepPlan& plan,
                         std::span<const std::int64_t> micro_batches) {
    nlohmann::json parts = nlohmann::json::array();
    for (const std::int64_t m : micro_batches) {
        const std::int64_t first = plan.first_sample + m * plan.micro_batch;
        const Batch& batch = loader.next(first, std::min(plan.micro_batch, plan.first_sample + plan.samples - first));
        const auto list = [](View<const std::int32_t> x) { return std::vector<std::int32_t>(x.data(), x.data() + x.size()); };
        parts.push_back({{"micro_batch", m}, {"first_sample", first}, {"samples", batch.count}, {"ids", list(batch.ids)},
                         {"labels", list(batch.labels)}});
    }
    const auto path = run / print("fault-step-%08lld.json", static_cast<long long>(step));
    write_file_atomically(path, nlohmann::json{{"step", step}, {"micro_batches", std::move(parts)}}.dump() + "\n");
    return path.string();
}

}  // namespace keel
