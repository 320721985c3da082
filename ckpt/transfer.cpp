#include "ckpt/transfer.h"

#include <algorithm>
#include <vector>

#include "ckpt/draft.h"
#include "ckpt/manifest.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/stream.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t block_bytes = std::int64_t{4} << 20;
constexpr int channel = Group::max_channels - 1;  // not one that a pipeline uses

View<std::byte> view(std::span<std::byte> bytes) { return {bytes.data(), {static_cast<std::int64_t>(bytes.size())}}; }

std::int64_t total_bytes(const std::vector<CheckpointFile>& files) {
    std::int64_t bytes = 0;
    for (const CheckpointFile& f : files) bytes += f.size_bytes;
    return bytes;
}

// The files of a checkpoint as one row of bytes, read in order. The first failure is kept, and nothing is read after
// it.
class Reader {
public:
    explicit Reader(const CheckpointInfo& info) : info_(info) {}
    void read(std::span<std::byte> out) {
        try {
            while (problem.empty() && !out.empty()) {
                if (!file_) file_.emplace(info_.path / info_.files.at(next_).name);
                const auto piece = out.first(static_cast<std::size_t>(
                    std::min(static_cast<std::int64_t>(out.size()), info_.files[next_].size_bytes - at_)));
                file_->read_at(at_, piece);
                at_ += static_cast<std::int64_t>(piece.size());
                out = out.subspan(piece.size());
                if (at_ < info_.files[next_].size_bytes) continue;
                file_.reset();
                at_ = 0;
                ++next_;
            }
        } catch (const std::exception& e) {
            problem = e.what();
        }
    }
    std::string problem;

private:
    const CheckpointInfo& info_;
    std::optional<InputFile> file_;
    std::size_t next_ = 0;
    std::int64_t at_ = 0;
};

// The same row of bytes cut into files again.
class Writer {
public:
    Writer(const fs::path& root, const CheckpointInfo& info) : info_(info) {
        attempt([&] { draft_.emplace(root, info.step); });
    }
    void write(std::span<const std::byte> bytes) {
        attempt([&] {
            while (!bytes.empty()) {
                const CheckpointFile& listed = info_.files.at(next_);
                if (!file_) file_.emplace(draft_->path() / listed.name);
                const auto piece = bytes.first(static_cast<std::size_t>(
                    std::min(static_cast<std::int64_t>(bytes.size()), listed.size_bytes - file_->size_bytes())));
                file_->write(piece);
                hash_.add(piece);
                bytes = bytes.subspan(piece.size());
                if (file_->size_bytes() < listed.size_bytes) continue;
                file_->close();
                file_.reset();
                if (const std::string found = hash_.hex(); found != listed.hash)
                    fail(listed.name, " was damaged on its way: XXH3-128 should be ", listed.hash, ", arrived ", found);
                hash_ = FileHash();
                draft_->add(listed);
                ++next_;
            }
        });
    }
    void publish() {
        attempt([&] { draft_->publish(); });
        draft_.reset();
    }
    std::string problem;

private:
    template <class Work>
    void attempt(Work work) {
        if (!problem.empty()) return;
        try {
            work();
        } catch (const std::exception& e) {
            problem = e.what();
        }
    }
    const CheckpointInfo& info_;
    std::optional<Draft> draft_;
    std::optional<OutputFile> file_;
    FileHash hash_;
    std::size_t next_ = 0;
};

}  // namespace

std::string transfer(Group& group, const std::optional<CheckpointInfo>& mine, int to, const fs::path& root, int from) {
    Stream stream(1, 0, 0);
    // Manifests first, each after its length.
    std::string out_manifest = to >= 0 ? manifest_text(mine->step, mine->files) : std::string(), in_manifest;
    std::int64_t out_size = static_cast<std::int64_t>(out_manifest.size()), in_size = 0;
    Ticket size_sent, manifest_sent;
    if (to >= 0) {
        size_sent = group.send(stream, View<std::int64_t>(&out_size, {1}), to, channel);
        manifest_sent = group.send(stream, view(std::as_writable_bytes(std::span(out_manifest))), to, channel);
    }
    if (from >= 0) {
        group.receive(stream, View<std::int64_t>(&in_size, {1}), from, channel);
        in_manifest.resize(static_cast<std::size_t>(in_size));
        group.receive(stream, view(std::as_writable_bytes(std::span(in_manifest))), from, channel);
    }
    group.wait(stream, size_sent);
    group.wait(stream, manifest_sent);

    // Then the bytes, block by block, in both directions.
    const CheckpointInfo coming = from >= 0 ? parse_manifest(in_manifest, root) : CheckpointInfo{};
    std::optional<Reader> reader;
    std::optional<Writer> writer;
    if (to >= 0) reader.emplace(*mine);
    if (from >= 0) writer.emplace(root, coming);
    const std::int64_t out_bytes = to >= 0 ? total_bytes(mine->files) : 0, in_bytes = total_bytes(coming.files);
    std::vector<std::byte> out(static_cast<std::size_t>(std::min(block_bytes, out_bytes)));
    std::vector<std::byte> in(static_cast<std::size_t>(std::min(block_bytes, in_bytes)));
    for (std::int64_t at = 0; at < std::max(out_bytes, in_bytes); at += block_bytes) {
        const auto part = [&](std::vector<std::byte>& block, std::int64_t bytes) {
            return std::span(block).first(
                static_cast<std::size_t>(std::clamp<std::int64_t>(bytes - at, 0, block_bytes)));
        };
        Ticket sent;
        if (const auto bytes = part(out, out_bytes); !bytes.empty()) {
            reader->read(bytes);
            sent = group.send(stream, view(bytes), to, channel);
        }
        if (const auto bytes = part(in, in_bytes); !bytes.empty()) {
            group.receive(stream, view(bytes), from, channel);
            writer->write(bytes);
        }
        group.wait(stream, sent);
    }
    if (writer) writer->publish();
    if (reader && !reader->problem.empty()) return reader->problem;
    return writer ? writer->problem : std::string();
}

}  // namespace keel
