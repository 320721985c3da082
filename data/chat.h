// data/chat.h: instruction data: JSON lines of conversations or of prompts and completions, to tokens and a loss mask.
//
// A line is {"messages": [{"role": "user", "content": "…"}, …]}, or {"conversations": [{"from": "human", "value": "…"},
// …]} (human and gpt mean user and assistant), or {"prompt": "…", "completion": "…"}. There is no template engine: a
// format is a few texts, and the document is
//
//     begin   { before(role) content after(role) between(role) }  for each message   end
//
// begin, before, after, between and end may hold special tokens ("<|im_end|>"); content never does: what looks like one
// in it stays text, so that no document can forge a turn. Each of these parts is encoded on its own, so the mask has
// sharp borders. Predicted are the content and the `after` of roles that are to be learned (the assistant), and `end`.
// The rest is read and not predicted. `keel data show` shows it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace keel {

struct ChatFormat {
    struct Role {
        std::string name, before, after, between;
        bool learn = false;
    };
    std::string name;
    std::string begin, end;
    std::vector<Role> roles;  // a message of any other role is a bad line
    bool eos = false;         // the tokenizer's end-of-text token follows, and is predicted

    // "chatml", "llama3", "zephyr", "mistral", "prompt" (prompt and completion as they are, then end of text), or the
    // path of a .json: {"begin": "", "end": "", "eos": false, "roles": {"user": {"before": "", "after": "", "between":
    // "", "learn": false}}}.
    static ChatFormat named(const std::string& name);
    static ChatFormat parse(std::string_view json, const std::string& name);
};

// Encodes lines on one thread.
class ChatEncoder {
public:
    // Throws if the format has special tokens (<|…|>) that the tokenizer lacks.
    ChatEncoder(const ChatFormat& format, const Tokenizer& tokenizer);
    ~ChatEncoder();
    ChatEncoder(ChatEncoder&&) noexcept;

    // The ids of a line and, for each, whether it is to be predicted. Returns what is wrong with the line, or "".
    std::string encode(std::string_view line, std::vector<std::int32_t>& ids, std::vector<std::uint8_t>& targets);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace keel
