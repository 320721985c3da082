#include "ckpt/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/strict_json.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::uint64_t max_header_bytes = 100'000'000;
constexpr std::int64_t block_bytes = std::int64_t{4} << 20;

// Builds the tensor list from parser events. A tree would hide a key given twice and cost several times the header.
// Depth 1 is the file's object, depth 2 a tensor or __metadata__, depth 3 an array; anything else is skipped if it
// belongs to a field the format does not know, and refused otherwise.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
public:
    HeaderReader(SafetensorsHeader& header, const std::string& file) : header_(header), file_(file) {}

    bool null() override {
        if (depth_ == 1 && key_ == "__metadata__") return true;
        return other("null");
    }
    bool boolean(bool) override { return other("a boolean"); }
    bool number_integer(number_integer_t value) override { return other(concat("the negative number ", value)); }
    bool number_float(number_float_t, const string_t& text) override { return other("the number " + text); }
    bool number_unsigned(number_unsigned_t value) override {
        if (skipping()) return true;
        if (depth_ == 3 && (field_ == "shape" || field_ == "data_offsets")) {
            if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
                fail(where(), "\"", field_, "\" holds ", value, ", which overflows 63 bits");
            (field_ == "shape" ? shape_ : offsets_).push_back(static_cast<std::int64_t>(value));
            return true;
        }
        return other(concat("the number ", value));
    }
    bool string(string_t& value) override {
        if (skipping()) return true;
        if (depth_ == 2 && in_metadata_) {
            header_.metadata[field_] = value;
            return true;
        }
        if (depth_ == 2 && field_ == "dtype") {
            dtype_ = parse_stored_dtype(value);
            if (!dtype_) fail(where(), "unknown dtype \"", value, "\"; names are exact, such as F32, BF16, F16");
            return true;
        }
        return other("a string");
    }
    bool binary(binary_t&) override { return other("binary data"); }

    bool start_object(std::size_t) override {
        if (skipping() || (depth_ == 2 && !in_metadata_ && !known_field())) {
            enter_skipped();
            return true;
        }
        if (depth_ >= 2) return other("an object");
        ++depth_;
        if (depth_ == 2) {
            in_metadata_ = key_ == "__metadata__";
            fields_.clear();
            dtype_.reset();
            shape_.clear();
            offsets_.clear();
        }
        return true;
    }
    bool end_object() override {
        if (leave_skipped()) return true;
        if (depth_ == 2 && !in_metadata_) finish_tensor();
        in_metadata_ = false;
        --depth_;
        return true;
    }
    bool start_array(std::size_t) override {
        if (skipping() || (depth_ == 2 && !in_metadata_ && !known_field())) {
            enter_skipped();
            return true;
        }
        if (depth_ != 2 || in_metadata_ || field_ == "dtype") return other("an array");
        ++depth_;
        return true;
    }
    bool end_array() override {
        if (!leave_skipped()) --depth_;
        return true;
    }
    bool key(string_t& text) override {
        if (skipping()) return true;
        if (depth_ == 1) {
            key_ = text;
            if (!names_.insert(text).second) fail(file_, ": the name \"", text, "\" is given twice");
        } else {
            field_ = text;
            if (!fields_.insert(text).second) fail(where(), "\"", text, "\" is given twice");
        }
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
        fail(file_, ": the header is not valid JSON: ", e.what());
    }

private:
    bool known_field() const { return field_ == "dtype" || field_ == "shape" || field_ == "data_offsets"; }
    bool skipping() const { return skipped_depth_ > 0; }
    void enter_skipped() {
        if (++skipped_depth_ > max_json_depth) fail(file_, ": header nested more than ", max_json_depth, " deep");
    }
    bool leave_skipped() {
        if (skipped_depth_ == 0) return false;
        --skipped_depth_;
        return true;
    }
    std::string where() const {
        if (in_metadata_ || key_ == "__metadata__") return file_ + ": __metadata__: ";
        return file_ + ": tensor \"" + key_ + "\": ";
    }

    // A value where the format wants another kind.
    bool other(const std::string& found) {
        if (skipping()) return true;
        if (depth_ == 0) fail(file_, ": the header must be a JSON object, found ", found);
        if (depth_ == 1 && key_ == "__metadata__") fail(where(), "must be an object of strings, found ", found);
        if (depth_ == 1) fail(where(), "must be an object, found ", found);
        if (in_metadata_) fail(where(), "\"", field_, "\" must be a string, found ", found);
        if (!known_field()) return true;
        const char* want = field_ == "dtype" ? "a string" : "an array of non-negative whole numbers";
        fail(where(), "\"", field_, "\" must be ", want, ", found ", found);
    }

    void finish_tensor() {
        for (const char* field : {"dtype", "shape", "data_offsets"})
            if (!fields_.contains(field)) fail(where(), "\"", field, "\" is missing");
        if (offsets_.size() != 2) fail(where(), "\"data_offsets\" has ", offsets_.size(), " numbers; it must have 2");
        header_.tensors.push_back({key_, *dtype_, shape_, offsets_[0], offsets_[1]});
    }

    SafetensorsHeader& header_;
    const std::string& file_;
    int depth_ = 0, skipped_depth_ = 0;
    bool in_metadata_ = false;
    std::string key_, field_;
    std::set<std::string> names_, fields_;
    std::optional<StoredDtype> dtype_;
    std::vector<std::int64_t> shape_, offsets_;
};

