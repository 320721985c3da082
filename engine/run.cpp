#include "engine/run.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "ckpt/checkpoint.h"
#include "ckpt/model_folder.h"
#include "comm/agree.h"
#include "comm/nccl.h"
#include "engine/config_check.h"
#include "engine/config_io.h"
#include "engine/data_spec.h"
#include "engine/evaluate.h"
#include "engine/fault/dump.h"
#include "engine/fault/self_test.h"
#include "engine/generate.h"
#include "engine/observe/datasheet.h"
#include "engine/observe/mfu.h"
#include "engine/observe/print.h"
#include "engine/model_shape.h"
#include "engine/open_model.h"
#include "engine/parallel/rank_gpu.h"
#include "engine/products_file.h"
#include "engine/resume.h"
#include "engine/state.h"
#include "kernels/base/file.h"
#include "kernels/base/hex.h"
#include "kernels/bf16_unit.h"
#include "kernels/hopper.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

std::optional<Tokenizer> load_tokenizer(const Config& config) {
    if (config.data.tokenizer.empty()) return std::nullopt;
    return Tokenizer::load(config.data.tokenizer);
}

// The shape is the one of the weights to start from. A flag that says otherwise is a contradiction, not an override; but
// the vocabulary may be larger (engine/added_rows.h).
void take_shape(Config& config, const ModelSource& source) {
    Config taken = config;
    taken.model = source.config.model;
    taken.model.dtype = config.model.dtype;
    taken.model.init_std = config.model.init_std;
    if (const std::int64_t vocab = source.config.model.vocab; config.model.vocab > vocab) taken.model.vocab = config.model.vocab;
    else if (config.model.vocab != 0 && config.model.vocab < vocab)
        fail_usage("--model.vocab is ", config.model.vocab, ", but --ckpt.init ", config.ckpt.init, " has ", vocab,
                   " rows, and none can be taken away; leave the flag out, or give more to add rows");
    for (const std::string& key : setting_names()) {
        if (!key.starts_with("model.")) continue;
        const std::string asked = value_text(config, key), has = value_text(taken, key);
        if (asked != has && asked != value_text(Config{}, key))
            fail_usage("--" + key + " is ", asked, ", but --ckpt.init ", config.ckpt.init, " has ", has,
                       "; leave the flag out: the shape comes with the weights");
    }
    config.model = taken.model;
    if (config.data.tokenizer.empty() && source.tokenizer) config.data.tokenizer = source.path.string();
}

// The files that make a tokenizer.json mean what its author meant, to travel with every checkpoint.
std::vector<ExtraFile> tokenizer_companions(const Config& config) {
    std::vector<ExtraFile> files;
    if (config.data.tokenizer.empty()) return files;
    const fs::path given = config.data.tokenizer, folder = fs::is_directory(given) ? given : given.parent_path();
    for (const std::string_view name : files_beside_weights())
        if (name != "tokenizer.json" && name != "config.json" && fs::is_regular_file(folder / name))
            files.push_back({std::string(name), read_file(folder / name)});
    return files;
}

// Fills the vocabulary from the tokenizer and the shape from ckpt.init, then everything else; refuses what cannot be.
Config resolved(Config config, std::int64_t ranks) {
    (void)resolve_mesh(config.parallel, ranks);
    if (!config.ckpt.init.empty()) take_shape(config, open_model(config.ckpt.init));
    if (config.model.vocab == 0)
        if (const auto tokenizer = load_tokenizer(config)) config.model.vocab = tokenizer->vocab_size();
    resolve_and_validate(config);
    check_device(config, ranks);
    if (config.run.dir.empty()) fail_usage("--run.dir is not given; name a folder for checkpoints, log and report");
    return config;
}

LoaderSpec loader_spec(const Config& config) {
    return {.max_count = config.train.micro_batch, .window = config.model.window,
            .reset_at_document = config.data.reset_at_document, .prefetch = config.data.prefetch};
}

// Ids index the embedding: a file of another tokenizer would train nonsense, and one with more ids would read past the table.
void check_data(const Run& run, const Dataset& data) {
    if (run.tokenizer) data.check_tokenizer(run.tokenizer->hash(), run.tokenizer->name());
    if (data.vocab_size() > run.config.model.vocab)
        fail_usage("the token files have ids up to ", data.vocab_size() - 1, ", but --model.vocab is ", run.config.model.vocab,
                   "; raise it to at least ", data.vocab_size());
}

