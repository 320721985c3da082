#include "data/text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/utf8.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t longest_line = std::size_t{1} << 30;
constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";

// Picks one top-level text out of a JSON object, without building the rest.
class FieldReader : public nlohmann::json_sax<nlohmann::json> {
public:
    explicit FieldReader(const std::string& field) : field_(field) {}

    std::string text;
    bool found = false;       // as a text
    bool wrong_type = false;  // the field is there, but no text
    bool object = false;      // the line is an object
    std::string error;

    bool null() override { return other(); }
    bool boolean(bool) override { return other(); }
    bool number_integer(number_integer_t) override { return other(); }
    bool number_unsigned(number_unsigned_t) override { return other(); }
    bool number_float(number_float_t, const string_t&) override { return other(); }
    bool binary(binary_t&) override { return other(); }
    bool string(string_t& value) override {
        if (!wanted_) return true;
        wanted_ = false;
        found = true;
        text = std::move(value);
        return true;
    }
    bool start_object(std::size_t) override {
        object = object || depth_ == 0;
        return open();
    }
    bool start_array(std::size_t) override { return open(); }
    bool end_object() override { return --depth_, true; }
    bool end_array() override { return --depth_, true; }
    bool key(string_t& name) override {
        wanted_ = depth_ == 1 && object && name == field_;
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
        error = e.what();
        return false;
    }

private:
    bool other() {
        wrong_type = wrong_type || wanted_;
        wanted_ = false;
        return true;
    }
    bool open() {
        ++depth_;
        return other();
    }

    const std::string& field_;
    int depth_ = 0;
    bool wanted_ = false;
};

bool is_json_lines(const fs::path& path) {
    fs::path name = path.filename();
    if (name.extension() == ".zst" || name.extension() == ".zstd" || name.extension() == ".gz") name = name.stem();
    return name.extension() == ".jsonl" || name.extension() == ".ndjson";
}

// The last place at or before `limit` where a piece may end: after an ASCII letter or digit, before white space. 0:
// none.
std::size_t cut_before(std::string_view text, std::size_t limit) {
    for (std::size_t at = std::min(limit, text.size() - 1); at > 0; --at) {
        const auto before = static_cast<unsigned char>(text[at - 1]), after = static_cast<unsigned char>(text[at]);
        if (after < 128 && ascii_classes[after] == CharClass::space && before < 128 &&
            (ascii_classes[before] == CharClass::letter || ascii_classes[before] == CharClass::number))
            return at;
    }
    return 0;
}

}  // namespace

std::string text_of(const BadLine& bad) {
    return concat(bad.file, ", line ", bad.line, " (byte ", bad.byte, "): ", bad.problem);
}

void BadLines::add(BadLine bad) {
    ++count;
    if (first.size() < kept) first.push_back(std::move(bad));
}

struct TextReader::State {
    std::vector<fs::path> paths;
    TextOptions options;
    std::size_t path = 0;  // which file is open, or comes next
    std::unique_ptr<ByteReader> bytes;
    std::int64_t total = 0, guess = 0, done_before = 0;
    std::int64_t replaced = 0, pieces = 0;
    BadLines bad;

    std::string raw;    // read and not repaired; for JSON lines, not yet parsed
    std::string text;   // repaired, not yet handed out (plain)
    std::size_t begin = 0;      // what of `text`, or of `raw` for lines, is used up
    std::size_t searched = 0;   // how far a separator was looked for
    bool end = false;           // nothing more to read in this file
    bool open = false;          // part of the current document has been handed out
    std::int64_t line = 0, line_byte = 0;  // of the line last read
    std::int64_t dropped = 0;              // bytes of the file before raw[0], for lines

    std::string name() const { return paths[path].string(); }

