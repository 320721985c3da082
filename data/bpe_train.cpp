#include "data/bpe_train.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "kernels/base/error.h"

namespace keel {
namespace {

// A distinct piece: its symbols lie in one array with those of all others.
struct Word {
    std::size_t begin;
    std::uint32_t size;
    std::int64_t count;
};

struct Pair {
    std::int64_t count = 0;
    std::int32_t joined = -1;            // once it has been merged
    std::vector<std::uint32_t> words;    // where it occurs, or did
};

struct Candidate {
    std::int64_t count;
    std::uint64_t key;  // left << 32 | right
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : key > other.key; }
};

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

class Training {
public:
    Training(TokenizerModel& model, std::int64_t min_count) : model_(model), min_count_(min_count) {}

    void add(std::string_view piece, std::int64_t count, const std::array<std::int32_t, 256>& byte_ids) {
        const auto index = static_cast<std::uint32_t>(words_.size());
        words_.push_back({symbols_.size(), static_cast<std::uint32_t>(piece.size()), count});
        for (const char c : piece) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
        for (std::size_t i = words_.back().begin; i + 1 < symbols_.size(); ++i) add_pair(symbols_[i], symbols_[i + 1], count, index);
    }

    void begin() {
        for (std::size_t id = 0; id < model_.tokens.size(); ++id) ids_.emplace(model_.tokens[id].bytes, static_cast<std::int32_t>(id));
        for (const auto& [key, pair] : pairs_) queue_.push({pair.count, key});
    }

    // Joins the best pair; false when none is frequent enough. A step may find its token already there and add no id.
    bool step() {
        while (!queue_.empty()) {
            const Candidate best = queue_.top();
            queue_.pop();
            Pair& pair = pairs_[best.key];
            if (pair.count != best.count) {  // it has been joined in part since
                if (pair.count >= min_count_) queue_.push({pair.count, best.key});
                continue;
            }
            if (pair.count < std::max<std::int64_t>(min_count_, 1)) return false;
            const auto left = static_cast<std::int32_t>(best.key >> 32), right = static_cast<std::int32_t>(best.key);
            if (pair.joined < 0 && !name(pair, left, right)) continue;
            join(best.key, left, right);
            return true;
        }
        return false;
    }

private:
    void add_pair(std::int32_t left, std::int32_t right, std::int64_t count, std::uint32_t word) {
        Pair& pair = pairs_[key_of(left, right)];
        pair.count += count;
        if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    }

    // Gives the joined token an id and records the merge. A special token's text is not for merges to make.
    bool name(Pair& pair, std::int32_t left, std::int32_t right) {
        const std::string bytes = model_.tokens[static_cast<std::size_t>(left)].bytes + model_.tokens[static_cast<std::size_t>(right)].bytes;
        const auto [at, is_new] = ids_.emplace(bytes, static_cast<std::int32_t>(model_.tokens.size()));
        if (is_new) {
            model_.tokens.push_back({.bytes = bytes, .exists = true, .in_vocab = true, .spelt = true, .special = false});
        } else if (model_.tokens[static_cast<std::size_t>(at->second)].special) {
            pair.count = 0;
            return false;
        }
        pair.joined = at->second;
        model_.merges.push_back({left, right, pair.joined});
        return true;
    }

    void join(std::uint64_t key, std::int32_t left, std::int32_t right) {
        const std::int32_t joined = pairs_[key].joined;
        std::vector<std::uint32_t> where = std::move(pairs_[key].words);
        pairs_[key].words.clear();
        std::sort(where.begin(), where.end());
        where.erase(std::unique(where.begin(), where.end()), where.end());
        grown_.clear();
        for (const std::uint32_t index : where) {
            Word& word = words_[index];
            const std::span s(symbols_.data() + word.begin, word.size);
            std::uint32_t to = 0;
            for (std::size_t from = 0; from < s.size(); ++from) {
                if (from + 1 == s.size() || s[from] != left || s[from + 1] != right) {
                    s[to++] = s[from];
                    continue;
                }
                if (to > 0) change(s[to - 1], left, joined, true, word.count, index);
                if (from + 2 < s.size()) change(s[from + 2], right, joined, false, word.count, index);
                s[to++] = joined;
                ++from;
            }
            word.size = to;
        }
        pairs_[key].count = 0;
        for (const std::uint64_t k : grown_)
            if (const std::int64_t count = pairs_[k].count; count >= min_count_) queue_.push({count, k});
    }

