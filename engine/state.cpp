#include "engine/state.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/config_io.h"

namespace keel {

using json = nlohmann::json;

std::vector<NamedTensor> param_tensors(Model& model) {
    std::vector<NamedTensor> tensors;
    std::byte* const flat = model.host_state().param;
    for (const Param& p : model.params().specs)
        tensors.push_back({p.name, model.dtype(), p.whole, flat + p.offset * size_bytes(model.dtype())});
    return tensors;
}

namespace {

// Elements [first, first + count) of a flattened local parameter, as rectangles of the whole one: at most three for each of its
// row parts. each(rectangle, first local element of it).
void each_rectangle(const Param& p, std::int64_t first, std::int64_t count,
                    const std::function<void(const Rect&, std::int64_t)>& each) {
    const std::int64_t columns = p.columns();
    for (const RowPart& part : p.rows) {
        const std::int64_t begin = std::max(first, part.local * columns),
                           end = std::min(first + count, (part.local + part.rows) * columns);
        if (begin >= end) continue;
        const Rect slice = p.whole.size() == 2 ? Rect{part.global, part.rows, p.column, columns} : Rect{0, 1, part.global, part.rows};
        std::int64_t at = begin;
        for (const Rect& rect : flat_range(slice, begin - part.local * columns, end - begin)) {
            each(rect, at);
            at += rect.elements();
        }
    }
}

}  // namespace

std::vector<TensorPiece> state_pieces(Model& model, Pieces pieces) {
    std::vector<TensorPiece> out;
    const bool is_float = model.dtype() == Dtype::f32;
    const Model::HostState state = model.host_state();
    const auto bytes = [](View<float> x, std::int64_t at) { return reinterpret_cast<std::byte*>(x.data() + at); };
    for (const ShardPiece& piece : model.params().owned) {
        const Param& p = model.params().specs[static_cast<std::size_t>(piece.param)];
        const bool elsewhere = p.copy || (p.held != Held::cut && model.shard().tp_rank != 0);
        if (elsewhere && pieces == Pieces::to_save) continue;
        each_rectangle(p, piece.in_param, piece.size, [&](const Rect& r, std::int64_t element) {
            const std::int64_t in_buffer = p.offset + element, in_owned = piece.in_owned + element - piece.in_param;
            const auto add = [&](const std::string& name, Dtype dtype, std::byte* data) {
                out.push_back({name, dtype, p.whole, r.row, r.rows, r.col, r.cols, data, r.cols});
            };
            add(p.name, model.dtype(), state.param + in_buffer * size_bytes(model.dtype()));
            if (!is_float) add(p.name + ".master", Dtype::f32, bytes(state.master, in_owned));
            add(p.name + ".m", Dtype::f32, bytes(state.m, in_owned));
            add(p.name + ".v", Dtype::f32, bytes(state.v, in_owned));
        });
    }
    return out;
}

Scales exact_scales(const Config& config, Model& model) {
    Scales out;
    const ExactSums* exact = model.gradients().exact();
    if (!exact) return out;
    const ParamTable whole(config.model);
    for (std::size_t i = 0; i < whole.specs.size(); ++i)
        if (exact->scales()[i] != ExactSums::unknown) out[whole.specs[i].name] = exact->scales()[i];
    return out;
}

void set_exact_scales(const Config& config, Model& model, const Scales& scales) {
    ExactSums* exact = model.gradients().exact();
    if (!exact) return;
    const ParamTable whole(config.model);
    std::vector<int> all(whole.specs.size(), ExactSums::unknown);
    for (std::size_t i = 0; i < all.size(); ++i)
        if (const auto at = scales.find(whole.specs[i].name); at != scales.end()) all[i] = at->second;
    exact->set_scales(all);
}

std::string state_text(const Progress& progress, const Config& config, std::uint64_t tokenizer_hash, const LedgerState& ledgers) {
    const auto measure = [](const Spikes& s) { return json{{"count", s.count}, {"largest", s.largest}}; };
    json state = {{"version", 1},
                        {"progress",
                         {{"samples", progress.samples},
                          {"steps", progress.steps},
                          {"skipped", progress.skipped},
                          {"skipped_samples", progress.skipped_samples},
                          {"tokens", progress.tokens},
                          {"tokens_squared", progress.tokens_squared}}},
                        {"tokenizer_hash", tokenizer_hash},
                        {"spikes", {{"loss", measure(ledgers.spikes.loss)}, {"grad_norm", measure(ledgers.spikes.grad_norm)}}},
                        {"config", to_toml(config)}};
    if (!ledgers.scales.empty()) state["exact_scales"] = ledgers.scales;
    if (const auto& s = ledgers.loss_scale)
        state["loss_scale"] = {{"scale", s->scale}, {"good_steps", s->good_steps}, {"hysteresis", s->hysteresis}};
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
                        .skipped = p.at("skipped").get<std::int64_t>(),
                        .skipped_samples = p.value("skipped_samples", std::int64_t{0}), .tokens = p.at("tokens").get<std::int64_t>(),
                        .tokens_squared = p.at("tokens_squared").get<std::int64_t>()};
        out.tokenizer_hash = state.at("tokenizer_hash").get<std::uint64_t>();
        if (const auto at = state.find("exact_scales"); at != state.end()) out.scales = at->get<Scales>();
        if (const auto at = state.find("spikes"); at != state.end()) {
            const auto measure = [&](const char* of) {
                return Spikes{at->at(of).at("count").get<std::int64_t>(), at->at(of).at("largest").get<double>()};
            };
            out.spikes = {measure("loss"), measure("grad_norm")};
        }
        if (const auto at = state.find("loss_scale"); at != state.end())
            out.loss_scale = {.scale = at->at("scale").get<double>(), .good_steps = at->at("good_steps").get<std::int64_t>(),
                              .hysteresis = at->at("hysteresis").get<std::int64_t>()};
        if (const auto& s = out.loss_scale; s && !(s->scale >= LossScale::least && s->scale <= LossScale::largest))
            fail(where + ": the loss scale is ", s->scale, "; it can be from 2^-24 to 2^64");
        out.config = from_toml(state.at("config").get<std::string>(), where);
    } catch (const json::exception& e) {
        fail(where + ": not the state of a keel checkpoint (", e.what(), ")");
    }
    return out;
}

}  // namespace keel
