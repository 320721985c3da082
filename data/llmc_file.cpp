#include "data/llmc_file.h"

#include <array>
#include <cstring>

#include "data/token_layout.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t header_bytes = 1024;
constexpr std::int32_t gpt2_magic = 20240520, llama3_magic = 20240801, eval_magic = 20240522;

std::int32_t word(const MappedFile& file, std::int64_t i) {
    return number_at<std::int32_t>(file.bytes().data() + 4 * i);
}

bool begins_with(std::string_view bytes, std::int32_t magic) {
    return bytes.size() >= 4 && number_at<std::int32_t>(reinterpret_cast<const std::byte*>(bytes.data())) == magic;
}

void check_size(const MappedFile& file, std::int64_t tokens, std::int64_t width, std::int64_t mask_bytes) {
    const std::int64_t size = file.size_bytes(), want = header_bytes + tokens * width + mask_bytes;
    if (tokens < 0) fail(file.path().string(), ": its header counts ", tokens, " tokens");
    if (size != want)
        fail(file.path().string(), " has ", size, " bytes, but the ", tokens, " tokens of its header make ", want, ": ",
             by_how_much(size, want), size < want ? "; was it cut while being copied?" : "");
}

void check_declared(const MappedFile& file, const TokenLayout& l) {
    if (l.info.vocab_size > 65536 && l.info.token_bytes == 2)
        fail(file.path().string(), " holds tokens of 2 bytes, which cannot be of a vocabulary of ", l.info.vocab_size,
             "; what wrote it has cut ids past 65535, or the vocabulary is another");
}

}  // namespace

bool is_llmc(std::string_view bytes) {
    return begins_with(bytes, gpt2_magic) || begins_with(bytes, llama3_magic) || is_llmc_eval(bytes);
}
bool is_llmc_eval(std::string_view bytes) { return begins_with(bytes, eval_magic); }

TokenLayout lay_out_llmc(MappedFile file, const TokenDeclared& declared) {
    TokenLayout l(std::move(file));
    const std::string name = l.file.path().string();
    if (l.file.size_bytes() < header_bytes)
        fail(name, " is cut: ", l.file.size_bytes(), " bytes, but the header of an llm.c file alone has ",
             header_bytes);
    const std::int32_t magic = word(l.file, 0), version = word(l.file, 1);
    if (magic == eval_magic)
        fail(name, " is an llm.c evaluation file: ", word(l.file, 2),
             " multiple-choice examples, and no tokens to train on");
    const bool gpt2 = magic == gpt2_magic;
    if (version != (gpt2 ? 1 : 7))
        fail(name, " is an llm.c file (", magic, ") of version ", version, "; version ", gpt2 ? 1 : 7, " is read");
    l.type = gpt2 ? TokenType::u16 : TokenType::u32;
    l.tokens_at = header_bytes;
    l.info.format = TokenFormat::llmc;
    l.info.token_bytes = gpt2 ? 2 : 4;
    l.info.tokens = word(l.file, 2);
    check_size(l.file, l.info.tokens, l.info.token_bytes, 0);
    const bool theirs = declared.vocab_size == 0;
    l.info.vocab_size = theirs ? (gpt2 ? 50257 : 128256) : declared.vocab_size;
    l.separator = l.info.eos_id = theirs && declared.eos_id < 0 ? (gpt2 ? 50256 : 128000) : declared.eos_id;
    check_declared(l.file, l);
    return l;
}

TokenLayout lay_out_llmq(MappedFile file, const TokenDeclared& declared) {
    TokenLayout l(std::move(file));
    const std::string name = l.file.path().string();
    if (l.file.size_bytes() < header_bytes)
        fail(name, " is cut: ", l.file.size_bytes(), " bytes, but the header of an llm.q file alone has ",
             header_bytes);
    const std::int32_t version = word(l.file, 2), width = word(l.file, 3);
    if (version != 1 && version != 2)
        fail(name, " is an llm.q file of version ", version, "; versions 1 and 2 are read");
    if (width != 4) fail(name, ": ", width, " bytes per token; llm.q files have 4");
    l.type = TokenType::u32;
    l.tokens_at = header_bytes;
    l.info.format = TokenFormat::llmq;
    l.info.token_bytes = width;
    l.info.tokens = word(l.file, 4);
    l.info.vocab_size = version == 2 ? word(l.file, 5) : declared.vocab_size;
    if (version == 2 && l.info.vocab_size < 1) fail(name, ": a vocabulary of ", l.info.vocab_size, " is impossible");
    const std::int32_t mask = version == 2 ? word(l.file, 6) : 0;
    if (mask != 0 && mask != 1) fail(name, ": the flag of the mask is ", mask, "; 0 and 1 are possible");
    l.info.has_mask = mask == 1;
    check_size(l.file, l.info.tokens, 4, l.info.has_mask ? (l.info.tokens + 7) / 8 : 0);
    if (l.info.has_mask) l.mask = l.file.bytes().data() + header_bytes + l.info.tokens * 4;
    l.separator = l.info.eos_id = declared.eos_id;
    return l;
}