    bool open_next() {
        if (path == paths.size()) return false;
        bytes = std::make_unique<ByteReader>(paths[path]);
        raw.clear(), text.clear();
        begin = searched = 0;
        end = open = false;
        line = line_byte = dropped = pieces = 0;
        while (raw.size() < byte_order_mark.size() && bytes->read(options.piece_bytes, raw)) {}
        if (raw.starts_with(byte_order_mark)) raw.erase(0, byte_order_mark.size()), dropped = byte_order_mark.size();
        return true;
    }
    void close() {
        done_before += bytes->file_bytes();
        bytes.reset();
        pieces = 0;
        ++path;
    }

    // Repairs what is read and reads more behind it; sets `end`.
    void more_text() {
        text.erase(0, begin);
        searched -= std::min(searched, begin);
        begin = 0;
        std::size_t used;
        replaced += append_repaired(raw, text, used);
        raw.erase(0, used);
        if (bytes->read(options.piece_bytes, raw)) return;
        replaced += append_repaired(raw, text);  // at the end of the file an incomplete character is a bad one
        raw.clear();
        end = true;
    }

    bool hand_out(TextPiece& piece, std::size_t count, bool ends) {
        piece.text.assign(text, begin, count);
        piece.ends_document = ends;
        piece.may_cut = true;
        begin += count;
        searched = begin;
        open = !ends;
        return true;
    }

    // A blank line at or after `from`: where the line before it ends, and where the document after it begins.
    bool find_blank_line(std::size_t from, std::size_t& document_end, std::size_t& next) const {
        for (std::size_t at = text.find('\n', from); at != std::string::npos; at = text.find('\n', at + 1)) {
            std::size_t after = at + 1;
            if (after < text.size() && text[after] == '\r') ++after;
            if (after >= text.size() || text[after] != '\n') continue;
            document_end = at + 1;
            next = after + 1;
            return true;
        }
        return false;
    }

    bool next_plain(TextPiece& piece) {
        const auto limit = static_cast<std::size_t>(options.piece_bytes);
        std::size_t want = limit;
        while (true) {
            if (options.split_at_blank_lines && !open) {
                while (begin < text.size() && (text[begin] == '\n' || text[begin] == '\r')) ++begin;
                searched = std::max(searched, begin);
            }
            std::size_t document_end, next;
            if (options.split_at_blank_lines && find_blank_line(std::max(searched, begin), document_end, next)) {
                hand_out(piece, document_end - begin, true);
                begin = searched = next;
                return true;
            }
            if (end) {
                const std::size_t rest = text.size() - begin;
                return (rest > 0 || open) && hand_out(piece, rest, true);
            }
            searched =
                std::max(begin, text.size() - std::min<std::size_t>(text.size(), 2));  // a separator may be half read
            if (options.cut_documents && text.size() - begin > want) {
                const std::size_t cut = cut_before(std::string_view(text).substr(begin), want);
                if (cut > 0) return hand_out(piece, cut, false);
                want = (text.size() - begin) * 2;  // one endless word: look again when there is twice as much
            }
            more_text();
        }
    }

    // The next line of `raw`, without its end; false at the end of the file.
    bool next_line(std::string_view& out) {
        while (true) {
            const std::size_t newline = raw.find('\n', std::max(begin, searched));
            if (newline != std::string::npos || (end && begin < raw.size())) {
                const std::size_t stop = newline == std::string::npos ? raw.size() : newline;
                out = std::string_view(raw).substr(begin, stop - begin);
                line_byte = dropped + static_cast<std::int64_t>(begin);
                begin = searched = std::min(stop + 1, raw.size());
                ++line;
                return true;
            }
            if (end) return false;
            raw.erase(0, begin);
            dropped += static_cast<std::int64_t>(begin);
            begin = 0;
            searched = raw.size();
            if (raw.size() > longest_line)
                fail(name(), ", line ", line + 1, " (byte ", dropped, "): longer than ", longest_line,
                     " bytes; is this a file of lines?");
            end = !bytes->read(options.piece_bytes, raw);
        }
    }

    void skip_or_refuse(BadLine here) {
        if (!options.skip_bad_lines) fail(text_of(here), "; --on-bad-line skip counts such lines and goes on");
        bad.add(std::move(here));
    }

