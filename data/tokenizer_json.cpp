// Reads and writes tokenizer.json. Every component is either understood or refused by name: one that is skipped changes ids
// without an error.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "data/tokenizer.h"
#include "data/tokenizer_model.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;  // for writing only: its look-up is linear

// Parsing keeps the last of two equal keys, and then an id is lost in silence: refuse them. Refused too is nesting that
// would exhaust the stack when a message shows the value.
Json parse_json(std::string_view text, const std::string& name) {
    constexpr int max_depth = 64;  // tokenizer.json nests six deep
    std::vector<std::unordered_set<std::string>> keys;
    const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t event, Json& value) {
        if (depth > max_depth) fail(name, ": JSON nested more than ", max_depth, " deep");
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        if (event == Json::parse_event_t::object_end) keys.pop_back();
        if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
            fail(name, ": the key \"", value.get<std::string>(), "\" occurs twice in one object");
        return true;
    };
    try {
        return Json::parse(text, watch);
    } catch (const Json::exception& e) {
        fail(name, " is not valid JSON: ", e.what());
    }
}

struct Reader {
    const std::string& name;
    TokenizerModel model;
    std::unordered_map<std::string, std::int32_t> vocab;

    template <class... Parts> [[noreturn]] void refuse(const Parts&... parts) const { fail(name, ": ", parts...); }

    static bool absent(const Json& object, const char* key) { return !object.contains(key) || object.at(key).is_null(); }

    const Json& object(const Json& parent, const char* key) const {
        if (!parent.contains(key) || !parent.at(key).is_object()) refuse("\"", key, "\" is not an object");
        return parent.at(key);
    }
    const Json& array(const Json& parent, const char* key) const {
        if (!parent.contains(key) || !parent.at(key).is_array()) refuse("\"", key, "\" is not an array");
        return parent.at(key);
    }
    std::string string(const Json& parent, const char* key, const std::string& what) const {
        if (!parent.is_object() || !parent.contains(key) || !parent.at(key).is_string())
            refuse(what, " has no text \"", key, "\"");
        return parent.at(key).get<std::string>();
    }
    bool flag(const Json& parent, const char* key, bool otherwise) const {
        if (absent(parent, key)) return otherwise;
        if (!parent.at(key).is_boolean()) refuse("\"", key, "\" is neither true nor false");
        return parent.at(key).get<bool>();
    }
    std::int32_t token_id(const Json& value, const std::string& token) const {
        if (!value.is_number_integer() || value < 0 || value > 0x7ffffffe)
            refuse("the id of \"", token, "\" is ", value.dump(), ", not a whole number from 0 on");
        return value.get<std::int32_t>();
    }

    void read(const Json& file) {
        if (!file.is_object()) refuse("not a JSON object");
        read_normalizer(file);
        read_pre_tokenizer(file);
        read_model(object(file, "model"));
        read_added(file);
        check_types(file, "post_processor", {"ByteLevel", "TemplateProcessing"}, "processors");
        if (absent(file, "decoder")) refuse("there is no decoder; a byte-level tokenizer has ByteLevel");
        check_types(file, "decoder", {"ByteLevel"}, "decoders");
        check_merges_spelt();
    }

