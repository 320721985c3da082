// cli/inspect.cpp: `keel inspect`: what a file or folder is and what it holds. Recognised by content, never by name.
//
// One tree of values per kind is filled once and printed twice: as text for people, as JSON for machines.

#include <CLI/App.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"
#include "ckpt/foreign/torch_file.h"
#include "ckpt/foreign_model.h"
#include "ckpt/model_folder.h"
#include "ckpt/safetensors.h"
#include "cli/commands.h"
#include "cli/report_table.h"
#include "data/llmc_file.h"
#include "data/megatron_file.h"
#include "data/token_file.h"
#include "data/tokenizer.h"
#include "engine/config_io.h"
#include "engine/observe/log_line.h"
#include "engine/observe/run_log.h"
#include "engine/open_model.h"
#include "engine/state.h"
#include "kernels/base/file.h"
#include "kernels/base/hex.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

struct InspectOptions {
    std::string path;
    bool json = false, verify = false;
};

Report tensor_row(const StoredTensor& t) {
    return {{"name", t.name},
            {"dtype", std::string(name(t.dtype))},
            {"shape", shape_text(t.shape)},
            {"bytes", t.size_bytes()}};
}

// For sets of hundreds of tensors: how many of each type, and how large.
Report by_dtype(const std::vector<const StoredTensor*>& tensors) {
    std::map<std::string, std::array<std::int64_t, 3>> sums;
    for (const StoredTensor* t : tensors) {
        auto& [count, elements, bytes] = sums[std::string(name(t->dtype))];
        ++count, elements += t->elements(), bytes += t->size_bytes();
    }
    Report rows = Report::array();
    for (const auto& [dtype, sum] : sums)
        rows.push_back({{"dtype", dtype}, {"tensors", sum[0]}, {"elements", sum[1]}, {"bytes", sum[2]}});
    return rows;
}

// The same of a checkpoint, whose tensors may lie in pieces.
Report by_dtype(const CheckpointTensors& stored) {
    std::vector<StoredTensor> whole;
    for (const auto& [tensor, t] : stored.tensors())
        whole.push_back({tensor, t.dtype, t.shape, 0, element_count(t.shape) * size_bits(t.dtype) / 8});
    std::vector<const StoredTensor*> tensors;
    for (const StoredTensor& t : whole) tensors.push_back(&t);
    return by_dtype(tensors);
}

Report model_fields(const ModelShape& s) {
    Report r = {{"family", std::string(name(s.family))},
                {"parameters", parameter_count(s)},
                {"dtype", s.dtype},
                {"vocab", s.vocab},
                {"hidden", s.hidden},
                {"layers", s.layers},
                {"heads", s.heads},
                {"kv_heads", s.kv_heads},
                {"head_dim", s.head_dim},
                {"ffn", s.ffn},
                {"norm_eps", s.norm_eps},
                {"rope_base", s.rope_base},
                {"rope_scaling", s.rope_scaling},
                {"tied", s.tied},
                {"qkv_bias", s.qkv_bias},
                {"qk_norm", s.qk_norm},
                {"window", s.window},
                {"max_position", s.max_position}};
    if (s.bos_id) r["bos_id"] = *s.bos_id;
    if (!s.eos_ids.empty()) r["eos_ids"] = s.eos_ids;
    return r;
}

Report tokenizer_fields(const Tokenizer& t) {
    Report r = {{"vocab_size", t.vocab_size()}, {"hash", hex(t.hash())}};
    if (const auto id = t.bos_id()) r["bos_id"] = *id;
    if (const auto id = t.eos_id()) r["eos_id"] = *id;
    return r;
}

Report inspect_checkpoint(const fs::path& path, bool verify) {
    const CheckpointInfo info = verify ? verify_checkpoint(path) : open_checkpoint(path);
    const SavedState state = parse_state(info.state, (path / "state.json").string());
    Report r = {{"kind", "checkpoint"},
                {"path", path.string()},
                {"checked", verify ? "sizes and hashes of every file" : "sizes of every file; --verify reads them all"},
                {"step", info.step},
                {"samples", state.progress.samples},
                {"skipped_steps", state.progress.skipped},
                {"tokens", state.progress.tokens}};
    try {
        r["model"] = model_fields(model_shape(state.config.model));
        r["model"].erase("max_position");  // a checkpoint has none
    } catch (const Error& e) {
        r["model"] = e.what();  // a mixture no model folder can express trains all the same
    }
    r["files"] = Report::array();
    for (const CheckpointFile& f : info.files)
        r["files"].push_back({{"file", f.name}, {"bytes", f.size_bytes}, {"xxh3_128", f.hash}});
    r["tensors"] = by_dtype(CheckpointTensors(info));
    r["config"] = to_toml(state.config);
    return r;
}