    // The neighbour's pair with `old` becomes one with `joined`; `before` tells on which side the neighbour stands.
    void change(std::int32_t neighbour, std::int32_t old, std::int32_t joined, bool before, std::int64_t count,
                std::uint32_t word) {
        pairs_[before ? key_of(neighbour, old) : key_of(old, neighbour)].count -= count;
        const std::int32_t l = before ? neighbour : joined, r = before ? joined : neighbour;
        add_pair(l, r, count, word);
        grown_.push_back(key_of(l, r));
    }

    TokenizerModel& model_;
    std::int64_t min_count_;
    std::vector<Word> words_;
    std::vector<std::int32_t> symbols_;
    std::unordered_map<std::uint64_t, Pair> pairs_;
    std::unordered_map<std::string, std::int32_t> ids_;
    std::priority_queue<Candidate> queue_;
    std::vector<std::uint64_t> grown_;
};

}  // namespace

void BpeTrainer::check(const BpeTrainOptions& options) {
    const auto base = static_cast<std::int64_t>(options.special.size()) + 256;
    if (options.vocab_size < base || options.vocab_size > 1 << 24)
        fail_usage("--vocab is ", options.vocab_size, "; it must be from ", base, " (the bytes and the special tokens) to ", 1 << 24);
    if (options.min_count < 1) fail_usage("--min-count is ", options.min_count, "; it must be at least 1");
    for (std::size_t i = 0; i < options.special.size(); ++i) {
        const std::string& content = options.special[i];
        if (content.size() < 2 || std::any_of(content.begin(), content.end(), [](char c) { return c < 33 || c > 126; }))
            fail_usage("the special token \"", content, "\" is not two or more printable ASCII characters");
        if (std::count(options.special.begin(), options.special.end(), content) > 1)
            fail_usage("the special token \"", content, "\" is given twice");
    }
}

Tokenizer BpeTrainer::train(const BpeTrainOptions& options,
                            const std::function<void(std::int64_t, std::int64_t)>& progress) const {
    check(options);
    if (counts_.distinct() == 0) fail("there is no text to learn from: all inputs are empty");
    const auto base = static_cast<std::int64_t>(options.special.size()) + 256;

    TokenizerModel model;
    model.name = "the trained tokenizer";
    model.pretokenizer = how_;
    for (const std::string& content : options.special) {
        model.added.push_back({.content = content, .id = static_cast<std::int32_t>(model.tokens.size()), .special = true});
        model.tokens.push_back({.bytes = content, .exists = true, .in_vocab = true, .spelt = true, .special = true});
    }
    std::array<int, 256> order;
    for (int b = 0; b < 256; ++b) order[static_cast<std::size_t>(b)] = b;
    std::sort(order.begin(), order.end(), [](int a, int b) {
        return byte_alphabet()[static_cast<std::size_t>(a)] < byte_alphabet()[static_cast<std::size_t>(b)];
    });
    std::array<std::int32_t, 256> byte_ids{};
    for (const int b : order) {
        byte_ids[static_cast<std::size_t>(b)] = static_cast<std::int32_t>(model.tokens.size());
        model.tokens.push_back({.bytes = std::string(1, static_cast<char>(b)), .exists = true, .in_vocab = true, .spelt = true,
                                .special = false});
    }

    Training training(model, options.min_count);
    counts_.for_each([&](std::string_view piece, std::int64_t count) { training.add(piece, count, byte_ids); });
    training.begin();
    const std::int64_t wanted = options.vocab_size - base;
    while (static_cast<std::int64_t>(model.tokens.size()) < options.vocab_size && training.step())
        if (progress) progress(static_cast<std::int64_t>(model.tokens.size()) - base, wanted);
    for (const AddedToken& t : model.added)
        if (t.content == "<|endoftext|>" || (!model.eos && t.content == "</s>")) model.eos = t.id;
    return Tokenizer(std::move(model));
}

}  // namespace keel