    // Calls body for each member of a component that may be a Sequence of others under `list`.
    template <class Body> void for_each_component(const Json& component, const char* what, const char* list, Body&& body) {
        std::vector<const Json*> pending{&component};
        while (!pending.empty()) {
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

    void check_types(const Json& file, const char* key, const std::set<std::string>& known, const char* list) {
        if (absent(file, key)) return;
        for_each_component(file.at(key), key, list, [&](const Json& c) {
            if (const std::string type = string(c, "type", key); !known.contains(type))
                refuse("the ", key, " \"", type, "\" is not supported for byte-level tokenizers");
        });
    }

    void read_normalizer(const Json& file) {
        if (absent(file, "normalizer")) return;
        const std::unordered_map<std::string, Normalization> forms{{"NFC", Normalization::nfc}, {"NFD", Normalization::nfd},
                                                                   {"NFKC", Normalization::nfkc}, {"NFKD", Normalization::nfkd}};
        for_each_component(file.at("normalizer"), "normalizer", "normalizers", [&](const Json& c) {
            const std::string type = string(c, "type", "normalizer");
            const auto form = forms.find(type);
            if (form == forms.end())
                refuse("the normalizer \"", type, "\" is not supported; NFC, NFD, NFKC and NFKD are, with byte-level BPE");
            if (model.normalization != Normalization::none && model.normalization != form->second)
                refuse("two different normalizers in a sequence are not supported");
            model.normalization = form->second;
        });
    }

    void read_pre_tokenizer(const Json& file) {
        if (absent(file, "pre_tokenizer"))
            refuse("there is no pre_tokenizer; only byte-level BPE is supported, which has ByteLevel there");
        bool bytes = false, pattern = false, digits = false;
        for_each_component(file.at("pre_tokenizer"), "pre_tokenizer", "pretokenizers", [&](const Json& c) {
            const std::string type = string(c, "type", "pre_tokenizer");
            if (bytes) refuse("the pre_tokenizer \"", type, "\" comes after ByteLevel, which must be the last");
            if (type == "ByteLevel") {
                if (flag(c, "add_prefix_space", true)) refuse("ByteLevel with add_prefix_space is not supported");
                bytes = true;
                if (!flag(c, "use_regex", true)) return;
                if (pattern) refuse("a Split followed by ByteLevel with use_regex cuts twice; that is not supported");
                pattern = true;
            } else if (type == "Digits") {
                if (pattern || digits) refuse("Digits is supported as the first pre_tokenizer only");
                digits = true;
                model.pretokenizer.digits = flag(c, "individual_digits", false) ? Digits::individual : Digits::runs;
            } else if (type == "Split") {
                if (pattern) refuse("two Split pre_tokenizers are not supported");
                pattern = true;
                read_split(c);
            } else {
                refuse("the pre_tokenizer \"", type, "\" is not supported; ByteLevel, Digits and Split are");
            }
        });
        if (!bytes) refuse("the pre_tokenizer has no ByteLevel; only byte-level BPE is supported");
        if (!pattern) refuse("ByteLevel without use_regex needs a Split before it, or whole texts would be one piece");
    }

    void read_split(const Json& split) {
        if (const std::string how = string(split, "behavior", "Split"); how != "Isolated")
            refuse("Split with behavior \"", how, "\" is not supported; Isolated is");
        if (flag(split, "invert", false)) refuse("Split with invert is not supported");
        const Json& pattern = object(split, "pattern");
        if (!pattern.contains("Regex"))
            refuse("Split by a literal String is not supported: it is not the regular expression it may look like");
        const std::string regex = string(pattern, "Regex", "Split pattern");
        const auto known = pattern_of(regex);
        if (!known) refuse("the Split pattern ", regex, " is none of the supported three (GPT-2, Llama-3, Qwen)");
        model.pretokenizer.pattern = *known;
    }

    void read_model(const Json& m) {
        if (const std::string type = absent(m, "type") ? "BPE" : string(m, "type", "model"); type != "BPE")
            refuse("the model \"", type, "\" is not supported; byte-level BPE is");
        if (!absent(m, "dropout") && !(m.at("dropout").is_number() && m.at("dropout").get<double>() == 0))
            refuse("\"dropout\" is ", m.at("dropout").dump(), "; ids would be random");
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (!absent(m, key) && m.at(key) != "") refuse("\"", key, "\" is ", m.at(key).dump(), "; only none is supported");
        if (flag(m, "byte_fallback", false)) refuse("\"byte_fallback\" is on, which byte-level BPE does not use");
        model.ignore_merges = flag(m, "ignore_merges", false);
        read_vocab(object(m, "vocab"));
        read_merges(array(m, "merges"));
        if (!absent(m, "unk_token") && m.at("unk_token") != "")
            for (int b = 0; b < 256; ++b)
                if (!vocab.contains(spell_bytes(std::string(1, static_cast<char>(b)))))
                    refuse("the vocabulary lacks the byte ", b, " and has an unk_token; that is not supported");
    }

    // Makes room for `id`. A few ids far apart would be gigabytes of nothing, so holes are limited.
    TokenizerModel::Token& slot(std::int32_t id, const std::string& token, std::size_t entries) {
        if (static_cast<std::size_t>(id) > entries * 4 + 65536)
            refuse("the id ", id, " of \"", token, "\" is far beyond the ", entries, " tokens there are");
        if (static_cast<std::size_t>(id) >= model.tokens.size()) model.tokens.resize(static_cast<std::size_t>(id) + 1);
        return model.tokens[static_cast<std::size_t>(id)];
    }

    void read_vocab(const Json& entries) {
        if (entries.empty()) refuse("the vocabulary is empty");
        for (const auto& [token, value] : entries.items()) {
            const std::int32_t id = token_id(value, token);
            auto& t = slot(id, token, entries.size());
            if (t.exists) refuse("id ", id, " belongs to \"", token, "\" and to another token");
            t.exists = t.in_vocab = true;
            t.spelt = read_spelling(token, t.bytes);
            if (!t.spelt) t.bytes = token;
            vocab.emplace(token, id);
        }
    }

    void read_merges(const Json& list) {
        model.merges.reserve(list.size());
        std::int64_t line = 0;
        for (const Json& entry : list) {
            std::string left, right;
            if (entry.is_string()) {
                const std::string both = entry.get<std::string>();
                const std::size_t space = both.find(' ');
                if (line == 0 && both.starts_with("#version")) continue;
                if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
                    refuse("merge ", line, " is \"", both, "\", not two parts with one space between");
                left = both.substr(0, space), right = both.substr(space + 1);
            } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
                left = entry[0].get<std::string>(), right = entry[1].get<std::string>();
            } else {
                refuse("merge ", line, " is neither a text nor an array of two texts");
            }
            const auto find = [&](const std::string& part) {
                const auto at = vocab.find(part);
                if (at == vocab.end())
                    refuse("merge ", line, ", \"", left, "\" + \"", right, "\", needs \"", part,
                           "\", which is not in the vocabulary");
                return at->second;
            };
            model.merges.push_back({find(left), find(right), find(left + right)});
            ++line;
        }
    }

    void read_added(const Json& file) {
        if (absent(file, "added_tokens")) return;
        for (const Json& entry : array(file, "added_tokens")) {
            AddedToken t;
            t.content = string(entry, "content", "an added token");
            if (t.content.empty()) refuse("an added token is empty");
            if (!entry.contains("id")) refuse("the added token \"", t.content, "\" has no id");
            t.id = token_id(entry.at("id"), t.content);
            t.special = flag(entry, "special", false);
            t.single_word = flag(entry, "single_word", false);
            t.lstrip = flag(entry, "lstrip", false);
            t.rstrip = flag(entry, "rstrip", false);
            t.normalized = flag(entry, "normalized", !t.special);
            if (const auto known = vocab.find(t.content); known != vocab.end() && known->second != t.id)
                refuse("the added token \"", t.content, "\" has id ", t.id, ", but ", known->second, " in the vocabulary");
            auto& token = slot(t.id, t.content, vocab.size() + file.at("added_tokens").size());
            if (token.exists && !(vocab.contains(t.content) && token.in_vocab))
                refuse("id ", t.id, " belongs to \"", t.content, "\" and to another token");
            if (!token.exists) token.bytes = t.content;
            token.exists = true;
            token.special = t.special;
            model.added.push_back(std::move(t));
        }
    }

    // Only tokens spelt in the byte alphabet stand for bytes; a merge of others would decode to another text.
    void check_merges_spelt() const {
        const auto& tokens = model.tokens;
        for (std::size_t rank = 0; rank < model.merges.size(); ++rank) {
            const Merge& m = model.merges[rank];
            const auto& left = tokens[static_cast<std::size_t>(m.left)];
            const auto& right = tokens[static_cast<std::size_t>(m.right)];
            if (!left.spelt || !right.spelt)
                refuse("merge ", rank, " joins a token that is not spelt in the byte alphabet; not a byte-level tokenizer");
        }
    }
};

std::string content_of(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_object() && value.contains("content") && value.at("content").is_string())
        return value.at("content").get<std::string>();
    return {};
}

