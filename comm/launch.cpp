#include "comm/launch.h"

#include <unistd.h>

#include <charconv>
#include <optional>
#include <vector>

#include "kernels/base/error.h"

namespace keel {
namespace {

class Reader {
public:
    explicit Reader(const Environment& all) : all_(all) {}
    bool has(const std::string& name) const { return text(name) != nullptr; }
    // The number a variable holds; nothing where it is not set.
    std::optional<int> number(const std::string& name) const {
        const std::string* value = text(name);
        if (!value) return std::nullopt;
        int n = 0;
        const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), n);
        if (error != std::errc() || end != value->data() + value->size())
            fail_usage(concat(name, " is \"", *value,
                              "\" in the environment; it must be a number. Start keel by its launcher, or unset it"));
        return n;
    }
    const std::string* text(const std::string& name) const {
        const auto found = all_.find(name);
        return found == all_.end() || found->second.empty() ? nullptr : &found->second;
    }

private:
    const Environment& all_;
};

struct Family {
    const char* launcher;
    std::string rank, world, local_rank, local_size;  // names of variables
};
const Family families[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};

// The entry of "8(x2),4" for node `node`: 8, 8, 4; -1 where there is none.
int tasks_of_node(const std::string& text, int node) {
    const char *at = text.data(), *end = at + text.size();
    while (at < end) {
        int tasks = 0, times = 1;
        const auto [after, error] = std::from_chars(at, end, tasks);
        if (error != std::errc()) return -1;
        at = after;
        if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
            const auto [close, wrong] = std::from_chars(at + 2, end, times);
            if (wrong != std::errc() || close == end || *close != ')') return -1;
            at = close + 1;
        }
        if (node < times) return tasks;
        node -= times;
        if (at < end && *at++ != ',') return -1;
    }
    return -1;
}

void expect_range(const Launch& of, const Family& f) {
    if (of.world < 1) fail_usage(concat(f.world, " is ", of.world, "; there is at least one rank"));
    if (of.rank < 0 || of.rank >= of.world)
        fail_usage(
            concat(f.rank, " is ", of.rank, ", but ", f.world, " is ", of.world, ": ranks are 0…", of.world - 1));
    if (of.local_size != -1 && (of.local_size < 1 || of.local_size > of.world))
        fail_usage(concat(f.local_size, " is ", of.local_size, ", but ", f.world, " is ", of.world));
    if (of.local_rank < -1 || (of.local_size != -1 && of.local_rank >= of.local_size) || of.local_rank > of.rank)
        fail_usage(
            concat(f.local_rank, " is ", of.local_rank, ", which cannot be with rank ", of.rank, " of ", of.world,
                   of.local_size == -1 ? std::string() : concat(" and ", of.local_size, " ranks on this machine")));
}

// What a family says; nothing if it is absent.
std::optional<Launch> read(const Reader& env, Family f) {
    const bool slurm = std::string(f.launcher) == "Slurm";
    if (slurm) {
        if (!env.has("SLURM_STEP_ID") && !env.has("SLURM_STEPID"))
            return std::nullopt;  // no step: srun did not start this
        if (!env.has(f.world)) f.world = "SLURM_NTASKS";
    }
    const auto rank = env.number(f.rank), world = env.number(f.world);
    if (!rank && !world) return std::nullopt;
    if (!rank || !world)
        fail_usage(concat(rank ? f.rank : f.world, " is set, but ", rank ? f.world : f.rank, " is not: half of what ",
                          f.launcher, " sets. Start keel by mpirun or srun, or unset it"));
    Launch launch{
        f.launcher, *rank, *world, env.number(f.local_rank).value_or(-1), env.number(f.local_size).value_or(-1), ""};
    if (slurm)  // tasks of this node: exact where the step's list is there
        for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
            if (const std::string* tasks = env.text(name)) {
                const int n = tasks_of_node(*tasks, env.number("SLURM_NODEID").value_or(0));
                if (n > 0 && n <= launch.world) launch.local_size = n;
                break;
            }
    if (launch.world == 1) launch.local_rank = 0, launch.local_size = 1;
    expect_range(launch, f);
    return launch;
}

std::string words(const Launch& of) { return concat(of.launcher, " says rank ", of.rank, " of ", of.world); }

// mpirun and torchrun start one helper per node by srun, and what the helper starts inherits its variables.
bool is_helper_step(const Launch& slurm) { return slurm.local_size == 1; }

}  // namespace

Environment environment() {
    Environment all;
    for (char** at = environ; at && *at; ++at) {
        const std::string entry = *at;
        if (const std::size_t equals = entry.find('='); equals != std::string::npos)
            all[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
    return all;
}

Launch read_launch(const Environment& environment) {
    const Reader env(environment);
    std::optional<Launch> chosen;
    for (const Family& family : families) {
        const std::optional<Launch> launch = read(env, family);
        if (!launch) continue;
        if (!chosen) {
            chosen = launch;
            continue;
        }
        if (launch->rank == chosen->rank && launch->world == chosen->world) {
            // torchrun's variables beside those of a launcher that connects: believe the latter.
            if (chosen->launcher == "torchrun") chosen = launch;
            continue;
        }
        if (launch->launcher == "Slurm" && is_helper_step(*launch) && launch->world < chosen->world) continue;
        fail_usage(concat("two launchers contradict each other: ", words(*chosen), ", ", words(*launch),
                          ". Start keel by one of them, from a shell without the variables of the other"));
    }
    Launch launch = chosen.value_or(Launch());
    if (launch.launcher == "torchrun" && launch.world > 1)
        fail_usage(concat(
            "RANK, WORLD_SIZE and the like are set for ", launch.world,
            " ranks, but nothing that connects them: keel writes no network protocol of its own. Start it by mpirun "
            "or srun; on one machine `keel train --parallel.…` alone is enough, as ranks are threads",
            launch.local_rank == -1 ? ". There is no LOCAL_RANK: if a Kubernetes operator set these, RANK counts pods, "
                                      "and mpirun must be started inside of them"
                                    : ""));
    if (!chosen && env.number("SLURM_NTASKS").value_or(1) > 1)
        launch.note = concat("This is a Slurm job of ", *env.number("SLURM_NTASKS"),
                             " tasks, but srun did not start this process: it runs alone. For all tasks: srun keel …");
    return launch;
}

}  // namespace keel