Report inspect_checkpoints(const fs::path& path, const fs::path& root, bool verify) {
    Report r = {{"kind", "run"}, {"path", path.string()}, {"checkpoints", Report::array()}};
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(root))
        if (entry.is_directory() && entry.path().filename().string().starts_with("step-"))
            folders.push_back(entry.path());
    std::sort(folders.begin(), folders.end());
    for (const fs::path& folder : folders) {
        Report row = {
            {"checkpoint", folder.filename().string()}, {"samples", nullptr}, {"bytes", nullptr}, {"state", "good"}};
        try {
            const CheckpointInfo info = verify ? verify_checkpoint(folder) : open_checkpoint(folder);
            std::int64_t bytes = 0;
            for (const CheckpointFile& f : info.files) bytes += f.size_bytes;
            row["samples"] = parse_state(info.state, folder.string()).progress.samples;
            row["bytes"] = bytes;
        } catch (const Error& e) {
            row["state"] = std::string("damaged: ") + e.what();
        }
        r["checkpoints"].push_back(row);
    }
    return r;
}

Report inspect_model_folder(const fs::path& path) {
    const ModelShape shape = read_model_shape(path);
    Report r = {{"kind", "model folder"},
                {"path", path.string()},
                {"model", model_fields(shape)},
                {"warnings", Report::array()}};
    const SafetensorsSet set(path, [&](const std::string& text) { r["warnings"].push_back(text); });
    std::vector<const StoredTensor*> tensors;
    for (const auto& [tensor, entry] : set.tensors()) tensors.push_back(entry.tensor);
    for (const TensorSlice& slice : tensor_slices(shape)) {
        const auto found = set.find(slice.hf_name);
        if (!found)
            r["warnings"].push_back("missing: " + slice.hf_name);
        else if (found->tensor->shape != slice.hf_shape())
            r["warnings"].push_back("misshapen: " + slice.hf_name + " is " + shape_text(found->tensor->shape) +
                                    ", not " + shape_text(slice.hf_shape()));
    }
    if (r["warnings"].empty()) r.erase("warnings");
    r["files"] = Report::array();
    for (const SafetensorsFile& f : set.files())
        r["files"].push_back({{"file", f.path().filename().string()},
                              {"tensors", f.tensors().size()},
                              {"bytes", fs::file_size(f.path())}});
    r["tensors"] = by_dtype(tensors);
    if (Tokenizer::found_in(path)) {
        try {
            r["tokenizer"] = tokenizer_fields(Tokenizer::load(path));
        } catch (const Error& e) {
            r["tokenizer"] = e.what();
        }
    }
    return r;
}

Report inspect_safetensors(const fs::path& path) {
    const SafetensorsFile file(path);
    std::vector<const StoredTensor*> all;
    Report r = {{"kind", "safetensors"}, {"path", path.string()}, {"bytes", fs::file_size(path)}};
    if (!file.header().metadata.empty()) r["metadata"] = file.header().metadata;
    for (const StoredTensor& t : file.tensors()) all.push_back(&t);
    r["totals"] = by_dtype(all);
    r["tensors"] = Report::array();
    for (const StoredTensor& t : file.tensors()) r["tensors"].push_back(tensor_row(t));
    return r;
}

// The tensors of other systems' files: totals, and a row for each where there is one table of them.
void add_tables(Report& r, const std::vector<TensorTable>& tables) {
    std::vector<StoredTensor> all;
    for (const TensorTable& table : tables)
        for (const auto& [name, t] : table.tensors) all.push_back({name, t.dtype, t.shape, 0, element_count(t.shape) * size_bits(t.dtype) / 8});
    std::vector<const StoredTensor*> tensors;
    for (const StoredTensor& t : all) tensors.push_back(&t);
    r["totals"] = by_dtype(tensors);
    r["tensors"] = Report::array();
    for (const TensorTable& table : tables)
        for (const auto& [name, t] : table.tensors) {
            r["tensors"].push_back(tensor_row({name, t.dtype, t.shape, 0, element_count(t.shape) * size_bits(t.dtype) / 8}));
            if (tables.size() > 1) r["tensors"].back()["file"] = fs::path(table.where).lexically_relative(r["path"].get<std::string>()).string();
        }
}

