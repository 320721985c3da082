// The writing half of ckpt/safetensors.h.
#include <algorithm>
#include <set>

#include "ckpt/safetensors.h"
#include "ckpt/strict_json.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::int64_t block_elements = std::int64_t{1} << 20;

std::string header_text(const std::vector<TensorSource>& tensors, const std::map<std::string, std::string>& metadata) {
    std::set<std::string_view> names{"__metadata__"};
    std::string text = "{\"__metadata__\":" + Json(metadata).dump();
    std::int64_t begin = 0;
    for (const TensorSource& t : tensors) {
        if (!names.insert(t.name).second)
            fail("safetensors: cannot write a tensor named \"", t.name, "\": the name is taken");
        const std::int64_t end = begin + t.size_bytes();
        text += concat(",", Json(t.name).dump(), ":{\"dtype\":\"", name(t.dtype), "\",\"shape\":", Json(t.shape).dump(),
                       ",\"data_offsets\":[", begin, ",", end, "]}");
        begin = end;
    }
    text += '}';
    text.append((8 - text.size() % 8) % 8, ' ');
    return text;
}

std::string shard_name(std::size_t i, std::size_t count) {
    const auto digits = [](std::size_t n) {
        std::string text = std::to_string(n);
        return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
    };
    return "model-" + digits(i + 1) + "-of-" + digits(count) + ".safetensors";
}

}  // namespace

std::function<void(const ByteSink&)> converted_bytes(const std::byte* data, Dtype from, Dtype to, std::int64_t count) {
    return [=](const ByteSink& out) {
        if (from == to) return out({data, static_cast<std::size_t>(count * size_bytes(from))});
        std::vector<std::byte> block(static_cast<std::size_t>(std::min(block_elements, count) * size_bytes(to)));
        for (std::int64_t done = 0; done < count;) {
            const std::int64_t now = std::min(block_elements, count - done);
            convert(stored(from), data + done * size_bytes(from), to, block.data(), now);
            out(std::span(block).first(static_cast<std::size_t>(now * size_bytes(to))));
            done += now;
        }
    };
}

void write_safetensors(std::vector<TensorSource> tensors, std::map<std::string, std::string> metadata,
                       const ByteSink& out) {
    std::sort(tensors.begin(), tensors.end(), [](const TensorSource& a, const TensorSource& b) {
        return std::pair(-size_bits(a.dtype), std::string_view(a.name)) <
               std::pair(-size_bits(b.dtype), std::string_view(b.name));
    });
    metadata.emplace("format", "pt");
    const std::string header = header_text(tensors, metadata);
    const auto n = static_cast<std::uint64_t>(header.size());
    out(std::as_bytes(std::span(&n, 1)));
    out(std::as_bytes(std::span(header)));
    for (const TensorSource& t : tensors) {
        std::int64_t written = 0;
        t.produce([&](std::span<const std::byte> bytes) {
            written += static_cast<std::int64_t>(bytes.size());
            out(bytes);
        });
        if (written != t.size_bytes())
            fail("safetensors: tensor \"", t.name, "\" gave ", written, " bytes, but ", shape_text(t.shape), " of ",
                 name(t.dtype), " takes ", t.size_bytes());
    }
}

void write_safetensors_file(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                            std::map<std::string, std::string> metadata) {
    AtomicFile file(path);
    write_safetensors(std::move(tensors), std::move(metadata), [&](auto bytes) { file.write(bytes); });
    file.commit();
}

void write_safetensors_set(const std::filesystem::path& folder, std::vector<TensorSource> tensors,
                           std::int64_t shard_limit_bytes) {
    std::vector<std::vector<TensorSource>> shards(1);
    std::int64_t total = 0, filled = 0;
    for (TensorSource& t : tensors) {
        const std::int64_t size = t.size_bytes();
        if (filled != 0 && filled + size > shard_limit_bytes) {
            shards.emplace_back();
            filled = 0;
        }
        total += size;
        filled += size;
        shards.back().push_back(std::move(t));
    }
    if (shards.size() == 1) return write_safetensors_file(folder / "model.safetensors", std::move(shards[0]));
    if (shards.size() > 99999)
        fail("a shard limit of ", shard_limit_bytes, " bytes makes ", shards.size(), " shards; raise it");

    Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const std::string file = shard_name(i, shards.size());
        for (const TensorSource& t : shards[i]) index["weight_map"][t.name] = file;
        write_safetensors_file(folder / file, std::move(shards[i]));
    }
    write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace keel
