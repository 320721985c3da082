// data/tokenizer_json.h: what the readers of a tokenizer.json's parts share. Every component is either understood or refused
// by name: one that is skipped changes ids without an error. Included by data/tokenizer_json*.cpp and tokenizer_folder.cpp only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

namespace keel {

using TokenizerJson = nlohmann::json;

// Refuses what a plain parser hides (two equal keys: it keeps the last, and an id is lost) and what would exhaust the stack.
TokenizerJson parse_checked_json(std::string_view text, const std::string& name);

struct TokenizerJsonReader {
    using Json = TokenizerJson;

    const std::string& name;
    TokenizerModel model;
    std::unordered_map<std::string, std::int32_t> vocab;
    bool bytes = false;  // the pre-tokenizers turn text into bytes

    void read(const Json& file);

    template <class... Parts> [[noreturn]] void refuse(const Parts&... parts) const { fail(name, ": ", parts...); }
    static bool absent(const Json& object, const char* key) { return !object.contains(key) || object.at(key).is_null(); }
    const Json& object(const Json& parent, const char* key) const;
    const Json& array(const Json& parent, const char* key) const;
    std::string string(const Json& parent, const char* key, const std::string& what) const;
    bool flag(const Json& parent, const char* key, bool otherwise) const;
    std::int64_t count(const Json& parent, const char* key, const std::string& what) const;  // a whole number from 0 to 1000
    std::int32_t token_id(const Json& value, const std::string& token) const;

    // Calls body for each member of a component that may be a Sequence of others under `list`.
    template <class Body> void for_each_component(const Json& component, const char* what, const char* list, Body&& body) const {
        std::vector<const Json*> pending{&component};
        for (int seen = 0; !pending.empty(); ++seen) {
            if (seen > 64) refuse("the ", what, " has more than 64 parts");
            const Json& c = *pending.back();
            pending.pop_back();
            if (string(c, "type", what) != "Sequence") {
                body(c);
                continue;
            }
            const Json& members = array(c, list);
            for (auto m = members.rbegin(); m != members.rend(); ++m) pending.push_back(&*m);
        }
    }

    // data/tokenizer_json_steps.cpp
    void read_normalizer(const Json& file);
    void read_pre_tokenizer(const Json& file);
    void read_decoder(const Json& file);
    void add_split(const Json& c);
    void add_metaspace(const Json& c);
    void read_pattern(const Json& parent, const std::string& what, std::string& text, std::shared_ptr<const Regex>& regex) const;

    // data/tokenizer_json_model.cpp
    void read_model(const Json& model);
    void read_bpe(const Json& model);
    void read_unigram(const Json& model);
    void read_vocab(const Json& entries);
    void read_merges(const Json& list);
    void find_byte_tokens(std::array<std::int32_t, 256>& ids) const;
    void check_merges_spelt() const;
    void check_all_bytes() const;
    void make_char_bpe();
    TokenizerModel::Token& slot(std::int32_t id, const std::string& token, std::size_t entries);

    void read_added(const Json& list);
};

}  // namespace keel