Report inspect_foreign(const fs::path& path, ForeignKind kind, bool verify) {
    Report r = {{"kind", std::string(name(kind)) + " model"}, {"path", path.string()}, {"warnings", Report::array()}};
    ForeignModel model = open_foreign(path, kind, {.warn = [&](const std::string& text) { r["warnings"].push_back(text); }});
    if (r["warnings"].empty()) r.erase("warnings");
    if (verify) check_bytes(model);
    r["description"] = model.description;
    r["model"] = model_fields(model.shape);
    add_tables(r, model.tables);
    return r;
}

Report inspect_torch_file(const fs::path& path, bool verify) {
    TorchFile file(path);
    Report r = {{"kind", "file of torch.save"}, {"path", path.string()}, {"bytes", fs::file_size(path)}, {"holds", file.root().description()}};
    const TensorTable table = file.tensors(file.root());
    if (verify) file.check_storages();
    add_tables(r, {table});
    return r;
}

// What the file does not say is left out.
Report inspect_token_file(const fs::path& path, bool verify) {
    const TokenFile file(path);
    if (verify) file.verify();
    const TokenFileInfo& i = file.info();
    const bool own = i.format == TokenFormat::keel;
    Report r = {{"kind", own ? std::string("token file") : concat(name(i.format), " token file")},
                {"path", file.path().string()},
                {"checked", verify ? (own ? "header, documents, every hash and every id" : "sizes and every id")
                                   : (own ? "header and documents; --verify reads every token" : "sizes; --verify reads every token")},
                {"tokens", i.tokens},
                {"documents", i.documents}};
    if (i.format == TokenFormat::megatron) r["sequences"] = i.sequences;
    if (i.source_bytes > 0) r["bytes_of_text"] = i.source_bytes;
    r["token_bytes"] = i.token_bytes;
    if (i.vocab_size > 0) r["vocab_size"] = i.vocab_size;
    if (i.tokenizer_hash != 0) r["tokenizer_hash"] = hex(i.tokenizer_hash);
    if (i.bos_id >= 0) r["bos_id"] = i.bos_id;
    if (i.eos_id >= 0) r["eos_id"] = i.eos_id;
    r["documents_end_with_eos"] = i.ends_with_eos;
    r["documents_begin_with_bos"] = i.begins_with_bos;
    r["mask_of_what_is_predicted"] = i.has_mask;
    if (own) r["hash_per_block"] = i.has_block_hashes, r["repaired_byte_sequences"] = i.replaced;
    return r;
}

Report inspect_llmc_eval(const fs::path& path) {
    const LlmcEval eval = read_llmc_eval(path);
    return {{"kind", "llm.c evaluation file"}, {"path", path.string()},           {"examples", eval.examples},
            {"completions", eval.completions}, {"tokens", eval.tokens}, {"longest_example_bytes", eval.longest_bytes}};
}

Report inspect_json(const fs::path& path, bool verify) {
    const auto tree = nlohmann::json::parse(read_file(path), nullptr, false);  // sorted: a vocabulary has many keys
    if (!tree.is_object()) return nullptr;
    if (tree.contains("model") && tree.contains("pre_tokenizer")) {
        Report r = {{"kind", "tokenizer"}, {"path", path.string()}};
        r.update(tokenizer_fields(Tokenizer::load(path)));
        return r;
    }
    if (tree.contains("model_type")) {
        Report r = {{"kind", "config.json of a model"}, {"path", path.string()}};
        r["model"] = model_fields(parse_model_config(read_file(path), path.string()));
        return r;
    }
    // Parts of a whole: the whole says more.
    if (tree.contains("tokenizer_class") && fs::exists(path.parent_path() / "tokenizer.json"))
        return inspect_json(path.parent_path() / "tokenizer.json", verify);
    if ((tree.contains("manifest") || tree.contains("progress")) && is_checkpoint(path.parent_path()))
        return inspect_checkpoint(path.parent_path(), verify);
    return nullptr;
}

Report inspect_log(const fs::path& path) {
    const RunLog log = read_log(path);
    Report r = {{"kind", "log of a run"}, {"path", path.string()},     {"sessions", log.sessions.size()},
                {"steps", log.steps},     {"skipped_steps", log.skipped}, {"tokens", log.tokens}};
    if (!log.loss.empty()) r["last_loss"] = number_text("%.4f", log.loss.back().y).text;
    if (!log.eval_loss.empty()) r["last_held_out_loss"] = number_text("%.4f", log.eval_loss.back().y).text;
    if (!log.why.empty()) r["ended"] = log.why;
    return r;
}

