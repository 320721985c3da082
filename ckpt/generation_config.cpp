#include "ckpt/generation_config.h"

#include "ckpt/strict_json.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {

std::vector<std::int32_t> ending_ids(const std::filesystem::path& folder, std::int64_t vocab) {
    for (const char* file : {"generation_config.json", "config.json"}) {
        const std::filesystem::path path = folder / file;
        if (!std::filesystem::exists(path)) continue;
        const Json config = parse_strict_json(read_file(path), path.string());
        const auto eos = config.find("eos_token_id");
        if (eos == config.end() || eos->is_null()) continue;
        std::vector<std::int32_t> ids;
        for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
            if (!id.is_number_integer() || id < 0 || id >= vocab)
                fail(path.string(), ": \"eos_token_id\" is ", eos->dump(), "; it must be an id of the vocabulary, below ", vocab,
                     ", or a list of them");
            ids.push_back(id.get<std::int32_t>());
        }
        return ids;
    }
    return {};
}

}  // namespace keel
