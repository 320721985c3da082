#include "engine/bench/data.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "ckpt/model_folder.h"
#include "data/bpe_train.h"
#include "data/loader.h"
#include "data/tokenize.h"
#include "data/utf8.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel::bench {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t text_bytes = 4 << 20, disk_bytes = 64 << 20;

// A folder for the length of the measurement.
class Workplace {
public:
    explicit Workplace(const fs::path& folder) : path_(temporary_beside(folder / "keel-bench")) {
        std::error_code error;
        fs::create_directory(path_, error);
        if (error) fail("cannot make a folder to measure in, ", path_.string(), ": ", error.message(), "; --dir names another place");
    }
    ~Workplace() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    Workplace(const Workplace&) = delete;
    Workplace& operator=(const Workplace&) = delete;
    fs::path operator/(const char* name) const { return path_ / name; }

private:
    fs::path path_;
};

// Words by Zipf's law: the n-th of 30000 comes with a probability of about 1 / n.
std::string made_text(bool chinese) {
    const Random random(1, Purpose::test, chinese ? "bench chinese" : "bench english");
    std::uint64_t n = 0;
    std::vector<std::string> words(30000);
    for (std::size_t w = 0; w < words.size(); ++w)
        for (std::uint64_t size = 1 + random.bits64(n++) % (chinese ? 3 : 2) + (w > 300 ? 1 : 0); size > 0; --size) {
            if (chinese) append_utf8(0x4e00 + static_cast<std::uint32_t>(std::pow(6000.0, random.uniform(n++))), words[w]);
            else words[w].append({"tnrslhdcmf"[random.bits64(n++) % 10], "eaoiu"[random.bits64(n++) % 5], "tnrs"[random.bits64(n++) % 4]});
        }
    std::string text;
    for (std::uint64_t word = 1; static_cast<std::int64_t>(text.size()) < text_bytes; ++word) {
        text += words[static_cast<std::size_t>(std::pow(static_cast<double>(words.size()), random.uniform(n++))) - 1];
        if (word % 12 == 0) text += chinese ? "\u3002" : ".";
        if (word % 60 == 0) text += '\n';
        else if (!chinese) text += ' ';
    }
    return text;
}

// A model of 20 million parameters, filled with random numbers.
struct Weights {
    ModelShape shape;
    std::vector<std::unique_ptr<Buffer<float>>> memory;
    std::vector<NamedTensor> params;
    double bytes = 0;

    Weights() {
        shape.dtype = "f32";
        shape.vocab = 8192, shape.hidden = 512, shape.layers = 4, shape.heads = shape.kv_heads = 8, shape.head_dim = 64, shape.ffn = 1376;
        shape.max_position = 1024;
        for (const ParamSpec& p : param_specs(shape)) {
            const std::int64_t count = element_count(p.shape);
            memory.push_back(std::make_unique<Buffer<float>>(1, count));
            params.push_back({p.name, Dtype::f32, p.shape, reinterpret_cast<std::byte*>(memory.back()->data())});
            bytes += static_cast<double>(count) * sizeof(float);
        }
    }
};

// So that what is read next comes from the disk: clean pages leave the cache.
void forget(const fs::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
}

void encode_all(const Tokenizer& tokenizer, const std::string& text) {
    Encoder encoder(tokenizer);
    std::vector<std::int32_t> ids;
    for (std::size_t at = 0; at < text.size();) {  // a line at a time, as documents come
        const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
        ids.clear();
        encoder.encode(std::string_view(text).substr(at, end - at), ids);
        at = end;
    }
}

}  // namespace

std::vector<DataTime> measure_data(const fs::path& folder, int threads, int rounds) {
    const Workplace work(folder);
    const std::string english = made_text(false), chinese = made_text(true);
    BpeTrainer trainer;
    trainer.add(english), trainer.add(chinese);
    const Tokenizer tokenizer = trainer.train({.vocab_size = 8192});

    const std::vector<std::byte> block(disk_bytes, std::byte{1});
    std::vector<std::byte> copy(block.size());
    write_file_atomically(work / "block", std::string(block.size(), 'x'));
    write_file_atomically(work / "text.txt", english);
    TokenizeOptions options;
    options.inputs = {work / "text.txt"}, options.out = work / "text.tok", options.threads = threads;
    tokenize(tokenizer, options);
    const Dataset data({.paths = {(work / "text.tok").string()}, .weights = {}, .seq_len = 1024, .seed = 1});
    const double batch_bytes = static_cast<double>(data.samples_per_epoch() * 1024 * data.file(0).info().token_bytes);
    Loader loader(data, {.max_count = 1, .prefetch = 0});
    Weights weights;
    const SaveFolderOptions as_they_are{.tokenizer_from = {}, .dtype = Dtype::f32};
    save_model_folder(work / "model", weights.shape, weights.params, as_they_are);

    std::vector<DataTime> rows;
    std::vector<std::function<void()>> bodies;
    const auto add = [&](const char* name, double bytes, const char* bound, std::function<void()> body) {
        rows.push_back({name, bytes, {}, bound});
        bodies.push_back(std::move(body));
    };
    const auto disk = static_cast<double>(disk_bytes), words = static_cast<double>(english.size());
    add("disk_write", disk, "", [&] {
        fs::remove(work / "written");
        OutputFile out(work / "written");
        out.write(block);
        out.close();
    });
    add("disk_read", disk, "", [&] {
        forget(work / "block");
        InputFile(work / "block").read_at(0, copy);
    });
    add("copy", disk, "", [&] { std::memcpy(copy.data(), block.data(), block.size()); });
    add("encode_english_one_core", words, "disk_read", [&] { encode_all(tokenizer, english); });
    add("encode_chinese_one_core", static_cast<double>(chinese.size()), "disk_read", [&] { encode_all(tokenizer, chinese); });
    add("tokenize_file_to_file", words, "disk_read", [&] {
        forget(work / "text.txt");
        tokenize(tokenizer, options);
    });
    add("load_batches_one_core", batch_bytes, "copy", [&] {
        for (std::int64_t i = 0; i < data.samples_per_epoch(); ++i) loader.next(i, 1);
    });
    add("write_model_folder", weights.bytes, "disk_write", [&] {
        fs::remove_all(work / "written model");
        save_model_folder(work / "written model", weights.shape, weights.params, as_they_are);
    });
    add("read_model_folder", weights.bytes, "disk_read", [&] {
        for (const auto& entry : fs::directory_iterator(work / "model")) forget(entry.path());
        load_weights(work / "model", weights.shape, weights.params);
    });
    const std::vector<Sample> seconds = measure(bodies, rounds);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].seconds = seconds[i];
    return rows;
}

}  // namespace keel::bench
