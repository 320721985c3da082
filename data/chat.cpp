#include "data/chat.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

using Json = nlohmann::json;

const std::array<ChatFormat, 5>& built_in() {
    const auto same = [](const std::string& before, const std::string& after, const std::string& between) {
        std::vector<ChatFormat::Role> roles;
        for (const char* role : {"system", "user", "assistant"}) {
            std::string with_role = before;
            with_role.replace(with_role.find('$'), 1, role);
            roles.push_back({role, with_role, after, between, std::string_view(role) == "assistant"});
        }
        return roles;
    };
    static const std::array<ChatFormat, 5> formats{
        ChatFormat{"chatml", "", "", same("<|im_start|>$\n", "<|im_end|>", "\n"), false},
        ChatFormat{"llama3", "<|begin_of_text|>", "",
                   same("<|start_header_id|>$<|end_header_id|>\n\n", "<|eot_id|>", ""), false},
        ChatFormat{"zephyr", "", "", same("<|$|>\n", "</s>", "\n"), false},
        ChatFormat{"mistral",
                   "<s>",
                   "",
                   {{"user", "[INST] ", " [/INST]", "", false}, {"assistant", "", "</s>", "", true}},
                   false},
        ChatFormat{"prompt", "", "", {{"user", "", "", "", false}, {"assistant", "", "", "", true}}, true}};
    return formats;
}

void parse_role(const Json& fields, ChatFormat::Role& role, const std::string& where) {
    if (!fields.is_object()) fail_usage(where, ": must be an object of before, after, between and learn");
    for (const auto& [key, value] : fields.items()) {
        std::string* text = key == "before"    ? &role.before
                            : key == "after"   ? &role.after
                            : key == "between" ? &role.between
                                               : nullptr;
        if (text != nullptr && value.is_string()) *text = value;
        else if (key == "learn" && value.is_boolean()) role.learn = value;
        else
            fail_usage(where, ": \"", key, "\" is not one of before, after, between (texts) and learn (true or false)");
    }
}

// Special tokens in the texts of a format: one token there, and ordinary characters in what people wrote.
void require_special(const Tokenizer& tokenizer, const ChatFormat& format, std::string_view text) {
    const auto require = [&](std::string_view token) {
        const auto encoded = [&](SpecialText special) {
            std::vector<std::int32_t> ids;
            Encoder(tokenizer, special).encode(token, ids);
            return ids;
        };
        const auto one = encoded(SpecialText::parse);
        if (one.size() != 1)
            fail_usage("the chat format ", format.name, " uses ", token, ", which ", tokenizer.name(),
                       " does not read as one token; give"
                       " the format of this tokenizer's model, or a .json of your own");
        if (one == encoded(SpecialText::plain))
            fail_usage("the chat format ", format.name, " uses ", token, ", which ", tokenizer.name(),
                       " reads as that token in any text, so what people wrote could forge a turn; mark it as special");
    };
    for (const char* token : {"<s>", "</s>"})
        if (text.find(token) != std::string_view::npos) require(token);
    if (format.name == "zephyr") return;  // whose <|user|> is ordinary text
    for (std::size_t at = 0, end;
         (at = text.find("<|", at)) != std::string_view::npos && (end = text.find("|>", at)) != std::string_view::npos;
         at = end)
        require(text.substr(at, end + 2 - at));
}

struct Message {
    std::string role, content;
};

// nullopt: `problem` says why.
std::optional<std::string> text_at(const Json& object, const char* key) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
}

std::string read_messages(const Json& line, std::vector<Message>& messages) {
    if (!line.is_object()) return "not a JSON object";
    const bool share = !line.contains("messages") && line.contains("conversations");
    if (line.contains("messages") || share) {
        const Json& list = line[share ? "conversations" : "messages"];
        const char *role_key = share ? "from" : "role", *text_key = share ? "value" : "content";
        if (!list.is_array() || list.empty()) return "its messages are no list, or an empty one";
        for (const Json& message : list) {
            const auto role = message.is_object() ? text_at(message, role_key) : std::nullopt;
            const auto text = message.is_object() ? text_at(message, text_key) : std::nullopt;
            if (!role || !text)
                return concat("message ", messages.size(), " lacks a text \"", role ? text_key : role_key, "\"");
            messages.push_back({*role == "human" ? "user" : *role == "gpt" ? "assistant" : *role, *text});
        }
        return "";
    }
    const auto prompt = text_at(line, "prompt"), completion = text_at(line, "completion");
    if (!prompt || !completion) return "neither \"messages\", \"conversations\" nor \"prompt\" and \"completion\"";
    messages = {{"user", *prompt}, {"assistant", *completion}};
    return "";
}

}  // namespace

