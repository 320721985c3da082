// data/tokenizer.h: text to ids and back, for the tokenizers people arrive with: tokenizer.json (BPE over bytes or characters,
// Unigram), SentencePiece's tokenizer.model, tiktoken files, and vocab.json with merges.txt.
//
// The file decides, never a model's name: pattern, normalizer, added tokens and merge order come from it, and a component
// keel does not know is refused by name, because a skipped component changes ids silently.
//
// A Tokenizer is immutable and may be shared by threads; an Encoder holds the scratch and the cache of one thread.
// BOS and EOS are never added here: who writes training data or a prompt says so explicitly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

struct TokenizerModel;  // data/tokenizer_model.h
class TokenDecoder;     // data/token_decoder.h

class Tokenizer {
public:
    // `path` is a file, or a folder: then its tokenizer.json, else its tokenizer.model (SentencePiece or tiktoken, by content),
    // else its vocab.json with merges.txt. Throws Error with the path and the offending component.
    static Tokenizer load(const std::filesystem::path& path);
    // Whether `folder` holds any of these.
    static bool found_in(const std::filesystem::path& folder);
    // The content of a tokenizer.json; `name` stands for it in messages.
    static Tokenizer parse(std::string_view json, const std::string& name);
    explicit Tokenizer(TokenizerModel model);

    std::int64_t vocab_size() const;             // largest id + 1, added tokens included
    std::uint64_t hash() const;                  // XXH3-64 of everything that decides ids, not of the file's layout
    const std::string& name() const;             // the path it came from
    std::string description() const;             // what it is, in a few words

    // From tokenizer_config.json or special_tokens_map.json beside the file, else the usual names if they are added tokens.
    std::optional<std::int32_t> bos_id() const;
    std::optional<std::int32_t> eos_id() const;
    std::optional<std::int32_t> id(std::string_view token) const;  // of an added or special token, by its text
    bool is_special(std::int32_t id) const;

    // Appends the ids of `text`. Invalid UTF-8 becomes U+FFFD. Special tokens written out in the text become their ids.
    void encode(std::string_view text, std::vector<std::int32_t>& ids) const;
    std::vector<std::int32_t> encode(std::string_view text) const;
    // Bytes that are not UTF-8 become U+FFFD. An id outside the vocabulary throws.
    std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
    std::string_view bytes(std::int32_t id) const;  // what one id stands for; may be part of a character

    // The file that makes this tokenizer again wherever it is put: a standard tokenizer.json where there can be one, else
    // the tokenizer.model it came from.
    struct File {
        std::string name, content;
    };
    File file() const;
    std::string to_json() const;  // the same, if it is a tokenizer.json; else ""
    const TokenizerModel& model() const { return *model_; }

private:
    std::shared_ptr<const TokenizerModel> model_;
};

enum class SpecialText : std::uint8_t {
    parse,  // "<|endoftext|>" in the text is that token
    plain,  // it is thirteen characters like any others
};

// Encodes many texts on one thread. The Tokenizer must outlive it.
class Encoder {
public:
    explicit Encoder(const Tokenizer& tokenizer, SpecialText special = SpecialText::parse, bool cache = true);
    ~Encoder();
    Encoder(Encoder&&) noexcept;

    // Appends. `text` must be valid UTF-8 (data/utf8.h: append_repaired). Linear in practice: n log n in the longest piece.
    void encode(std::string_view text, std::vector<std::int32_t>& ids);

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Turns ids into text as they arrive, and never hands out part of a character: an incomplete one is held back.
class StreamDecoder {
public:
    explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false);
    ~StreamDecoder();
    StreamDecoder(StreamDecoder&&) noexcept;

    std::string push(std::int32_t id);  // the characters completed by this id; may be empty
    std::string finish();               // what was held back, now U+FFFD; ready for a new text afterwards

private:
    Tokenizer tokenizer_;
    std::unique_ptr<TokenDecoder> decoder_;
};

}  // namespace keel