// What was saved and is being gone on with; nullopt starts anew. `damaged` counts what is no good.
std::optional<CheckpointInfo> checkpoint_to_resume(const Run& run, int& damaged) {
    const std::string& resume = run.config.ckpt.resume;
    if (resume == "none") return std::nullopt;
    if (resume != "auto") {
        if (!is_checkpoint(resume))
            fail_usage("--ckpt.resume is \"", resume, "\"; it must be auto, none or the folder of one complete checkpoint, as in ",
                       (run.checkpoint_root() / "step-00001000").string());
        return open_checkpoint(resume);
    }
    auto newest = find_newest_checkpoint(run.ranks.world, run.checkpoint_root(), [&](const std::string& text) {
        ++damaged;
        std::fprintf(stderr, "keel: warning: %s\n", text.c_str());
    });
    return newest;
}

// `load` brings the tensors, of the checkpoint at `path`.
template <class Load> void resume(Run& run, const std::string& state, const fs::path& path, Load&& load) {
    const SavedState saved = parse_state(state, (path / "state.json").string());
    if (saved.tokenizer_hash != 0) run.data.check_tokenizer(saved.tokenizer_hash, "the tokenizer of " + path.string());
    const std::string changes = check_resume(saved.config, run.config, path.string());
    if (!changes.empty() && run.world.rank() == 0)
        std::fprintf(stderr, "keel: going on with changed settings:\n%s", changes.c_str());
    load();
    run.model->share_params();
    set_exact_scales(run.config, *run.model, saved.scales);
    run.progress = saved.progress;
    if (run.loss_scale && saved.loss_scale) run.loss_scale->restore(*saved.loss_scale);
    if (run.replay) run.replay->spikes = saved.spikes;
}

void warn(const std::string& text) { std::fprintf(stderr, "keel: warning: %s\n", text.c_str()); }

// A checkpoint that was announced goes into the log; one that was not is told. The last of a run must be.
void heed(Run& run, const std::optional<Saved>& saved, bool last) {
    if (!saved) return;
    if (run.trace)
        run.trace->checkpoint(saved->progress.steps, saved->began,
                              saved->began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(saved->seconds)));
    if (saved->error.empty())
        run.record([&](Observe& observe) { observe.record_save(saved->progress, saved->path.c_str(), saved->seconds); });
    else if (last)
        fail(saved->error);
    else
        run.record([&](Observe&) { warn(saved->error + "; training goes on, older checkpoints are as they were"); });
}

std::string state_now(Run& run) {
    return state_text(run.progress, run.config, run.data.tokenizer_hash(),
                      {.scales = exact_scales(run.config, *run.model), .spikes = run.replay ? run.replay->spikes : StepSpikes{},
                       .loss_scale = run.loss_scale ? std::optional(run.loss_scale->state()) : std::nullopt});
}

// Of token files: their sizes, and tokens from a thousand places of each. Not proof, but no two corpora have it in common.
std::string data_hash(const Dataset& data) {
    std::vector<std::int64_t> sizes;
    std::uint64_t hash = 0;
    for (std::int64_t f = 0; f < data.files(); ++f) {
        const TokenFile& file = data.file(f);
        std::vector<std::int32_t> some(static_cast<std::size_t>(std::min<std::int64_t>(16, file.tokens())));
        for (std::int64_t i = 0; i < 1024; ++i) {
            const std::int64_t room = file.tokens() - static_cast<std::int64_t>(some.size());
            file.read(static_cast<std::int64_t>(static_cast<double>(room) * static_cast<double>(i) / 1023), some);
            hash = XXH3_64bits_withSeed(some.data(), some.size() * sizeof some[0], hash);
        }
        sizes.insert(sizes.end(), {file.tokens(), file.documents()});
    }
    return concat(data.samples_per_epoch(), " samples, hash ",
                  hex(XXH3_64bits_withSeed(sizes.data(), sizes.size() * sizeof sizes[0], hash)));
}

// The GPUs of this machine that ranks of the run work on. A collective.
std::vector<std::string> gpus_of_host(const Run& run, Group& world) {
    std::vector<std::string> gpus;
    const std::string own = run.gpu ? run.gpu->bus_id() : "", host = run.world.host() + "\n";
    for (const std::string& one : gather_strings(world, host + own))
        if (one.starts_with(host) && one.size() > host.size()) gpus.push_back(one.substr(host.size()));
    std::ranges::sort(gpus);
    gpus.erase(std::ranges::unique(gpus).begin(), gpus.end());
    return gpus;
}

// What MFU is measured against: what the user said, or what the GPU's datasheet has, which is for bf16.
double datasheet_peak(const Config& config, const Gpu* gpu) {
    if (!config.observe.device_peak.empty() || !gpu) return device_peak(config);
    return config.model.dtype == "f32" ? 0 : datasheet_tflops(gpu->name()) * 1e12;
}