// BOS and EOS are named beside tokenizer.json, if at all.
void read_special_names(TokenizerModel& model, const std::filesystem::path& folder) {
    const auto id_of = [&](const std::string& content) -> std::optional<std::int32_t> {
        for (const AddedToken& t : model.added)
            if (t.content == content) return t.id;
        return std::nullopt;
    };
    for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
        const auto path = folder / file;
        if (folder.empty() || !std::filesystem::exists(path)) continue;
        const Json config = parse_json(read_file(path), path.string());
        if (!config.is_object()) fail(path.string(), ": not a JSON object");
        for (const auto& [key, id] : {std::pair{"bos_token", &model.bos}, std::pair{"eos_token", &model.eos}}) {
            if (id->has_value() || !config.contains(key) || config.at(key).is_null()) continue;
            *id = id_of(content_of(config.at(key)));
            if (!id->has_value())
                fail(path.string(), ": \"", key, "\" is ", config.at(key).dump(), ", which is no added token of ", model.name);
        }
    }
    for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
        if (!model.eos) model.eos = id_of(usual);
    for (const char* usual : {"<|begin_of_text|>", "<s>"})
        if (!model.bos) model.bos = id_of(usual);
}

TokenizerModel parse_with_folder(std::string_view json, const std::string& name, const std::filesystem::path& folder) {
    const Json file = parse_json(json, name);
    Reader reader{name, {}, {}};
    try {
        reader.read(file);
    } catch (const Json::exception& e) {
        fail(name, ": ", e.what());
    }
    reader.model.name = name;
    read_special_names(reader.model, folder);
    return std::move(reader.model);
}

}  // namespace

