// Reads tokenizer.json: the parts in an order in which each can check itself against those before.
#include "data/tokenizer_json.h"

#include <set>
#include <unordered_set>

namespace keel {

TokenizerJson parse_checked_json(std::string_view text, const std::string& name) {
    using Json = TokenizerJson;
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

const TokenizerJson& TokenizerJsonReader::object(const Json& parent, const char* key) const {
    if (!parent.contains(key) || !parent.at(key).is_object()) refuse("\"", key, "\" is not an object");
    return parent.at(key);
}

const TokenizerJson& TokenizerJsonReader::array(const Json& parent, const char* key) const {
    if (!parent.contains(key) || !parent.at(key).is_array()) refuse("\"", key, "\" is not an array");
    return parent.at(key);
}

std::string TokenizerJsonReader::string(const Json& parent, const char* key, const std::string& what) const {
    if (!parent.is_object() || !parent.contains(key) || !parent.at(key).is_string()) refuse(what, " has no text \"", key, "\"");
    return parent.at(key).get<std::string>();
}

bool TokenizerJsonReader::flag(const Json& parent, const char* key, bool otherwise) const {
    if (absent(parent, key)) return otherwise;
    if (!parent.at(key).is_boolean()) refuse("\"", key, "\" is neither true nor false");
    return parent.at(key).get<bool>();
}

std::int64_t TokenizerJsonReader::count(const Json& parent, const char* key, const std::string& what) const {
    if (!parent.contains(key) || !parent.at(key).is_number_integer() || parent.at(key) < 0 || parent.at(key) > 1000)
        refuse(what, " has no \"", key, "\" that is a whole number from 0 to 1000");
    return parent.at(key).get<std::int64_t>();
}

std::int32_t TokenizerJsonReader::token_id(const Json& value, const std::string& token) const {
    if (!value.is_number_integer() || value < 0 || value > 0x7ffffffe)
        refuse("the id of \"", token, "\" is ", value.dump(), ", not a whole number from 0 on");
    return value.get<std::int32_t>();
}

void TokenizerJsonReader::read(const Json& file) {
    if (!file.is_object()) refuse("not a JSON object");
    read_normalizer(file);
    read_pre_tokenizer(file);
    read_model(object(file, "model"));
    if (!absent(file, "added_tokens")) read_added(array(file, "added_tokens"));
    if (!absent(file, "post_processor"))  // it adds BOS and EOS, which keel leaves to whoever writes data
        for_each_component(file.at("post_processor"), "post_processor", "processors", [&](const Json& c) {
            static const std::set<std::string> known{"ByteLevel", "TemplateProcessing"};
            if (const std::string type = string(c, "type", "post_processor"); !known.contains(type))
                refuse("the post_processor \"", type, "\" is not supported; ByteLevel and TemplateProcessing are");
        });
    read_decoder(file);
    if (model.kind == TokenizerModel::Kind::byte_bpe) check_merges_spelt();
    if (model.kind == TokenizerModel::Kind::char_bpe) make_char_bpe();
}

void TokenizerJsonReader::read_added(const Json& list) {
    for (const Json& entry : list) {
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
        auto& token = slot(t.id, t.content, vocab.size() + list.size());
        if (token.exists && !(vocab.contains(t.content) && token.in_vocab))
            refuse("id ", t.id, " belongs to \"", t.content, "\" and to another token");
        if (!token.exists) {
            token.bytes = t.content;
            if (!bytes) token.text = t.content;
        }
        token.exists = true;
        token.special = t.special;
        model.added.push_back(std::move(t));
    }
}

TokenizerModel parse_tokenizer_json(std::string_view text, const std::string& name) {
    const TokenizerJson file = parse_checked_json(text, name);
    TokenizerJsonReader reader{name, {}, {}};
    try {
        reader.read(file);
    } catch (const TokenizerJson::exception& e) {
        fail(name, ": ", e.what());
    }
    TokenizerModel& m = reader.model;
    m.name = name;
    const bool one_form = m.normalizer.empty() || (m.normalizer.size() == 1 && m.normalizer[0].kind == NormalizerStep::Kind::unicode);
    if (m.kind != TokenizerModel::Kind::byte_bpe || m.cutting != TokenizerModel::Cutting::scanner || !one_form) {
        m.source_name = "tokenizer.json";
        m.source = text;
    }
    return std::move(m);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
    return Tokenizer(parse_tokenizer_json(json, name));
}

}  // namespace keel