// How fast a run goes through each source of its data.
std::vector<RunFacts::Source> sources_of(const Dataset& data) {
    std::vector<RunFacts::Source> sources;
    const std::int64_t samples = data.samples_per_epoch();
    for (std::int64_t s = 0; s < data.sources(); ++s) {
        const Dataset::Use use = data.use(s, samples);
        sources.push_back({use.name, use.epochs / static_cast<double>(samples)});
    }
    return sources;
}

std::string build_hash() {
    const std::string program = read_file("/proc/self/exe");
    return hex(XXH3_64bits(program.data(), program.size()));
}

// The world that a run makes for itself, over the one it was given; none where that will do.
std::unique_ptr<World> make_world(const Config& config, World* given) {
    if (!given) return std::make_unique<SoloWorld>();
    const Device device = device_of(config);
    if (device == Device::cpu || given->size() == 1) return nullptr;
    return nccl_world(*given, device, gpu_of_rank(device, *given), {.buffer_bytes = 0, .deadline_s = config.parallel.deadline_s});
}

// Before they work together, ranks compare what they are; the one that differs is named.
World& agreed(World& world, const Config& config, const Dataset& data) {
    if (world.size() == 1) return world;
    std::vector<std::pair<std::string, std::string>> facts = {
        {"version", KEEL_VERSION}, {"build", build_hash()}, {"processor", KEEL_ARCH}, {"data", data_hash(data)}};
    if (device_of(config) == Device::cpu && config.model.dtype == "bf16")
        facts.emplace_back("what multiplies bf16", name_of(*bf16_unit_of(config.run.bf16_by)));
    for (const std::string& key : setting_names())
        if (key != "run.threads") facts.emplace_back("--" + key, value_text(config, key));  // threads may differ by host
    expect_agreement(*world.everyone("start"), facts);
    return world;
}

// Ranks of one host share its processors, unless the user says how many threads each takes.
int threads_of_rank(const Config& config, const World& world) {
    if (config.run.threads > 0) return static_cast<int>(config.run.threads);
    return std::max(1, available_cpus() / world.local_size());
}

// What the finished model is to continue must fit, and that is known now: afterwards it would cost the report.
void check_prompt(const Run& run) {
    const std::string& prompt = run.config.train.sample_prompt;
    if (prompt.empty()) return;
    if (!run.tokenizer) fail_usage("--train.sample_prompt needs --data.tokenizer, which turns text into tokens");
    if (const auto tokens = run.tokenizer->encode(prompt).size(); static_cast<std::int64_t>(tokens) >= run.config.data.seq_len)
        fail_usage("--train.sample_prompt has ", tokens, " tokens, and --data.seq_len holds ", run.config.data.seq_len,
                   "; shorten it");
}

// What a part of start-up makes.
template <class Make> auto timed(StartupDials& startup, Startup part, Make&& make) {
    const StartupDials::Scope scope(startup, part);
    return make();
}

// The run is as old as the first of its ranks. Hosts have no clock in common but the time of day.
void agree_on_start(Run& run) {
    const double own = unix_seconds() - run.ledger.wall_seconds();
    double newest = -own;
    run.ranks.world.all_reduce_max(run.stream, View<double>(&newest, {1}));
    run.ledger.begin_earlier(own + newest), run.startup.begin_earlier(own + newest);
}

}  // namespace

