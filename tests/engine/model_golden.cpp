#include "tests/engine/model_golden.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>
#include <type_traits>

#include "engine/model/params.h"

namespace keel {
namespace {

static_assert(std::endian::native == std::endian::little, "goldens are little-endian");

// splitmix64 of stream `name` at `index`.
std::uint64_t bits(const std::string& name, std::uint64_t index) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    std::uint64_t z = hash + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

std::vector<std::int32_t> token_ids(const std::string& name, std::int64_t n, std::int64_t vocab) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < n; ++i) {
        const std::uint64_t r = bits(name, static_cast<std::uint64_t>(i));
        const bool jump = i == 0 || (r >> 32) % 4 == 0;
        ids.push_back(static_cast<std::int32_t>(jump ? static_cast<std::int64_t>(r & 0xffffffffu) % vocab
                                                     : (5 * ids.back() + 3) % vocab));
    }
    return ids;
}

void set(ModelGolden& golden, const std::string& key, const std::string& value) {
    bool known = key == "clip";
    if (known) golden.clip = std::stod(value);
    golden.model.fields([&](const char* name, auto& member, const char*) {
        if (key != name) return;
        known = true;
        std::istringstream in(value);
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, std::vector<double>>) {
            for (double x; in >> x;) member.push_back(x);
        } else {
            in >> member;
        }
    });
    if (!known) fail("golden ", golden.name, ": unknown key ", key);
}

std::vector<std::int64_t> numbers(std::istream& in) {
    std::vector<std::int64_t> out;
    for (std::string word; in >> word && word != "/";) out.push_back(std::stoll(word));
    return out;
}

}  // namespace

Values hashed(const std::string& name, std::size_t n) {
    Values out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = (2.0 * static_cast<double>(bits(name, i) >> 57) - 127) / 128;
    return out;
}

Weights ModelGolden::initial_weights(const ModelSection& model) {
    Weights weights;
    for (const Param& param : ParamTable(model).specs) {
        Values values = hashed(param.name, static_cast<std::size_t>(param.size()));
        const double scale = param.name == "embed" && !model.tied ? 1.0 / 16 : param.name.ends_with("qkv") ? 0.5 : 0.25;
        for (double& x : values) x = param.name.ends_with("norm") ? 1 + std::round(x * 31.5) / 128 : x * scale;
        weights[param.name] = std::move(values);
    }
    return weights;
}

Rows::Rows(const ModelSection& model, const std::vector<std::string>& names,
           const std::vector<std::vector<std::int64_t>>& documents) {
    for (std::size_t row = 0; row < documents.size(); ++row) {
        std::int64_t length = 0;
        for (const std::int64_t n : documents[row]) length += n;
        const std::vector<std::int32_t> stream = token_ids(names[row], length + 1, model.vocab);
        std::size_t at = 0;
        for (const std::int64_t n : documents[row]) {
            const std::int64_t begin = tokens();
            for (std::int64_t i = 0; i < n; ++i, ++at) {
                ids.push_back(stream[at]);
                labels.push_back(documents[row].size() > 1 && i == n - 1 ? -1 : stream[at + 1]);
                positions.push_back(static_cast<std::int32_t>(i));
                lo.push_back(static_cast<std::int32_t>(
                    begin + (model.window ? std::max<std::int64_t>(0, i - model.window + 1) : 0)));
                loss_tokens += labels.back() >= 0;
            }
        }
    }
}

Batch Rows::batch() const {
    const auto view = [](const std::vector<std::int32_t>& v) {
        return View<const std::int32_t>(v.data(), {static_cast<std::int64_t>(v.size())});
    };
    return {.ids = view(ids), .labels = view(labels), .positions = view(positions), .lo = view(lo),
            .loss_tokens = loss_tokens, .sum_len = 0, .sum_len_sq = 0, .first_sample = 0, .count = 1};
}

ModelGolden::ModelGolden(const std::string& which) : name(which) {
    const std::string path = std::string(KEEL_TEST_DIR) + "/golden/model_" + name + ".golden";
    std::ifstream file(path, std::ios::binary);
    std::string line;
    if (!std::getline(file, line) || line != "keel-golden 1") fail("golden ", path, ": not there, or not a golden");
    std::vector<std::pair<std::string, std::size_t>> order;
    while (std::getline(file, line) && line != "end") {
        std::istringstream in(line);
        std::string kind, key, value;
        in >> kind;
        if (kind == "documents") documents = numbers(in);
        else if (kind == "rows") while (in) rows.push_back(numbers(in));
        else if (in >> key; kind == "set") std::getline(in >> std::ws, value), set(*this, key, value);
        else {
            std::size_t n = 1;
            for (const std::int64_t dim : numbers(in)) n *= static_cast<std::size_t>(dim);
            order.emplace_back(key, n);
        }
    }
    for (const auto& [key, n] : order) {
        Values& values = tensors_[key] = Values(n);
        file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(n * sizeof(double)));
    }
    if (!file || file.peek() != std::ifstream::traits_type::eof())
        fail("golden ", path, ": size does not match its header");
}

const Values& ModelGolden::operator[](const std::string& tensor) const {
    const auto it = tensors_.find(tensor);
    if (it == tensors_.end()) fail("golden ", name, " has no tensor ", tensor);
    return it->second;
}

Rows ModelGolden::row() const { return Rows(model, {"row"}, {documents}); }

Rows ModelGolden::step(int index) const {
    std::vector<std::string> streams;
    for (std::size_t r = 0; r < rows.size(); ++r)
        streams.push_back("step" + std::to_string(index) + "/row" + std::to_string(r));
    return Rows(model, streams, rows);
}

double ModelGolden::clip_factor(double norm) const { return std::min(1.0, clip / (norm + 1e-6)); }

const std::vector<std::string>& ModelGolden::names() {
    static const std::vector<std::string> all = {"llama", "llama_tied",  "mistral",   "qwen2",
                                                 "qwen3", "olmo2", "phi3", "llama3_rope", "yarn_rope", "packed"};
    return all;
}

}  // namespace keel