TokenizerModel parse_tokenizer_json(std::string_view json, const std::string& name) {
    return parse_with_folder(json, name, {});
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
    return Tokenizer(parse_tokenizer_json(json, name));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
    namespace fs = std::filesystem;
    fs::path file = path;
    if (fs::is_directory(path)) {
        file = path / "tokenizer.json";
        if (!fs::exists(file))
            fail(path.string(), " holds no tokenizer.json", fs::exists(path / "tokenizer.model")
                     ? "; tokenizer.model is not read: convert it to tokenizer.json" : "");
    }
    const bool standard = file.filename() == "tokenizer.json";
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    return Tokenizer(parse_with_folder(read_file(file), file.string(), standard ? folder : fs::path{}));
}

std::string tokenizer_json(const TokenizerModel& model) {
    const auto spelling = [&](std::int32_t id) {
        const auto& t = model.tokens[static_cast<std::size_t>(id)];
        return t.spelt ? spell_bytes(t.bytes) : t.bytes;
    };
    Ordered file;
    file["version"] = "1.0";
    file["truncation"] = nullptr;
    file["padding"] = nullptr;
    file["added_tokens"] = Ordered::array();
    for (const AddedToken& t : model.added)
        file["added_tokens"].push_back({{"id", t.id}, {"content", t.content}, {"single_word", t.single_word},
                                        {"lstrip", t.lstrip}, {"rstrip", t.rstrip}, {"normalized", t.normalized},
                                        {"special", t.special}});
    constexpr const char* forms[] = {"", "NFC", "NFD", "NFKC", "NFKD"};
    file["normalizer"] = nullptr;
    if (model.normalization != Normalization::none)
        file["normalizer"] = {{"type", forms[static_cast<int>(model.normalization)]}};

    const bool gpt2 = model.pretokenizer.pattern == Pattern::gpt2;
    const auto byte_level = [](bool regex) {
        return Ordered{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", regex}};
    };
    Ordered steps = Ordered::array();
    if (model.pretokenizer.digits != Digits::together)
        steps.push_back({{"type", "Digits"}, {"individual_digits", model.pretokenizer.digits == Digits::individual}});
    if (!gpt2)
        steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern_text(model.pretokenizer.pattern)}}},
                         {"behavior", "Isolated"}, {"invert", false}});
    steps.push_back(byte_level(gpt2));
    file["pre_tokenizer"] = steps.size() == 1 ? steps[0] : Ordered{{"type", "Sequence"}, {"pretokenizers", steps}};
    file["post_processor"] = nullptr;
    file["decoder"] = byte_level(true);

    Ordered vocab = Ordered::object(), merges = Ordered::array();
    for (std::size_t id = 0; id < model.tokens.size(); ++id)
        if (model.tokens[id].in_vocab)
            vocab.get_ref<Ordered::object_t&>().emplace_back(spelling(static_cast<std::int32_t>(id)), id);
    for (const Merge& m : model.merges) merges.push_back({spelling(m.left), spelling(m.right)});
    file["model"] = {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr}, {"fuse_unk", false}, {"byte_fallback", false},
                     {"ignore_merges", model.ignore_merges}};
    file["model"]["vocab"] = std::move(vocab);
    file["model"]["merges"] = std::move(merges);
    return file.dump(1) + "\n";
}

}  // namespace keel
