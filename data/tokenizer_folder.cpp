// Which file of a folder is its tokenizer, and what the files beside it add: names of special tokens, added tokens.
#include <set>

#include "data/tokenizer_json.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using Json = TokenizerJson;

// tokenizer_config.json, special_tokens_map.json and added_tokens.json; those that are not there are empty objects.
struct Beside {
    fs::path folder;  // empty: nothing is looked for

    Json read(const char* file) const {
        const fs::path path = folder / file;
        if (folder.empty() || !fs::exists(path)) return Json::object();
        Json json = parse_checked_json(read_file(path), path.string());
        if (!json.is_object()) fail(path.string(), ": not a JSON object");
        return json;
    }
    std::string path(const char* file) const { return (folder / file).string(); }
};

std::string content_of(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_object() && value.contains("content") && value.at("content").is_string())
        return value.at("content").get<std::string>();
    return {};
}

bool is_true(const Json& object, const char* key) { return object.contains(key) && object.at(key).is_boolean() && object.at(key).get<bool>(); }

// BOS and EOS are named beside the tokenizer, if at all.
void read_special_names(TokenizerModel& model, const Beside& beside) {
    const auto id_of = [&](const std::string& content) -> std::optional<std::int32_t> {
        for (const AddedToken& t : model.added)
            if (t.content == content) return t.id;
        for (std::size_t id = 0; id < model.tokens.size(); ++id)
            if (model.tokens[id].special && model.tokens[id].text == content) return static_cast<std::int32_t>(id);
        return std::nullopt;
    };
    std::set<const void*> named;
    for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
        const Json config = beside.read(file);
        for (const auto& [key, id] : {std::pair{"bos_token", &model.bos}, std::pair{"eos_token", &model.eos}}) {
            if (named.contains(id) || !config.contains(key) || config.at(key).is_null()) continue;
            *id = id_of(content_of(config.at(key)));
            if (!id->has_value())
                fail(beside.path(file), ": \"", key, "\" is ", config.at(key).dump(), ", which is no added token of ", model.name);
            named.insert(id);
        }
    }
}

// Tokens that a tokenizer.json would list itself: for the older files they stand beside.
void read_added_tokens(TokenizerModel& model, const Beside& beside) {
    const Json map = beside.read("special_tokens_map.json"), config = beside.read("tokenizer_config.json");
    std::set<std::string> special;
    for (const Json* file : {&map, &config})
        for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"})
            if (file->contains(key)) special.insert(content_of(file->at(key)));
    if (map.contains("additional_special_tokens") && map.at("additional_special_tokens").is_array())
        for (const Json& token : map.at("additional_special_tokens")) special.insert(content_of(token));
    const auto number = [&](const Json& value, const std::string& content, const char* file) {
        if (!value.is_number_integer() || value < 0 || value > 0x7ffffffe)
            fail(beside.path(file), ": the id of \"", content, "\" is ", value.dump(), ", not a whole number from 0 on");
        return value.get<std::int32_t>();
    };
    if (config.contains("added_tokens_decoder") && config.at("added_tokens_decoder").is_object())
        for (const auto& [key, value] : config.at("added_tokens_decoder").items()) {
            const std::string content = content_of(value);
            const Json id = Json::parse(key, nullptr, false);
            if (value.is_object())
                for (const char* flag : {"lstrip", "rstrip", "single_word"})
                    if (is_true(value, flag)) fail(beside.path("tokenizer_config.json"), ": ", flag, " of \"", content, "\" is supported in a tokenizer.json only");
            add_special_token(model, content, number(id, content, "tokenizer_config.json"), is_true(value, "special"));
        }
    const Json added = beside.read("added_tokens.json");
    for (const auto& [content, id] : added.items())
        add_special_token(model, content, number(id, content, "added_tokens.json"), special.contains(content));
}

