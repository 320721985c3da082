#include "data/tokenize.h"

#include <xxhash.h>

#include <algorithm>
#include <sstream>

#include "data/tokenize_parts.h"
#include "data/tokenizer_model.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/stream.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

// A piece on its way from text to tokens.
struct Work {
    TextPiece piece;
    bool in_tail = false;
    std::size_t file = 0;
    std::int64_t replaced = 0;  // since the piece before
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> targets;
    std::string problem;        // of a conversation
};

// Which text goes where in a token file: what stands before and behind a document.
class Documents {
public:
    Documents(const Tokenizer& tokenizer, const TokenizeOptions& options) : tokenizer_(tokenizer), o_(options) {}

    void add(TokenWriter& to, const Work& work) {
        to.count_source(o_.chat ? 0 : static_cast<std::int64_t>(work.piece.text.size()), work.replaced);
        if (!work.piece.text.empty() && !inside_) begin(to, work.ids);
        to.append(work.ids, work.targets);
        if (!work.piece.ends_document || !inside_) return;
        if (o_.append_eos && !o_.chat) {
            const std::int32_t eos = *tokenizer_.eos_id();
            to.append(std::span(&eos, 1));
        }
        to.end_document();
        inside_ = false;
    }
    void go_on(bool inside) { inside_ = inside; }

private:
    void begin(TokenWriter& to, const std::vector<std::int32_t>& ids) {
        inside_ = true;
        if (!o_.prepend_bos) return;
        const std::int32_t bos = *tokenizer_.bos_id();
        if (!ids.empty() && ids.front() == bos)
            fail("document ", to.info().documents,
                 " already begins with the text of the BOS token; turn --prepend-bos off, or read"
                 " special text as plain");
        to.append(std::span(&bos, 1));
    }

    const Tokenizer& tokenizer_;
    const TokenizeOptions& o_;
    bool inside_ = false;
};

// Encodes on all threads. Which piece goes to which thread decides nothing but time.
class Encoders {
public:
    Encoders(const Tokenizer& tokenizer, const TokenizeOptions& o) : stream_(o.threads, 0) {
        for (int i = 0; i < stream_.threads(); ++i) {
            if (o.chat) chat_.emplace_back(*o.chat, tokenizer);
            else plain_.emplace_back(tokenizer, o.special);
        }
    }
    int threads() const { return stream_.threads(); }

    void encode(std::span<Work> round) {
        std::vector<std::size_t> tiles{0};  // first piece of each; a tile has about 64 KiB, short documents share one
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < round.size(); ++i)
            if ((bytes += round[i].piece.text.size()) >= 1 << 16) tiles.push_back(i + 1), bytes = 0;
        if (tiles.back() != round.size()) tiles.push_back(round.size());
        stream_.parallel(static_cast<std::int64_t>(tiles.size()) - 1, [&](std::int64_t tile, int thread) {
            for (std::size_t i = tiles[static_cast<std::size_t>(tile)]; i < tiles[static_cast<std::size_t>(tile) + 1];
                 ++i)
                encode(round[i], static_cast<std::size_t>(thread));
        });
    }

private:
    void encode(Work& work, std::size_t thread) {
        if (!chat_.empty()) {
            work.problem = chat_[thread].encode(work.piece.text, work.ids, work.targets);
            return;
        }
        work.ids.clear();
        plain_[thread].encode(work.piece.text, work.ids);
    }

    Stream stream_;
    std::vector<Encoder> plain_;
    std::vector<ChatEncoder> chat_;
};

TokenFileInfo info_of(const Tokenizer& tokenizer, const TokenizeOptions& o) {
    TokenFileInfo info;
    info.vocab_size = tokenizer.vocab_size();
    info.tokenizer_hash = tokenizer.hash();
    info.eos_id = tokenizer.eos_id().value_or(-1);
    info.bos_id = tokenizer.bos_id().value_or(-1);
    info.ends_with_eos = o.chat ? o.chat->eos : o.append_eos;
    info.begins_with_bos = !o.chat && o.prepend_bos;
    info.has_mask = o.chat.has_value();
    return info;
}

// Everything that decides the ids of the parts of a text.
std::uint64_t fingerprint(const Tokenizer& tokenizer, const TokenizeOptions& o, const TextOptions& text) {
    std::ostringstream all;
    all << KEEL_VERSION << '\n'
        << tokenizer.hash() << ' ' << static_cast<int>(text.format) << ' ' << text.field << ' '
        << text.split_at_blank_lines << text.skip_bad_lines << text.cut_documents << ' ' << text.piece_bytes << ' '
        << o.append_eos << o.prepend_bos << static_cast<int>(o.special) << ' ' << o.tail.bytes << ' ' << o.tail.percent
        << ' ' << o.part_bytes << '\n';
    if (o.chat) {
        all << o.chat->begin << '\n' << o.chat->end << '\n' << o.chat->eos << '\n';
        for (const ChatFormat::Role& r : o.chat->roles)
            all << r.name << '\n' << r.before << '\n' << r.after << '\n' << r.between << '\n' << r.learn << '\n';
    }
    for (const fs::path& input : o.inputs)
        all << fs::absolute(input).string() << '\n'
            << fs::file_size(input) << ' ' << fs::last_write_time(input).time_since_epoch().count() << '\n';
    const std::string text_of_all = all.str();
    return XXH3_64bits(text_of_all.data(), text_of_all.size());
}

