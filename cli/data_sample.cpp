#include "cli/data_sample.h"

#include "kernels/base/error.h"

namespace keel {
namespace {

std::string text_of(const std::vector<ShownToken>& tokens, std::int64_t begin, std::int64_t end,
                    const std::optional<Tokenizer>& tokenizer) {
    std::vector<std::int32_t> ids;
    for (std::int64_t t = begin; t < end; ++t) ids.push_back(tokens[static_cast<std::size_t>(t)].id);
    if (tokenizer) return tokenizer->decode(ids);
    std::string text;
    for (const std::int32_t id : ids) text += concat(id, " ");
    return text;
}

}  // namespace

ShownSample show_sample(const Dataset& data, Loader& loader, std::int64_t number,
                        const std::optional<Tokenizer>& tokenizer) {
    std::vector<Piece> pieces(static_cast<std::size_t>(data.max_pieces()));
    pieces.resize(static_cast<std::size_t>(data.pieces(number, pieces)));
    const Batch& batch = loader.next(number, 1);
    ShownSample s{.number = number,
                  .tokens = {},
                  .places = data.seq_len(),
                  .runs = {},
                  .origins = {},
                  .predicted = batch.loss_tokens};
    // Where each place comes from; the last token of the pieces may be there to be predicted only.
    std::vector<std::pair<std::int64_t, std::int64_t>> from;  // file, token
    for (const Piece& piece : pieces)
        for (std::int64_t t = 0; t < piece.count && static_cast<std::int64_t>(from.size()) < s.places; ++t)
            from.emplace_back(piece.file, piece.token + t);
    for (std::size_t t = 0; t < from.size(); ++t)
        s.tokens.push_back({batch.ids[static_cast<std::int64_t>(t)], batch.labels[static_cast<std::int64_t>(t)],
                            batch.positions[static_cast<std::int64_t>(t)], batch.lo[static_cast<std::int64_t>(t)]});

    const auto count = s.tokens.size();
    const auto begins = [&](std::size_t t) { return t == count || s.tokens[t].position == 0; };
    // The first token of a document is predicted by nothing, and shown as the one behind it is.
    const auto predicted = [&](std::size_t t) {
        return begins(t) ? !begins(t + 1) && s.tokens[t].label >= 0 : s.tokens[t - 1].label >= 0;
    };
    for (std::size_t begin = 0; begin < count;) {
        std::size_t document_end = begin + 1;
        while (!begins(document_end)) ++document_end;
        const auto [file, token] = from[begin];
        const TokenFile& f = data.file(file);
        const int document = static_cast<int>(s.origins.size());
        s.origins.push_back(concat(f.path().filename().string(), ", tokens ", token, "…",
                                   token + static_cast<std::int64_t>(document_end - begin), " (document ",
                                   f.document_of(token), ")"));
        for (std::size_t end; begin < document_end; begin = end) {
            for (end = begin + 1; end < document_end && predicted(end) == predicted(begin);) ++end;
            s.runs.push_back(
                {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end), document, predicted(begin),
                 text_of(s.tokens, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end), tokenizer)});
        }
    }
    return s;
}

}  // namespace keel
