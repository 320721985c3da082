#include "ckpt/check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t block_bytes = std::int64_t{4} << 20;
constexpr std::size_t names_told = 8;

// All bits of the exponent set: infinity or NaN.
template <class T>
std::int64_t count_exponents(const std::byte* x, std::int64_t count, T exponent) {
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        T bits;
        std::memcpy(&bits, x + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
        found += (bits & exponent) == exponent;
    }
    return found;
}

// Reads one file front to back; adds what it finds to `check` and, of values that are not finite, to `bad` by tensor.
void check_file(const fs::path& folder, const CheckpointFile& listed, const CheckpointTensors::File* tensors,
                CheckpointCheck& check, std::map<std::string, std::int64_t>& bad) {
    const InputFile in(folder / listed.name);
    FileHash hash;
    std::vector<std::byte> block(static_cast<std::size_t>(std::min(block_bytes, listed.size_bytes)));
    const auto pass = [&](std::int64_t begin, std::int64_t end, auto&& look) {
        for (std::int64_t at = begin; at < end;) {
            const auto bytes = std::span(block).first(static_cast<std::size_t>(std::min(block_bytes, end - at)));
            in.read_at(at, bytes);
            hash.add(bytes);
            look(bytes);
            at += static_cast<std::int64_t>(bytes.size());
        }
    };
    const auto nothing = [](std::span<const std::byte>) {};
    if (!tensors) {
        pass(0, listed.size_bytes, nothing);
    } else {
        const SafetensorsHeader& header = tensors->header;
        pass(0, header.data_offset, nothing);
        for (std::size_t i = 0; i < header.tensors.size(); ++i) {
            const StoredTensor& t = header.tensors[i];
            const std::int64_t element = std::max<std::int64_t>(1, size_bits(t.dtype) / 8);
            check.elements += t.elements();
            pass(header.data_offset + t.begin, header.data_offset + t.end, [&](std::span<const std::byte> bytes) {
                const std::int64_t found =
                    count_not_finite(t.dtype, bytes.data(), static_cast<std::int64_t>(bytes.size()) / element);
                if (found > 0) bad[tensors->tensor_of[i]] += found;
                check.not_finite += found;
            });
        }
    }
    if (const std::string found = hash.hex(); found != listed.hash)
        check.problems.push_back(
            concat(listed.name, " is damaged: XXH3-128 should be ", listed.hash, ", found ", found));
}

}  // namespace

std::int64_t count_not_finite(StoredDtype dtype, const std::byte* x, std::int64_t count) {
    switch (dtype) {
        case StoredDtype::F32:
            return count_exponents<std::uint32_t>(x, count, 0x7f800000u);
        case StoredDtype::BF16:
            return count_exponents<std::uint16_t>(x, count, 0x7f80u);
        case StoredDtype::F16:
            return count_exponents<std::uint16_t>(x, count, 0x7c00u);
        case StoredDtype::F64:
            return count_exponents<std::uint64_t>(x, count, 0x7ff0000000000000u);
        case StoredDtype::F8_E5M2:
            return count_exponents<std::uint8_t>(x, count, 0x7cu);
        case StoredDtype::F8_E4M3:
            return count_exponents<std::uint8_t>(x, count, 0x7fu);  // NaN; it has no infinity
        default:
            return 0;
    }
}

CheckpointCheck check_checkpoint(const fs::path& path, CheckpointTensors::Coverage coverage) {
    CheckpointCheck check;
    const auto attempt = [&](auto work) {
        try {
            work();
        } catch (const std::exception& e) {
            check.problems.push_back(e.what());
        }
    };
    std::vector<CheckpointFile> files;
    attempt([&] {
        if (!is_checkpoint(path))
            fail("it has no ", manifest_name, ", which is written last: saving it was never finished");
        const CheckpointInfo info = parse_manifest(read_file(path / manifest_name), path);
        check.step = info.step;
        files = info.files;
    });
    if (files.empty()) return check;

    std::set<std::string> sound;  // present and as long as listed
    std::set<std::string> listed{manifest_name};
    bool state_listed = false;
    for (const CheckpointFile& file : files)
        attempt([&] {
            listed.insert(file.name);
            state_listed |= file.name == state_name;
            check.files += 1;
            check.bytes += file.size_bytes;
            const InputFile in(path / file.name);
            if (in.size_bytes() != file.size_bytes)
                fail(file.name, " is damaged: it should have ", file.size_bytes, " bytes, found ", in.size_bytes());
            sound.insert(file.name);
        });
    if (!state_listed) check.problems.push_back(concat("the manifest lists no ", state_name));
    std::error_code error;
    for (fs::directory_iterator entry(path, error), end; entry != end; entry.increment(error))
        if (const std::string name = entry->path().filename().string(); !listed.contains(name))
            check.problems.push_back(
                name + " is not listed in the manifest: it is of another checkpoint, or was put there by hand");

    std::optional<CheckpointTensors> stored;
    const bool all_sound = sound.size() == files.size();
    attempt([&] {  // a file that is missing is told above, and its tensors need not be told as well
        if (all_sound) stored.emplace(path, files, true, true, coverage);
    });
    std::map<std::string, std::int64_t> bad;
    for (const CheckpointFile& file : files) {
        if (!sound.contains(file.name)) continue;
        const CheckpointTensors::File* tensors = nullptr;
        if (stored)
            for (const auto& f : stored->files())
                if (f.listed.name == file.name) tensors = &f;
        const std::size_t before = check.problems.size();
        attempt([&] { check_file(path, file, tensors, check, bad); });
        if (file.name == state_name && check.problems.size() == before)
            attempt([&] { check.state = read_file(path / state_name); });
    }
    if (stored)
        for (const auto& [name, t] : stored->tensors()) check.tensors.push_back({name, t.dtype, t.shape});
    if (!bad.empty()) {
        std::string text = concat(check.not_finite, " values are not finite: ");
        std::size_t told = 0;
        for (const auto& [tensor, count] : bad)
            if (told++ < names_told) text += concat(told > 1 ? ", " : "", count, " of ", tensor);
        if (told > names_told) text += concat(" and more of ", told - names_told, " other tensors");
        check.problems.push_back(text);
    }
    return check;
}

}  // namespace keel