// vocab.json and merges.txt are a tokenizer.json without its other parts. Those follow from the class that
// tokenizer_config.json names; GPT-2's is what the two files were made for.
TokenizerModel read_vocab_and_merges(const fs::path& folder) {
    const Beside beside{folder};
    const Json config = beside.read("tokenizer_config.json");
    std::string kind = config.contains("tokenizer_class") ? content_of(config.at("tokenizer_class")) : "GPT2Tokenizer";
    if (kind.ends_with("Fast")) kind.resize(kind.size() - 4);
    const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", is_true(config, "add_prefix_space")}, {"use_regex", kind != "Qwen2Tokenizer"}};
    Json file;
    if (kind == "GPT2Tokenizer") {
        file["pre_tokenizer"] = bytes;
    } else if (kind == "Qwen2Tokenizer") {
        const Json split = {{"type", "Split"}, {"pattern", {{"Regex", pattern_text(Pattern::qwen)}}}, {"behavior", "Isolated"}};
        file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
        file["normalizer"] = {{"type", "NFC"}};
    } else {
        fail(beside.path("tokenizer_config.json"), ": the tokenizer_class \"", kind, "\" with vocab.json and merges.txt is not supported;"
             " GPT2Tokenizer and Qwen2Tokenizer are: use a tokenizer.json");
    }
    file["decoder"] = {{"type", "ByteLevel"}};
    const std::string name = (folder / "vocab.json").string();
    Json merges = Json::array();
    const std::string text = read_file(folder / "merges.txt");
    if (const std::size_t valid = utf8_valid_prefix(text); valid < text.size())
        fail((folder / "merges.txt").string(), ", byte ", valid, ": this is not UTF-8; merges spell bytes as characters");
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        std::string line = text.substr(at, end - at);
        at = end + 1;
        if (line.ends_with('\r')) line.pop_back();
        if (!line.empty() && !(merges.empty() && line.starts_with("#version"))) merges.push_back(std::move(line));
    }
    file["model"] = {{"type", "BPE"}, {"vocab", parse_checked_json(read_file(folder / "vocab.json"), name)}, {"merges", std::move(merges)}};
    TokenizerModel model = parse_tokenizer_json(file.dump(), name);
    model.format = "vocab.json and merges.txt, " + kind;
    read_added_tokens(model, beside);
    const auto make_special = [&](const std::string& content) {
        for (std::size_t id = 0; id < model.tokens.size(); ++id)
            if (model.tokens[id].spelt && spell_bytes(model.tokens[id].bytes) == content)
                return add_special_token(model, content, static_cast<std::int32_t>(id));
    };
    for (const char* beside_file : {"tokenizer_config.json", "special_tokens_map.json"}) {
        const Json names = beside.read(beside_file);
        for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"})
            if (names.contains(key) && !names.at(key).is_null()) make_special(content_of(names.at(key)));
    }
    make_special("<|endoftext|>");
    if (!model.source_name.empty()) {  // what is handed on is one file, so these tokens belong into it
        file["added_tokens"] = Json::array();
        for (const AddedToken& t : model.added)
            file["added_tokens"].push_back({{"id", t.id}, {"content", t.content}, {"special", t.special}, {"normalized", t.normalized}});
        model.source = file.dump(1) + "\n";
    }
    return model;
}

TokenizerModel read_model_file(const fs::path& path, const Beside& beside) {
    const std::string text = read_file(path);
    if (!looks_like_tiktoken(text)) {
        TokenizerModel model = parse_sentencepiece(text, path.string());
        read_added_tokens(model, beside);
        return model;
    }
    TokenizerModel model = parse_tiktoken(text, path.string());
    const Json config = beside.read("tokenizer_config.json");
    if (config.contains("pat_str")) set_tiktoken_pattern(model, content_of(config.at("pat_str")));
    else if (model.cutting == TokenizerModel::Cutting::steps && model.steps.empty())
        fail(path.string(), " is a tiktoken file of ", model.tokens.size(), " tokens that keel does not know, and such a file holds no"
             " pattern; give it as \"pat_str\" in a tokenizer_config.json beside it, and special tokens as \"added_tokens_decoder\"");
    read_added_tokens(model, beside);
    return model;
}

}  // namespace

void add_special_token(TokenizerModel& model, const std::string& content, std::int32_t id, bool special) {
    if (content.empty()) fail(model.name, ": the special token with the id ", id, " has no text");
    if (static_cast<std::size_t>(id) > model.tokens.size() * 4 + 65536)
        fail(model.name, ": the id ", id, " of \"", content, "\" is far beyond the ", model.tokens.size(), " tokens there are");
    if (static_cast<std::size_t>(id) >= model.tokens.size()) model.tokens.resize(static_cast<std::size_t>(id) + 1);
    TokenizerModel::Token& token = model.tokens[static_cast<std::size_t>(id)];
    const std::string name = token.spelt ? spell_bytes(token.bytes) : token.text.empty() ? token.bytes : token.text;
    if (token.exists && name != content) fail(model.name, ": the id ", id, " belongs to \"", name, "\" and to \"", content, "\"");
    if (token.silent) return;  // a control symbol of SentencePiece: special already, and never read from text
    if (!token.exists) token.bytes = content;
    if (!token.exists && model.kind != TokenizerModel::Kind::byte_bpe) token.text = content;
    token.exists = true;
    token.special = token.special || special;
    for (const AddedToken& t : model.added)
        if (t.content == content) return;
    model.added.push_back({.content = content, .id = id, .special = special});
}

bool Tokenizer::found_in(const fs::path& folder) {
    return fs::exists(folder / "tokenizer.json") || fs::exists(folder / "tokenizer.model") ||
           (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt"));
}

TokenizerModel read_tokenizer(const fs::path& path) {
    fs::path file = path;
    if (fs::is_directory(path)) {
        if (!Tokenizer::found_in(path))
            fail(path.string(), " holds no tokenizer.json, no tokenizer.model, and no vocab.json with merges.txt");
        file = path / (fs::exists(path / "tokenizer.json") ? "tokenizer.json" : fs::exists(path / "tokenizer.model") ? "tokenizer.model" : "vocab.json");
    }
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    const std::string name = file.filename().string();
    // Files of other names may lie anywhere: what is beside them need not be theirs.
    const Beside beside{name == "tokenizer.json" || name == "tokenizer.model" || name == "vocab.json" ? folder : fs::path{}};
    TokenizerModel model = name == "vocab.json" || name == "merges.txt" ? read_vocab_and_merges(folder)
                           : file.extension() == ".json"                ? parse_tokenizer_json(read_file(file), file.string())
                                                                        : read_model_file(file, beside);
    read_special_names(model, beside);
    return model;
}

}  // namespace keel
