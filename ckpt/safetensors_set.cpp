// The sharded half of ckpt/safetensors.h.
#include <algorithm>
#include <set>

#include "ckpt/safetensors.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

bool is_bare_name(const std::string& file) {
    return !file.empty() && file != "." && file.find_first_of("/\\") == std::string::npos &&
           file.find("..") == std::string::npos && file.find('\0') == std::string::npos;
}

// tensor name -> shard file, as the index gives it.
std::map<std::string, std::string> read_weight_map(const Json& index, const std::string& path) {
    const auto map = index.find("weight_map");
    if (map == index.end() || !map->is_object()) fail(path, ": \"weight_map\" is missing or not an object");
    std::map<std::string, std::string> result;
    for (const auto& [tensor, file] : map->items()) {
        if (!file.is_string())
            fail(path, ": the shard of tensor \"", tensor, "\" must be a string, found ", file.dump());
        const auto shard = file.get<std::string>();
        if (!is_bare_name(shard))
            fail(path, ": tensor \"", tensor, "\" is mapped to \"", shard, "\"; a shard must be a bare file name");
        result.emplace(tensor, shard);
    }
    return result;
}

[[noreturn]] void refuse_without_safetensors(const std::filesystem::path& folder) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) fail("no model folder at ", folder.string());
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string file = entry.path().filename().string();
        if (file.starts_with("pytorch_model") && file.ends_with(".bin"))
            fail(folder.string(), " holds only ", file,
                 ", a pickle, which keel never reads (it can run code); save the "
                 "model as safetensors first: model.save_pretrained(folder, safe_serialization=True) in transformers");
    }
    fail(folder.string(), " holds neither ", single_name, " nor ", index_name);
}

}  // namespace

SafetensorsSet::SafetensorsSet(const std::filesystem::path& folder, const WarningSink& warn) {
    const auto index = folder / index_name;
    const bool single = std::filesystem::exists(folder / single_name);
    if (std::filesystem::exists(index)) {
        if (single && warn)
            warn(folder.string() + " holds both " + index_name + " and " + single_name + "; reading the index");
        open_sharded(index, warn);
    } else if (single) {
        files_.emplace_back(folder / single_name);
        for (const StoredTensor& t : files_[0].tensors()) tensors_.emplace(t.name, Entry{&files_[0], &t});
    } else {
        refuse_without_safetensors(folder);
    }
}

void SafetensorsSet::open_sharded(const std::filesystem::path& index, const WarningSink& warn) {
    const std::string where = index.string();
    const Json tree = parse_strict_json(read_file(index), where);
    const auto weight_map = read_weight_map(tree, where);
    std::set<std::string> names;
    for (const auto& [tensor, file] : weight_map) names.insert(file);

    std::string missing;
    for (const std::string& file : names)
        if (!std::filesystem::exists(index.parent_path() / file)) missing += "\n  shard " + file;
    if (!missing.empty()) fail(where, " names shards that are not there:", missing, "\nfetch them and try again");

    files_.reserve(names.size());
    std::int64_t total = 0;
    for (const std::string& file : names) {
        const SafetensorsFile& shard = files_.emplace_back(index.parent_path() / file);
        for (const StoredTensor& t : shard.tensors()) {
            total += t.size_bytes();
            const auto [at, fresh] = tensors_.emplace(t.name, Entry{&shard, &t});
            if (!fresh)
                fail("tensor \"", t.name, "\" is in two shards: ", at->second.file->path().string(), " and ",
                     shard.path().string());
            if (warn && !weight_map.contains(t.name))
                warn(shard.path().string() + " holds tensor \"" + t.name + "\", which the index does not list");
        }
    }
    for (const auto& [tensor, file] : weight_map) {
        const auto at = tensors_.find(tensor);
        if (at == tensors_.end() || at->second.file->path().filename() != file)
            missing += "\n  \"" + tensor + "\" in " + file;
    }
    if (!missing.empty()) fail(where, " lists tensors that are not in their shards:", missing);

    if (const auto meta = tree.find("metadata");
        meta != tree.end() && meta->is_object() && meta->contains("total_size")) {
        const Json& claimed = (*meta)["total_size"];
        if ((!claimed.is_number() || claimed.get<double>() != static_cast<double>(total)) && warn)
            warn(where + ": total_size is " + claimed.dump() + ", but the shards hold " + std::to_string(total) +
                 " bytes");
    }
}

std::optional<SafetensorsSet::Entry> SafetensorsSet::find(std::string_view name) const {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? std::nullopt : std::optional(at->second);
}

}  // namespace keel