Report inspect_run_config(const fs::path& path) {
    const Config config = from_toml(read_file(path), path.string());
    return {{"kind", "configuration of a run"}, {"path", path.string()}, {"config", to_toml(config)}};
}

constexpr const char* known =
    "looked for a run or checkpoint (manifest.json), a model folder (config.json), a safetensors file, a token file "
    "(of keel, llm.c, llm.q, or a Megatron pair of .bin and .idx), a model of Meta, Mistral, Megatron-LM, llm.c or llama2.c, a file of torch.save, a tokenizer.json, a config.json, and a run's config.toml, log.jsonl and report.html";

Report inspect_file(const fs::path& path, bool verify) {
    const InputFile file(path);
    std::string start(static_cast<std::size_t>(std::min<std::int64_t>(64, file.size_bytes())), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    if (is_llmc_eval(start)) return inspect_llmc_eval(path);
    if (start.starts_with("keel.tok") || start.starts_with("BIN.TOK\n") || is_llmc(start) || find_megatron_pair(path))
        return inspect_token_file(path, verify);
    // A header length below 2^32, then JSON: safetensors, unless it is the JSON of something else.
    if (start.size() > 8 && start.compare(4, 4, std::string(4, '\0')) == 0) return inspect_safetensors(path);
    if (start.starts_with("{\"event\":")) return inspect_log(path);
    if (start.starts_with("[model]\n")) return inspect_run_config(path);
    if (start.starts_with("<!doctype html>") && read_file(path).find("<title>keel: ") != std::string::npos)
        return {{"kind", "report of a run"}, {"path", path.string()}, {"bytes", file.size_bytes()}};
    if (!start.empty() && std::string_view("{ \t\r\n").find(start[0]) != std::string_view::npos)
        if (Report r = inspect_json(path, verify); !r.is_null()) return r;
    if (path.extension() == ".safetensors") return inspect_safetensors(path);  // for its message
    if (const auto kind = find_foreign(path)) return inspect_foreign(path, *kind, verify);
    if (start.starts_with("PK\3\4") || is_old_torch_file(start)) return inspect_torch_file(path, verify);
    if (const std::string foreign = foreign_model(path); !foreign.empty()) fail(foreign);
    fail(path.string() + " (", file.size_bytes(), " bytes) is nothing keel knows: ", known);
}

Report inspect_path(const fs::path& path, bool verify) {
    if (!fs::exists(path) && find_megatron_pair(path)) return inspect_token_file(path, verify);
    if (!fs::exists(path)) fail(path.string() + ": no such file or folder");
    if (!fs::is_directory(path)) return inspect_file(path, verify);
    if (is_checkpoint(path)) return inspect_checkpoint(path, verify);
    if (fs::exists(path / "config.json")) return inspect_model_folder(path);
    for (const fs::path& root : {path / "checkpoints", path}) {
        if (!fs::is_directory(root)) continue;
        for (const auto& entry : fs::directory_iterator(root))
            if (entry.path().filename().string().starts_with("step-")) return inspect_checkpoints(path, root, verify);
    }
    if (const auto kind = find_foreign(path)) return inspect_foreign(path, *kind, verify);
    if (const std::string foreign = foreign_model(path); !foreign.empty()) fail(foreign);
    if (fs::exists(path / "tokenizer.json")) return inspect_json(path / "tokenizer.json", verify);
    if (Tokenizer::found_in(path)) {
        const Tokenizer tokenizer = Tokenizer::load(path);
        return {{"kind", "tokenizer"}, {"path", path.string()}, {"description", tokenizer.description()},
                {"vocab_size", tokenizer.vocab_size()}, {"hash", hex(tokenizer.hash())}};
    }
    fail(path.string() + " is a folder, but nothing keel knows: ", known);
}

}  // namespace

void add_inspect(CLI::App& app) {
    CLI::App* command = app.add_subcommand("inspect", "say what a file or folder is, and what it holds");
    auto o = std::make_shared<InspectOptions>();
    command->add_option("path", o->path, "anything keel writes, or a model folder, safetensors, tokenizer.json")
        ->required();
    command->add_flag("--json", o->json, "print one JSON object, for programs");
    command->add_flag("--verify", o->verify, "read everything and check every hash");
    command->callback([o] {
        const Report report = inspect_path(o->path, o->verify);
        if (o->json)
            std::printf("%s\n", report.dump(2).c_str());
        else
            print_report(report);
    });
}

}  // namespace keel
