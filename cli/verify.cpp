// cli/verify.cpp: `keel verify`: whether checkpoints can be trusted, found out without loading a model.

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/check.h"
#include "ckpt/model_folder.h"
#include "cli/commands.h"
#include "engine/memory/plan.h"
#include "engine/open_model.h"
#include "engine/state.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

// The checkpoints that `path` is or holds: one, a run's, or the parts that ranks keep on local storage. Oldest first.
std::vector<fs::path> checkpoints_at(const fs::path& path) {
    if (!fs::exists(path)) fail(path.string() + ": no such file or folder; give checkpoints, or runs");
    if (is_checkpoint(path)) return {path};
    std::vector<fs::path> found;
    if (fs::is_directory(path))
        for (auto entry = fs::recursive_directory_iterator(path); entry != fs::recursive_directory_iterator();
             ++entry) {
            const std::string name = entry->path().filename().string();
            if (!entry->is_directory()) continue;
            if (name.starts_with("step-")) found.push_back(entry->path());
            if (name.starts_with("step-") || name.starts_with(".") || entry.depth() > 2)
                entry.disable_recursion_pending();
        }
    if (found.empty())
        fail(path.string() + " is no checkpoint and holds none; give the folder of a checkpoint or of a run");
    std::sort(found.begin(), found.end());
    return found;
}

// The parameters of a model, or none where its shape is a mixture that no model folder can express: it trains all the
// same.
std::vector<ParamSpec> expected_params(const ModelSection& model) {
    try {
        return param_specs(model_shape(model));
    } catch (const Error&) {
        return {};
    }
}

// What the configuration of the run says must be there: every parameter, and of the optimizer all or nothing.
void check_tensors(CheckpointCheck& check, const ModelSection& model) {
    const std::vector<ParamSpec> params = expected_params(model);
    if (params.empty()) return;
    std::map<std::string, std::vector<std::int64_t>> wanted;
    const bool optimizer = std::any_of(check.tensors.begin(), check.tensors.end(),
                                       [](const auto& t) { return kind_of_tensor(t.name) == TensorKind::optimizer; });
    for (const ParamSpec& p : params) {
        wanted[p.name] = p.shape;
        if (!optimizer) continue;
        wanted[p.name + ".m"] = wanted[p.name + ".v"] = p.shape;
        if (model.dtype != "f32") wanted[p.name + ".master"] = p.shape;
    }
    std::string wrong;
    for (const auto& t : check.tensors) {
        const auto at = wanted.find(t.name);
        if (at == wanted.end())
            wrong += "\n      unexpected " + t.name + " " + shape_text(t.shape);
        else if (at->second != t.shape)
            wrong += "\n      misshapen  " + t.name + " is " + shape_text(t.shape) + ", not " + shape_text(at->second);
        if (at != wanted.end()) wanted.erase(at);
    }
    for (const auto& [name, shape] : wanted) wrong += "\n      missing    " + name + " " + shape_text(shape);
    if (!wrong.empty())
        check.problems.push_back("its tensors are not those of the model in its configuration:" + wrong);
}

CheckpointCheck check(const fs::path& path) {
    const std::string parent = path.parent_path().filename().string();
    const bool part = parent.starts_with("part-") || parent.starts_with("copy-");  // of a local checkpoint
    CheckpointCheck result =
        check_checkpoint(path, part ? CheckpointTensors::Coverage::part : CheckpointTensors::Coverage::whole);
    if (result.state.empty()) return result;
    try {
        std::string state = result.state;
        if (part) state = nlohmann::json::parse(state).at("state").get<std::string>();
        const SavedState saved = parse_state(state, "state.json");
        if (saved.progress.steps != result.step)
            result.problems.push_back("state.json is of step " + std::to_string(saved.progress.steps) +
                                      ", the manifest of step " + std::to_string(result.step));
        if (!part && !result.tensors.empty()) check_tensors(result, saved.config.model);
    } catch (const std::exception& e) {
        result.problems.push_back(e.what());
    }
    return result;
}

void run_verify(const std::vector<std::string>& paths) {
    std::size_t seen = 0, bad = 0;
    for (const std::string& given : paths)
        for (const fs::path& path : checkpoints_at(given)) {
            const CheckpointCheck c = check(path);
            ++seen;
            if (c.problems.empty()) {
                std::printf("%s: good: step %lld, %zu tensors in %lld files, %s, all values finite\n", path.c_str(),
                            static_cast<long long>(c.step), c.tensors.size(), static_cast<long long>(c.files),
                            human_bytes(c.bytes).c_str());
                continue;
            }
            ++bad;
            std::printf("%s: bad\n", path.c_str());
            for (const std::string& problem : c.problems) std::printf("  %s\n", problem.c_str());
        }
    if (bad > 0)
        fail("bad checkpoints: ", bad, " of ", seen,
             "; keel train skips those that are damaged and takes the newest good one");
}

}  // namespace

void add_verify(CLI::App& app) {
    CLI::App* command = app.add_subcommand("verify", "check checkpoints byte by byte, without loading a model");
    auto paths = std::make_shared<std::vector<std::string>>();
    command->add_option("paths", *paths, "checkpoints, runs (all of theirs), or folders of local checkpoints")
        ->required();
    command->callback([paths] { run_verify(*paths); });
}

}  // namespace keel
