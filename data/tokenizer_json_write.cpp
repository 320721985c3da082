// Writes a tokenizer.json of byte-level BPE: what keel trains, and what comes in the common forms.
#include <nlohmann/json.hpp>

#include "data/tokenizer_model.h"

namespace keel {
namespace {

using Ordered = nlohmann::ordered_json;  // its look-up is linear: for writing only

}  // namespace

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
    if (!model.normalizer.empty()) file["normalizer"] = {{"type", forms[static_cast<int>(model.normalizer[0].form)]}};

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