TokenLayout lay_out_raw(MappedFile file, const TokenDeclared& declared) {
    TokenLayout l(std::move(file));
    const std::string name = l.file.path().string();
    if (declared.dtype != "uint16" && declared.dtype != "uint32")
        fail_usage("--data.raw_dtype is \"", declared.dtype, "\"; uint16 and uint32 are read");
    if (declared.vocab_size < 1)
        fail_usage(
            name,
            " is bare numbers and does not say of what vocabulary; name its tokenizer with --data.tokenizer, or give"
            " --data.token_vocab, for example 50257 for GPT-2");
    l.info.format = TokenFormat::raw;
    l.type = declared.dtype == "uint16" ? TokenType::u16 : TokenType::u32;
    l.info.token_bytes = bytes_of(l.type);
    l.info.tokens = l.file.size_bytes() / l.info.token_bytes;
    if (l.file.size_bytes() % l.info.token_bytes != 0)
        fail(name, " has ", l.file.size_bytes(), " bytes, which is no number of tokens of ", l.info.token_bytes,
             " bytes; is it ", declared.dtype, ", and whole?");
    l.info.vocab_size = declared.vocab_size;
    l.separator = l.info.eos_id = declared.eos_id;
    check_declared(l.file, l);
    return l;
}

LlmcEval read_llmc_eval(const fs::path& path) {
    const MappedFile file(path);
    const std::string name = path.string();
    if (file.size_bytes() < header_bytes || word(file, 0) != eval_magic || word(file, 1) != 1)
        fail(name, " is no llm.c evaluation file of version 1");
    LlmcEval eval{.examples = word(file, 2), .longest_bytes = word(file, 3)};
    std::int64_t at = header_bytes;
    std::int64_t end = file.size_bytes();
    const auto next = [&](const char* what) {
        if (at + 2 > end) fail(name, ", example ", eval.examples, ": ends at byte ", at, " before its ", what);
        return std::int64_t{number_at<std::uint16_t>(file.bytes().data() + std::exchange(at, at + 2))};
    };
    const std::int64_t examples = std::exchange(eval.examples, 0);
    for (; eval.examples < examples; ++eval.examples) {
        const std::int64_t begin = at;
        end = file.size_bytes();
        if (next("mark") != 65535)
            fail(name, ", example ", eval.examples, ": does not begin with 65535 at byte ", begin);
        const std::int64_t bytes = next("length");
        if (begin + bytes > end)
            fail(name, ", example ", eval.examples, ": ", bytes, " bytes from ", begin, " on pass the end, ", end);
        end = begin + bytes;
        next("index"), next("label");
        const std::int64_t completions = next("completions");
        for (std::int64_t part = 0; part <= completions; ++part) {  // the context, then each completion
            const std::int64_t tokens = next("tokens");
            if (at + 2 * tokens > end)
                fail(name, ", example ", eval.examples, ": ", tokens, " tokens at byte ", at, " pass its end, ", end);
            at += 2 * tokens, eval.tokens += tokens;
        }
        eval.completions += completions;
        if (at != end) fail(name, ", example ", eval.examples, ": ends at byte ", at, ", but its length says ", end);
    }
    if (at != file.size_bytes()) fail(name, ": ", file.size_bytes() - at, " bytes behind its last example");
    return eval;
}

LlmcWriter::LlmcWriter(const fs::path& path, const TokenFileInfo& info, std::int64_t tokens_per_file)
    : TokenWriter(path.string(), info), path_(path), tokens_per_file_(tokens_per_file) {
    info_.format = TokenFormat::llmc;
    if (const fs::path second = numbered(1); fs::exists(second))
        fail_usage(second.string(), " is there from an earlier, longer run, and a pattern for ", path.string(),
                   " would read it too; remove it first, or write to another name");
    open_next();
}

fs::path LlmcWriter::numbered(std::size_t number) const {
    char text[16];
    std::snprintf(text, sizeof text, "-%05zu", number);
    return path_.parent_path() / concat(path_.stem().string(), text, path_.extension().string());
}

void LlmcWriter::open_next() {
    files_.push_back(std::make_unique<AtomicFile>(files_.empty() ? path_ : numbered(files_.size())));
    const std::array<std::int32_t, 256> blank{};
    files_.back()->write(std::as_bytes(std::span(blank)));
    here_ = 0;
}

void LlmcWriter::end_file() {
    const bool small = info_.token_bytes == 2;
    const std::array<std::int32_t, 3> start{small ? gpt2_magic : llama3_magic, small ? 1 : 7,
                                            static_cast<std::int32_t>(here_)};
    files_.back()->overwrite(0, std::as_bytes(std::span(start)));
}

void LlmcWriter::put(std::span<const std::int32_t> ids) {
    const auto width = static_cast<std::size_t>(info_.token_bytes);
    while (!ids.empty()) {
        if (here_ == tokens_per_file_) end_file(), open_next();
        const auto now = ids.first(std::min(ids.size(), static_cast<std::size_t>(tokens_per_file_ - here_)));
        block_.resize(now.size() * width);
        for (std::size_t i = 0; i < now.size(); ++i)
            std::memcpy(block_.data() + i * width, &now[i], width);  // low bytes first
        files_.back()->write(block_);
        here_ += static_cast<std::int64_t>(now.size());
        ids = ids.subspan(now.size());
    }
}

std::vector<AtomicFile*> LlmcWriter::close() {
    end_document();
    end_file();
    std::vector<AtomicFile*> files;
    for (const auto& file : files_) files.push_back(file.get());
    return files;
}

}  // namespace keel