Run::Run(Config asked, World* given)
    : config(resolved(std::move(asked), given ? given->size() : 1)),
      tokenizer(load_tokenizer(config)),
      tokenizer_json(tokenizer ? tokenizer->to_json() : std::string()),
      companions(tokenizer_companions(config)),
      data(timed(startup, Startup::data, [&] {
          return Dataset(dataset_spec(config, tokenizer, config.data.train, Part::train, config.data.shuffle));
      })),
      own_world(make_world(config, given)),
      world(own_world ? *own_world : *given),
      standing(world),
      heartbeat(config.watch.heartbeat_s, config.run.dir, standing),
      watchdog(config.watch, standing),
      mesh(timed(startup, Startup::groups, [&] {
          return Mesh(agreed(world, config, data), resolve_mesh(config.parallel, world.size()), config.model.tied);
      })),
      ranks(ranks_of(mesh)),
      schedule(config),
      stream(threads_of_rank(config, world)),
      gpu(device_of(config) == Device::cpu ? nullptr : open_gpu(device_of(config), gpu_of_rank(device_of(config), world))),
      queue(gpu ? gpu->make_stream() : nullptr),
      model(nullptr),
      skip(config.fault.skip),
      loader(data, loader_spec(config)) {
    use_bf16_unit(*bf16_unit_of(config.run.bf16_by));
    if (config.run.hopper) allow_hopper(*queue);
    const bool first = world.rank() == 0;
    if (gpu) read_products(gpu->device(), config.run.dir);  // before any is met
    agree_on_start(*this);
    if (config.model.dtype == "f16") loss_scale.emplace(config.optim);
    startup.enter(Startup::data);
    check_data(*this, data);
    check_prompt(*this);
    if (config.watch.self_test) {
        if (gpu) device_test.emplace(Backend(*gpu, *queue, stream));
        test_devices(*this);
        if (config.watch.self_test_interval == 0) device_test.reset();
    }
    if (const auto spec = valid_spec(config, tokenizer)) {
        valid_data.emplace(*spec);
        check_data(*this, *valid_data);
        const std::pair<std::string, std::string> fact{"validation data", data_hash(*valid_data)};
        if (world.size() > 1) expect_agreement(ranks.world, {&fact, 1});
        valid_loader.emplace(*valid_data, loader_spec(config));
    }
    if (tokenizer) token_bytes = keel::token_bytes(*tokenizer, config.model.vocab);
    startup.enter(Startup::checkpoint);
    if (first) {  // a failure here ends the other ranks, which wait below
        lock.emplace(config.run.dir);
        prepare_checkpoint_root(checkpoint_root());
    }
    int damaged = 0;
    const std::optional<CheckpointInfo> saved = checkpoint_to_resume(*this, damaged);

    startup.enter(Startup::model);
    if (gpu) expect_own_gpus(ranks.world, world.host(), gpu->bus_id());
    const Backend backend = gpu ? Backend(*gpu, *queue, stream) : Backend(stream);
    model = make_model(config, backend, training_use(config, ranks.place), ranks);
    executor = std::make_unique<Executor>(config, backend.stream, ranks, *model);
    graph.emplace(backend, config.run.graph && can_be_one_graph(config));
    if (!config.inject.faults.empty()) inject.emplace(config, backend, world.rank(), world.size(), *model);
    findings.emplace(config.run.dir, ranks.world, world.host(), config.ckpt.resume != "none");
    replicas.emplace(config, stream, ranks, *model, world.host(), *findings);
    if (config.fault.mode != "disabled") {
        replay.emplace(config, backend, ranks, *model, world.host(), *findings,
                       [this](const StepPlan& plan, std::span<const std::int64_t> micro_batches) {
                           return dump_samples(config.run.dir, progress.steps + 1, loader, plan, micro_batches);
                       });
        executor->tap([this](int micro_batch, int chunk, int slot) { replay->forward(micro_batch, chunk, slot); });
    }
    if (inject || replay)
        model->gradients().tap([this](int param, View<float> x) {
            if (inject) inject->gradient(param, x);
            if (replay) replay->gradient(param, x);
        });
    startup.enter(Startup::checkpoint);
    saver.emplace(config, world, ranks.world, *model, checkpoint_root());
    std::optional<LocalCheckpoints::Found> local;
    if (config.ckpt.resume == "auto") local = saver->find_local(saved ? saved->step : 0, warn);
    else saver->discard_local_after(saved ? saved->step : -1);
    // Beginning again at step 0 in their place would in time delete what may still be mended.
    if (!saved && !local && damaged > 0)
        fail("no checkpoint in ", checkpoint_root().string(), " is good; mend one, or start anew with --ckpt.resume none");
    if (saved) config_json = read_checkpoint_file(saved->path, "config.json").value_or("");
    else if (local && !config.ckpt.init.empty()) config_json = open_model(config.ckpt.init).config_json;
    if (local) {
        resume(*this, local->state, local->path, [&] { saver->load(*local); });
        if (first) std::fprintf(stderr, "keel: going on from the local checkpoint of step %lld\n", static_cast<long long>(local->step));
    } else if (saved) {
        resume(*this, saved->state, saved->path, [&] {
            load_checkpoint(ranks.world, saved->path, state_pieces(*model, Pieces::to_load));
        });
    } else {
        startup.enter(Startup::optimizer);
        model->init(config.train.seed);
        if (!config.ckpt.init.empty()) {
            const ModelSource source = open_model(config.ckpt.init);
            load_params(source, *model, ranks.world);
            model->master_from_params();
            config_json = source.config_json;
        }
    }
    if (inject && first) warn(inject->warning(progress.steps + 1));
    startup.enter(Startup::load);
    begin_observing(*this);
    std::vector<std::string> gpus = gpus_of_host(*this, ranks.world);
    RankRates rates = timed(startup, Startup::ceiling, [&] { return measure_rates(ranks.world, backend, model->dtype(), world.host()); });
    if (config.watch.even)
        if (const std::string why = expect_even(rates); first && !why.empty()) warn(why);
    if (!first) return;
    // Whoever starts anew, or further back, begins another history: the next automatic resume must not find the old one.
    if (config.ckpt.resume != "auto")
        if (const auto aside = set_aside_checkpoints(checkpoint_root(), saved ? saved->step : -1))
            std::fprintf(stderr, "keel: later checkpoints of an earlier start are now in %s\n", aside->c_str());
    write_file_atomically(fs::path(config.run.dir) / "config.toml", to_toml(config));
    observe = std::make_unique<Observe>(
        config,
        RunFacts{.parameters = parameter_count(config.model).total(), .matmul_peak = rates.sum(), .rates = std::move(rates),
                 .device_peak = datasheet_peak(config, gpu.get()),
                 .planned_bytes = model->plan().peak_bytes(), .memory_table = model->plan().table(),
                 .total_samples = schedule.total_samples(), .total_steps = schedule.total_steps(), .threads = stream.threads() * world.size(),
                 .ranks = world.size(), .sources = sources_of(data), .gpus = std::move(gpus)},
        ledger);
    findings->to_log([this](const char* line) { observe->tell(line); });
}