ChatFormat ChatFormat::named(const std::string& name) {
    std::string known;
    for (const ChatFormat& format : built_in()) {
        if (format.name == name) return format;
        known += (known.empty() ? "" : ", ") + format.name;
    }
    if (!name.ends_with(".json"))
        fail_usage("\"", name, "\" is no chat format; known are ", known, ", and a .json file describes your own");
    return parse(read_file(name), name);
}

ChatFormat ChatFormat::parse(std::string_view json, const std::string& name) {
    const Json tree = Json::parse(json, nullptr, false);
    if (!tree.is_object()) fail_usage(name, ": a chat format is one JSON object");
    ChatFormat format;
    format.name = name;
    for (const auto& [key, value] : tree.items()) {
        if (key == "begin" && value.is_string()) format.begin = value;
        else if (key == "end" && value.is_string()) format.end = value;
        else if (key == "eos" && value.is_boolean()) format.eos = value;
        else if (key == "roles" && value.is_object())
            for (const auto& [role, fields] : value.items())
                format.roles.push_back({.name = role, .before = "", .after = "", .between = ""}),
                    parse_role(fields, format.roles.back(), concat(name, ", role \"", role, "\""));
        else
            fail_usage(name, ": \"", key,
                       "\" is not one of begin, end (texts), eos (true or false) and roles (an object)");
    }
    if (std::none_of(format.roles.begin(), format.roles.end(), [](const Role& role) { return role.learn; }))
        fail_usage(name, ": no role has \"learn\": true, so there would be nothing to train on");
    return format;
}

struct ChatEncoder::State {
    const ChatFormat format;
    const Tokenizer tokenizer;
    Encoder content, special;  // special tokens are text in the one, and themselves in the other

    State(const ChatFormat& f, const Tokenizer& t)
        : format(f), tokenizer(t), content(tokenizer, SpecialText::plain), special(tokenizer, SpecialText::parse) {}
};

ChatEncoder::ChatEncoder(const ChatFormat& format, const Tokenizer& tokenizer) : state_(new State(format, tokenizer)) {
    require_special(tokenizer, format, format.begin);
    require_special(tokenizer, format, format.end);
    for (const ChatFormat::Role& role : format.roles)
        for (const std::string* text : {&role.before, &role.after, &role.between})
            require_special(tokenizer, format, *text);
    if (format.eos && !tokenizer.eos_id())
        fail_usage("the chat format ", format.name, " ends with an end-of-text token, and ", tokenizer.name(),
                   " names none");
}
ChatEncoder::~ChatEncoder() = default;
ChatEncoder::ChatEncoder(ChatEncoder&&) noexcept = default;

std::string ChatEncoder::encode(std::string_view line, std::vector<std::int32_t>& ids,
                                std::vector<std::uint8_t>& targets) {
    State& s = *state_;
    ids.clear();
    targets.clear();
    const Json tree = Json::parse(line, nullptr, false);
    if (tree.is_discarded()) return "not valid JSON";
    std::vector<Message> messages;
    if (const std::string problem = read_messages(tree, messages); !problem.empty()) return problem;
    const auto add = [&](Encoder& encoder, std::string_view text, bool learn) {
        encoder.encode(text, ids);
        targets.resize(ids.size(), learn ? 1 : 0);
    };
    bool learned = false;
    add(s.special, s.format.begin, false);
    for (const Message& message : messages) {
        const auto role = std::find_if(s.format.roles.begin(), s.format.roles.end(),
                                       [&](const auto& r) { return r.name == message.role; });
        if (role == s.format.roles.end())
            return concat("the role \"", message.role, "\" is not one of the format ", s.format.name);
        add(s.special, role->before, false);
        add(s.content, message.content, role->learn);
        add(s.special, role->after, role->learn);
        add(s.special, role->between, false);
        learned = learned || role->learn;
    }
    if (!learned) return "no message of a role that is to be learned";
    add(s.special, s.format.end, true);
    if (s.format.eos) ids.push_back(*s.tokenizer.eos_id()), targets.push_back(1);
    return "";
}

}  // namespace keel
