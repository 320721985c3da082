#include "data/tokenize_parts.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

std::string to_text(const TokenizeParts::State& s, std::uint64_t fingerprint) {
    Json bad = Json::array();
    for (const BadLine& b : s.bad.first) bad.push_back({b.file, b.line, b.byte, b.problem});
    return Json{{"fingerprint", fingerprint}, {"file", s.position.at.file}, {"pieces", s.position.at.pieces},
                {"border", s.position.border}, {"read", s.position.read}, {"inside", s.position.inside},
                {"bad_lines", s.bad.count}, {"first_bad_lines", bad}}
        .dump(1, ' ', false, Json::error_handler_t::replace);
}

std::optional<TokenizeParts::State> from_text(const std::string& text, std::uint64_t fingerprint) {
    try {
        const Json j = Json::parse(text);
        if (j.at("fingerprint") != fingerprint) return std::nullopt;
        TokenizeParts::State s;
        s.position = {.at = {j.at("file"), j.at("pieces")},
                      .border = j.at("border"),
                      .read = j.at("read"),
                      .inside = j.at("inside")};
        s.bad.count = j.at("bad_lines");
        for (const Json& b : j.at("first_bad_lines")) s.bad.first.push_back({b.at(0), b.at(1), b.at(2), b.at(3)});
        return s;
    } catch (const Json::exception&) {
        return std::nullopt;
    }
}

}  // namespace

TokenizeParts::TokenizeParts(const fs::path& out, std::uint64_t fingerprint, const TokenFileInfo& info, bool resume)
    : folder_(out.parent_path() / concat(".", out.filename().string(), ".parts")),
      fingerprint_(fingerprint),
      info_(info) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) fail("cannot make the folder ", folder_.string(), " for parts: ", error.message());
    lock_ = ::open((folder_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0) fail("cannot open ", (folder_ / "lock").string(), ": ", std::strerror(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
        ::close(lock_);
        fail("another `keel tokenize` is writing ", out.string(), " (", folder_.string(),
             " is locked); wait for it, or write to another file");
    }
    for (; resume && fs::exists(part(parts_, ".json")); ++parts_) {
        auto state = from_text(read_file(part(parts_, ".json")), fingerprint);
        if (!state || !fs::exists(part(parts_, ".tok"))) break;
        open_.push_back(state->position.inside);
        last_ = std::move(state);
    }
    std::vector<fs::path> others;
    for (const auto& entry : fs::directory_iterator(folder_)) {
        bool ours = entry.path().filename() == "lock";
        for (std::int64_t i = 0; i < parts_ && !ours; ++i)
            ours = entry.path() == part(i, ".tok") || entry.path() == part(i, ".json");
        if (!ours) others.push_back(entry.path());
    }
    for (const fs::path& other : others) fs::remove(other, error);
}

TokenizeParts::~TokenizeParts() {
    if (lock_ >= 0) ::close(lock_);
}

fs::path TokenizeParts::part(std::int64_t number, const char* ending) const {
    char name[32];
    std::snprintf(name, sizeof name, "part-%06lld", static_cast<long long>(number));
    return folder_ / concat(name, ending);
}

TokenWriter& TokenizeParts::writer() {
    if (!writer_) writer_ = std::make_unique<TokenFileWriter>(part(parts_, ".tok"), info_);
    return *writer_;
}

void TokenizeParts::finish_part(const State& state) {
    writer().finish();
    writer_.reset();
    write_file_atomically(part(parts_, ".json"), to_text(state, fingerprint_));
    open_.push_back(state.position.inside);
    ++parts_;
}

void TokenizeParts::copy_to(TokenWriter& out) {
    if (writer_) {
        writer_->finish();
        writer_.reset();
        open_.push_back(false);
        ++parts_;
    }
    std::vector<std::int32_t> ids(1 << 16);
    std::vector<std::uint8_t> targets(ids.size());
    for (std::int64_t p = 0; p < parts_; ++p) {
        const TokenFile file(part(p, ".tok"));
        for (std::int64_t d = 0; d < file.documents(); ++d) {
            const std::int64_t end = file.document_begin(d + 1);
            for (std::int64_t at = file.document_begin(d); at < end; at += static_cast<std::int64_t>(ids.size())) {
                const auto count =
                    static_cast<std::size_t>(std::min<std::int64_t>(end - at, static_cast<std::int64_t>(ids.size())));
                file.read(at, std::span(ids).first(count));
                for (std::size_t i = 0; i < count && info_.has_mask; ++i)
                    targets[i] = file.is_target(at + static_cast<std::int64_t>(i));
                out.append(std::span(ids).first(count), std::span(targets).first(info_.has_mask ? count : 0));
            }
            if (d + 1 < file.documents() || !open_[static_cast<std::size_t>(p)]) out.end_document();
        }
        out.count_source(file.info().source_bytes, file.info().replaced);
    }
}

void TokenizeParts::remove() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
}

}  // namespace keel
