#include "engine/state.h"

#include <nlohmann/json.hpp>

#include "engine/config_io.h"

namespace keel {

using json = nlohmann::json;

std::vector<NamedTensor> state_tensors(Model& model, bool optimizer) {
    std::vector<NamedTensor> tensors;
    const auto as_bytes = [](float* p) { return reinterpret_cast<std::byte*>(p); };
    for (const Param& p : model.params().specs)
        tensors.push_back({p.name, model.dtype(), p.shape, model.param_data() + p.offset * size_bytes(model.dtype())});
    if (!optimizer) return tensors;
    for (const Param& p : model.params().specs) {
        if (model.dtype() != Dtype::f32)
            tensors.push_back({p.name + ".master", Dtype::f32, p.shape, as_bytes(model.master().data() + p.offset)});
        tensors.push_back({p.name + ".m", Dtype::f32, p.shape, as_bytes(model.first_moment().data() + p.offset)});
        tensors.push_back({p.name + ".v", Dtype::f32, p.shape, as_bytes(model.second_moment().data() + p.offset)});
    }
    return tensors;
}

std::string state_text(const Progress& progress, const Config& config, std::uint64_t tokenizer_hash) {
    const json state = {{"version", 1},
                        {"progress",
                         {{"samples", progress.samples},
                          {"steps", progress.steps},
                          {"skipped", progress.skipped},
                          {"tokens", progress.tokens},
                          {"tokens_squared", progress.tokens_squared}}},
                        {"tokenizer_hash", tokenizer_hash},
                        {"config", to_toml(config)}};
    return state.dump(2) + "\n";
}

SavedState parse_state(const std::string& text, const std::string& where) {
    SavedState out;
    try {
        const json state = json::parse(text);
        if (state.at("version").get<int>() != 1)
            fail(where + ": state of version ", state.at("version").get<int>(), "; this keel reads version 1");
        const json& p = state.at("progress");
        out.progress = {.samples = p.at("samples").get<std::int64_t>(), .steps = p.at("steps").get<std::int64_t>(),
                        .skipped = p.at("skipped").get<std::int64_t>(), .tokens = p.at("tokens").get<std::int64_t>(),
                        .tokens_squared = p.at("tokens_squared").get<std::int64_t>()};
        out.tokenizer_hash = state.at("tokenizer_hash").get<std::uint64_t>();
        out.config = from_toml(state.at("config").get<std::string>(), where);
    } catch (const json::exception& e) {
        fail(where + ": not the state of a keel checkpoint (", e.what(), ")");
    }
    return out;
}

}  // namespace keel