void check(const Tokenizer& tokenizer, const TokenizeOptions& o) {
    if (o.append_eos && !o.chat && !tokenizer.eos_id())
        fail_usage("--append-eos is on, but ", tokenizer.name(),
                   " names no end-of-text token; turn it off, or name one as"
                   " eos_token in tokenizer_config.json");
    if (o.prepend_bos && o.chat)
        fail_usage("--prepend-bos: a chat format says itself how a document begins; leave it out");
    if (o.prepend_bos && !tokenizer.bos_id())
        fail_usage("--prepend-bos is on, but ", tokenizer.name(), " names no beginning-of-text token");
    if (!o.tail.none() && o.tail_out.empty()) fail_usage("a tail is held out, but no file is named for it");
}

}  // namespace

TokenizeReport tokenize(const Tokenizer& tokenizer, const TokenizeOptions& o) {
    check(tokenizer, o);
    TextOptions text = o.text;
    text.cut_documents = tokenizer.model().cuttable;
    if (o.chat) text.format = TextFormat::json_whole;
    const TokenFileInfo info = info_of(tokenizer, o);
    const auto body = make_token_writer(o.to, o.out, info);  // before reading: an unwritable folder is known at once
    const auto tail = o.tail.none() ? nullptr : make_token_writer(o.to, o.tail_out, info);
    std::optional<AtomicFile> tail_text;
    if (!o.tail_text.empty()) tail_text.emplace(o.tail_text);
    if (o.duplicates) body->look_for_duplicates();
    Encoders encoders(tokenizer, o);

    std::optional<TokenizeParts> parts;
    if (TextReader(o.inputs, text).text_bytes_guess() > o.part_bytes)
        parts.emplace(o.out, fingerprint(tokenizer, o, text), info, o.resume);
    const std::optional<TokenizeParts::State> before = parts ? parts->last() : std::nullopt;
    PartedReader reader(o.inputs, text, o.tail, o.progress, before ? std::optional(before->position) : std::nullopt);
    Documents body_documents(tokenizer, o), tail_documents(tokenizer, o);
    if (before) body_documents.go_on(before->position.inside);
    TokenizeReport report;
    if (before) report.bad_lines = before->bad, report.resumed_bytes = before->position.read;
    const auto bad_lines = [&] {
        BadLines all = report.bad_lines;
        for (const BadLine& bad : reader.reader().bad_lines().first) all.add(bad);
        all.count = report.bad_lines.count + reader.bad_lines();
        return all;
    };

    std::vector<Work> round;
    const std::int64_t round_bytes =
        std::min(std::max<std::int64_t>(text.piece_bytes, 1 << 16) * encoders.threads() * 2, o.part_bytes);
    std::int64_t replaced = 0;
    for (bool more = true, in_tail = false; more;) {
        std::size_t count = 0;
        for (std::int64_t bytes = 0; bytes < round_bytes; ++count) {
            if (count == round.size()) round.emplace_back();
            Work& work = round[count];
            if (!(more = reader.next(work.piece, work.in_tail))) break;
            work.file = reader.reader().position().file;
            work.replaced = reader.replaced() - replaced;
            replaced = reader.replaced();
            bytes += static_cast<std::int64_t>(work.piece.text.size()) + 64;  // short documents take memory too
        }
        encoders.encode(std::span(round).first(count));
        for (const Work& work : std::span(round).first(count)) {
            if (!work.problem.empty()) {
                reader.reader().skip_bad_line(
                    {o.inputs[work.file].string(), work.piece.line, work.piece.byte, work.problem});
                continue;
            }
            in_tail = work.in_tail;
            if (in_tail) tail_documents.add(*tail, work);
            else body_documents.add(parts ? parts->writer() : *body, work);
            if (in_tail && tail_text) tail_text->write(work.piece.text);
        }
        if (parts && more && !in_tail &&
            parts->writer().info().source_bytes + parts->writer().info().tokens >= o.part_bytes)
            parts->finish_part({reader.position(), bad_lines()});
    }
    if (parts) parts->copy_to(*body);
    if (body->info().tokens == 0)
        fail("there is no text in ", o.inputs.front().string(), o.inputs.size() > 1 ? " and the other inputs" : "");
    if (tail && tail->info().tokens == 0)
        fail("the held-out tail is empty: no line break and no document begins in it; hold out more");
    report.bad_lines = bad_lines();

    std::vector<AtomicFile*> files;
    if (tail) files = tail->close();
    if (tail_text) files.push_back(&*tail_text);
    const std::vector<AtomicFile*> body_files = body->close();
    files.insert(files.end(), body_files.begin(), body_files.end());
    commit_together(files);
    report.body = body->info();
    if (o.duplicates) report.duplicates = body->duplicates()->found();
    if (tail) report.tail = tail->info();
    if (parts) parts->remove();
    return report;
}

}  // namespace keel
