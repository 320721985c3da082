#include "ckpt/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <new>

#include "ckpt/strict_json.h"
#include "kernels/base/error.h"
#include "kernels/base/hex.h"

namespace keel {
namespace {

constexpr std::string_view format = "keel checkpoint";
constexpr std::int64_t version = 1;

std::string compose(const Json& manifest) {
    return Json{{"manifest", manifest}, {"xxh3_128", hash_of(manifest.dump())}}.dump() + "\n";
}

}  // namespace

FileHash::FileHash() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
}

void FileHash::Freed::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }
void FileHash::add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }

std::string FileHash::hex() const {
    const XXH128_hash_t h = XXH3_128bits_digest(state_.get());
    return keel::hex(h.high64) + keel::hex(h.low64);
}

std::string hash_of(std::string_view text) {
    FileHash hash;
    hash.add(std::as_bytes(std::span(text)));
    return hash.hex();
}

std::string manifest_text(std::int64_t step, const std::vector<CheckpointFile>& files) {
    Json list = Json::array();
    for (const CheckpointFile& f : files)
        list.push_back({{"name", f.name}, {"size_bytes", f.size_bytes}, {"xxh3_128", f.hash}});
    return compose({{"format", format}, {"version", version}, {"step", step}, {"files", list}});
}

CheckpointInfo parse_manifest(const std::string& text, const std::filesystem::path& checkpoint) {
    const std::string where = (checkpoint / manifest_name).string();
    const Json tree = parse_strict_json(text, where);
    CheckpointInfo info{.path = checkpoint, .step = 0, .state = {}, .files = {}};
    try {
        const Json& manifest = tree.at("manifest");
        if (manifest.at("format") != format) fail(where, ": not the manifest of a keel checkpoint");
        if (manifest.at("version") != version)
            fail(where, ": version ", manifest.at("version").dump(), "; this keel reads version ", version);
        const std::string expected = compose(manifest);
        if (text != expected)
            fail(where, " is damaged: its content hashes to ", hash_of(manifest.dump()), ", but it says ",
                 tree.at("xxh3_128").dump());
        info.step = manifest.at("step").get<std::int64_t>();
        for (const Json& f : manifest.at("files"))
            info.files.push_back({f.at("name").get<std::string>(), f.at("size_bytes").get<std::int64_t>(),
                                  f.at("xxh3_128").get<std::string>()});
    } catch (const Json::exception& e) {
        fail(where, " is not a manifest: ", e.what());
    }
    return info;
}

std::string step_folder_name(std::int64_t step) {
    std::string digits = std::to_string(step);
    if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
    return "step-" + digits;
}

std::optional<std::int64_t> parse_step_folder(const std::string& name) {
    if (!name.starts_with("step-")) return std::nullopt;
    std::int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + 5, end, step);
    if (error != std::errc() || at != end || step_folder_name(step) != name) return std::nullopt;
    return step;
}

std::vector<StepFolder> step_folders(const std::filesystem::path& root) {
    std::vector<StepFolder> folders;
    std::error_code error;
    if (!std::filesystem::exists(root, error)) return folders;
    for (const auto& entry : std::filesystem::directory_iterator(root, error))
        if (const auto step = parse_step_folder(entry.path().filename().string()); step && entry.is_directory(error))
            folders.push_back({*step, entry.path()});
    if (error) fail("cannot list ", root.string(), ": ", error.message());
    std::sort(folders.begin(), folders.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
    return folders;
}

}  // namespace keel