    // The field of a JSON line; false if it is no document.
    bool field_of(std::string_view json, std::string& out) {
        FieldReader reader(options.field);
        const bool parsed = nlohmann::json::sax_parse(json, &reader);
        std::string problem;
        if (!parsed) problem = "not valid JSON: " + reader.error;
        else if (!reader.object) problem = "not a JSON object";
        else if (reader.wrong_type) problem = "the field \"" + options.field + "\" is not a text";
        else if (!reader.found) problem = "no field \"" + options.field + "\" (--field names another)";
        if (!problem.empty()) return skip_or_refuse({name(), line, line_byte, problem}), false;
        out = std::move(reader.text);
        return !out.empty();
    }

    bool next_of_lines(TextPiece& piece, TextFormat format) {
        for (std::string_view raw_line; next_line(raw_line);) {
            if (raw_line.ends_with('\r')) raw_line.remove_suffix(1);
            if (raw_line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
            std::string repaired;
            if (utf8_valid_prefix(raw_line) != raw_line.size()) {
                replaced += append_repaired(raw_line, repaired);
                raw_line = repaired;
            }
            if (format == TextFormat::jsonl) {
                if (!field_of(raw_line, piece.text)) continue;
            } else {
                piece.text = raw_line;
            }
            piece.ends_document = true;
            piece.may_cut = false;
            piece.line = line;
            piece.byte = line_byte;
            return true;
        }
        return false;
    }

    TextFormat format() const {
        if (options.format != TextFormat::by_name) return options.format;
        return is_json_lines(paths[path]) ? TextFormat::jsonl : TextFormat::plain;
    }
};

TextReader::TextReader(std::vector<fs::path> paths, TextOptions options) : state_(new State) {
    if (paths.empty()) fail_usage("no text files");
    if (options.piece_bytes < 1) fail("a piece of ", options.piece_bytes, " bytes");
    for (const fs::path& path : paths) {
        const ByteReader file(path);
        state_->total += file.file_bytes();
        state_->guess += file.file_bytes() * (file.compressed() ? 8 : 1);
    }
    state_->paths = std::move(paths);
    state_->options = std::move(options);
}
TextReader::~TextReader() = default;

bool TextReader::next(TextPiece& piece) {
    State& s = *state_;
    while (true) {
        if (!s.bytes && !s.open_next()) return false;
        const TextFormat format = s.format();
        if (format == TextFormat::plain ? s.next_plain(piece) : s.next_of_lines(piece, format)) return ++s.pieces, true;
        s.close();
    }
}

TextReader::Position TextReader::position() const { return {state_->path, state_->pieces}; }

void TextReader::seek(Position position) {
    State& s = *state_;
    if (position.file > s.paths.size()) fail("file ", position.file, " of ", s.paths.size(), " to go on with");
    s.bytes.reset();
    s.done_before = 0;
    for (s.path = 0; s.path < position.file; ++s.path) s.done_before += ByteReader(s.paths[s.path]).file_bytes();
    s.pieces = 0;
    for (TextPiece ignored; s.pieces < position.pieces || s.path < position.file;)
        if (!next(ignored) || s.path != position.file)
            fail(s.paths[position.file].string(), " has fewer than the ", position.pieces,
                 " pieces that were read from it before; was it changed?");
    s.replaced = 0;
    s.bad = {};
}

void TextReader::skip_bad_line(BadLine bad) { state_->skip_or_refuse(std::move(bad)); }

std::int64_t TextReader::replaced() const { return state_->replaced; }
const BadLines& TextReader::bad_lines() const { return state_->bad; }
std::int64_t TextReader::file_bytes() const { return state_->total; }
std::int64_t TextReader::text_bytes_guess() const { return state_->guess; }
std::int64_t TextReader::file_bytes_read() const {
    return state_->done_before + (state_->bytes ? state_->bytes->file_bytes_read() : 0);
}

}  // namespace keel