void test_devices(Run& run) {
    self_test(run.world, run.inject ? run.inject->tampering() : Tampering{});
    if (run.device_test) run.device_test->run(run.world.host());
}

void tell_profiler(Run& run) {
    const std::int64_t step = run.progress.steps + 1;
    if (run.gpu && step == run.config.profile.start) run.gpu->profile(true);
    if (run.gpu && step == run.config.profile.stop) run.gpu->profile(false);
}

void save_checkpoint(Run& run) {
    run.standing.enter("checkpoint", run.progress.steps);
    const Ledger::Scope scope(run.ledger, Phase::checkpoint);
    std::vector<ExtraFile> extra = run.companions;
    if (!run.tokenizer_json.empty()) extra.push_back({"tokenizer.json", run.tokenizer_json});
    if (!run.config_json.empty()) extra.push_back({"config.json", run.config_json});
    run.model->gradients().need_all();
    run.record([&](Observe& observe) { observe.record_saving(run.progress); });
    run.record([&](Observe&) { write_products(run.gpu ? run.gpu->device() : Device::cpu, run.config.run.dir); });
    heed(run, run.saver->save(run.stream, run.progress, state_now(run), extra), false);
    run.restart_picture();
}

void tend_saves(Run& run, bool stepped, bool last) {
    if (!run.saver->under_way() && !(stepped && run.saver->local_due(run.progress))) return;
    const Ledger::Scope scope(run.ledger, Phase::checkpoint);
    run.standing.enter("checkpoint", run.progress.steps);
    heed(run, run.saver->settle(last), last);
    if (!stepped || !run.saver->local_due(run.progress)) return;
    run.model->gradients().need_all();
    const std::string problem = run.saver->save_locally(run.progress, state_now(run));
    if (!problem.empty()) run.record([&](Observe&) { warn(problem); });
}

std::filesystem::path finish(Run& run, const char* why) {
    Ending ending = record_end(run);
    if (!run.observe) return {};
    run.standing.enter("report", run.progress.steps);
    std::string& sample = ending.sample;
    if (const std::string& prompt = run.config.train.sample_prompt;
        !prompt.empty() && std::string_view(why) == "done") {
        try {
            std::unique_ptr<Model> whole;  // from the checkpoint just written, where this rank holds a part only, or on a GPU
            if (run.world.size() > 1 || run.gpu) {
                const ModelSource source = open_model(run.checkpoint_root());
                whole = make_model(source.config, run.stream, {.tokens = 1, .positions = 1, .head_chunk = 1, .training = false});
                load_params(source, *whole);
            }
            const auto decoder = make_decoder(run.config, run.stream, whole ? *whole : *run.model, run.config.data.seq_len);
            sample = prompt + generate(*decoder, *run.tokenizer, prompt, {.seed = run.config.train.seed});
        } catch (const Error& e) {  // no room for the cache, for example: the report is worth more than its sample
            std::fprintf(stderr, "keel: warning: no sample: %s\n", e.what());
        }
    }
    return run.observe->finish(run.progress, why, ending);
}

}  // namespace keel