std::int64_t checked_size_bytes(const StoredTensor& tensor, const std::string& file) {
    std::int64_t bits = 1;  // dims first, in order, so that StoredTensor::elements cannot overflow either
    bool overflow = false;
    for (const std::int64_t d : tensor.shape) overflow |= __builtin_mul_overflow(bits, d, &bits);
    if (overflow || __builtin_mul_overflow(bits, size_bits(tensor.dtype), &bits))
        fail(file, ": tensor \"", tensor.name, "\": the size of ", shape_text(tensor.shape), " overflows 64 bits");
    if (bits % 8 != 0)
        fail(file, ": tensor \"", tensor.name, "\": ", shape_text(tensor.shape), " of ", name(tensor.dtype), " is ",
             bits, " bits, which is not a whole number of bytes");
    return bits / 8;
}

void check_offsets(SafetensorsHeader& header, std::int64_t file_size_bytes, const std::string& file) {
    std::sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::int64_t end = 0;
    for (const StoredTensor& t : header.tensors) {
        const std::int64_t size = checked_size_bytes(t, file);
        if (t.begin != end)
            fail(file, ": tensor \"", t.name, "\" begins at byte ", t.begin, " of the data, but must begin at ", end,
                 t.begin > end ? " (a hole)" : " (an overlap)");
        if (t.end < t.begin || t.end - t.begin != size)
            fail(file, ": tensor \"", t.name, "\": ", shape_text(t.shape), " of ", name(t.dtype), " takes ", size,
                 " bytes, but data_offsets are [", t.begin, ", ", t.end, "]");
        end = t.end;
    }
    const std::int64_t data = file_size_bytes - header.data_offset;
    if (end != data)
        fail(file, ": the tensors take ", end, " bytes, but the file holds ", data,
             " after its header: ", data > end ? concat(data - end, " too many") : concat(end - data, " are missing"));
}

}  // namespace

std::vector<std::byte> read_safetensors_start(const InputFile& file) {
    std::vector<std::byte> start(static_cast<std::size_t>(std::min<std::int64_t>(8, file.size_bytes())));
    file.read_at(0, start);
    if (start.size() < 8) return start;
    std::uint64_t n;
    std::memcpy(&n, start.data(), 8);
    if (n > max_header_bytes || static_cast<std::int64_t>(n) > file.size_bytes() - 8) return start;
    start.resize(static_cast<std::size_t>(n) + 8);
    file.read_at(8, std::span(start).subspan(8));
    return start;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file_start, std::int64_t file_size_bytes,
                                           const std::string& file) {
    if (file_size_bytes < 8 || file_start.size() < 8)
        fail(file, ": ", file_size_bytes, " bytes is too short for a safetensors file");
    std::uint64_t n;
    std::memcpy(&n, file_start.data(), 8);
    if (n > max_header_bytes)
        fail(file, ": the header claims ", n, " bytes; more than ", max_header_bytes, " is not a safetensors file");
    if (static_cast<std::int64_t>(n) > file_size_bytes - 8)
        fail(file, ": the header claims ", n, " bytes, but only ", file_size_bytes - 8,
             " follow; the file is cut or is not safetensors");
    if (file_start.size() - 8 < n) fail(file, ": only ", file_start.size(), " bytes of a header of ", n, " were handed over");
    const std::string_view text(reinterpret_cast<const char*>(file_start.data()) + 8, static_cast<std::size_t>(n));
    check_json_bytes(text, file);
    SafetensorsHeader header;
    header.data_offset = static_cast<std::int64_t>(n) + 8;
    HeaderReader reader(header, file);
    nlohmann::json::sax_parse(text, &reader);
    check_offsets(header, file_size_bytes, file);
    return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path),
      header_(parse_safetensors_header(read_safetensors_start(file_), file_.size_bytes(), path.string())) {
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : &header_.tensors[at->second];
}

void SafetensorsFile::read_bytes(const StoredTensor& tensor, std::int64_t offset, std::span<std::byte> out) const {
    if (offset < 0 || offset + static_cast<std::int64_t>(out.size()) > tensor.size_bytes())
        fail(path().string(), ": tensor \"", tensor.name, "\" has ", tensor.size_bytes(), " bytes; cannot read ",
             out.size(), " at ", offset);
    file_.read_at(header_.data_offset + tensor.begin + offset, out);
}

void SafetensorsFile::read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, Dtype to,
                           std::byte* out) const {
    if (!is_convertible(tensor.dtype))
        fail(path().string(), ": tensor \"", tensor.name, "\" is ", name(tensor.dtype),
             "; keel loads F32, BF16, F16, F64, F8_E4M3 and F8_E5M2");
    const std::int64_t from_bytes = size_bits(tensor.dtype) / 8, to_bytes = size_bytes(to);
    if (tensor.dtype == stored(to))
        return read_bytes(tensor, first * from_bytes, {out, static_cast<std::size_t>(count * to_bytes)});
    std::vector<std::byte> block(static_cast<std::size_t>(std::min(block_bytes, count * from_bytes)));
    for (std::int64_t done = 0; done < count;) {
        const std::int64_t now = std::min(count - done, block_bytes / from_bytes);
        read_bytes(tensor, (first + done) * from_bytes,
                   std::span(block).first(static_cast<std::size_t>(now * from_bytes)));
        convert(tensor.dtype, block.data(), to, out + done * to_bytes, now);
        done += now;
    }
}

}  // namespace keel
