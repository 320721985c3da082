// engine/parallel/mesh.h: which rank does what: a mesh with an axis per kind of parallelism, and its groups.
//
// `order` names the axes from the fastest to the slowest; rank = sum of coordinate × stride, where the first axis has
// stride 1 and each next one the stride of the one before times its size. So tp ranks are neighbours, and lie in one
// machine. Experts see the same ranks as another mesh: (expert_tp, ep, what is left, pp). All of it is a pure function
// of the shape.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"

namespace keel {

struct MeshShape {
    int tp = 1, cp = 1, ep = 1, dp = 1, pp = 1;
    std::string order = "tp-cp-ep-dp-pp";  // or "tp-cp-ep-pp-dp"
    int expert_tp = 0;                     // 0: as tp

    int ranks() const { return tp * cp * dp * pp; }
    bool has_experts() const { return ep > 1 || expert_tp > 0; }
    int experts_tp() const { return expert_tp ? expert_tp : tp; }
    int experts_dp() const { return ranks() / (experts_tp() * ep * pp); }
};

// The shape of `world` ranks: dp is what tp, cp and pp leave. Whatever makes no mesh is refused, by the names of the
// flags. `wanted.dp` of 0 takes what is left; another must be that. `virtual_stages` is the model's parts per pipeline
// stage.
MeshShape mesh_shape(int world, MeshShape wanted, int virtual_stages = 1);

struct Coordinates {
    int tp = 0, cp = 0, dp = 0, pp = 0;
    bool operator==(const Coordinates&) const = default;
};
Coordinates coordinates(const MeshShape& shape, int rank);
int rank_at(const MeshShape& shape, const Coordinates& at);

// Every group over these axes ("dp-cp"): its members differ in those axes only, the fastest first; groups are counted
// over the other axes, the fastest first. With `experts` in the experts' mesh: axes tp, ep, dp, pp.
using RankLists = std::vector<std::vector<int>>;
RankLists mesh_groups(const MeshShape& shape, std::string_view axes, bool experts = false);

// By the name of the group: tp cp dp pp dp_cp mp tp_cp tp_dp tp_dp_cp embd pos_embd, and ep expt_tp tp_ep tp_ep_pp
// expt_dp. embd: of each pipeline the first stage, and the last one if it holds the same embedding. pos_embd: the first
// stage.
RankLists named_groups(const MeshShape& shape, std::string_view name, bool tied = false);

// Contiguous levels of a list of ranks, the fastest first: sizes 2,2,4 of 16 ranks give pairs at level 0.
RankLists level_groups(std::span<const int> ranks, std::span<const int> sizes, int level);

// "rank  tp cp dp pp  host", a line per rank; of more than 64 ranks the first and the last.
std::string rank_map(const MeshShape& shape, std::span<const std::string> hosts);

// The groups that one rank belongs to, made once, in one order on every rank, and handed in to whoever needs them. A
// rank that is in no embd or pos_embd has one of its own, alone.
class Mesh {
public:
    // Collective over the world. `with` names the groups to make; "world" and "beside" (dp_cp once more, for the thread
    // that communicates while others compute) are names too.
    static std::span<const std::string_view> training();  // what a run uses; over MPI each group takes memory
    static std::span<const std::string_view> dense();     // all but the experts' groups
    Mesh(World& world, const MeshShape& shape, bool tied, std::span<const std::string_view> with = training());

    const MeshShape& shape() const { return shape_; }
    const Coordinates& at() const { return at_; }
    bool first_stage() const { return at_.pp == 0; }
    bool last_stage() const { return at_.pp == shape_.pp - 1; }

    Group& world() const { return need("world", "the run"); }
    Group& tp() const { return need("tp", "tensor parallelism"); }
    Group& cp() const { return need("cp", "context parallelism"); }
    Group& dp() const { return need("dp", "data parallelism"); }
    Group& pp() const { return need("pp", "the pipeline"); }
    Group& dp_cp() const { return need("dp_cp", "the gradients"); }
    Group& beside() const { return need("beside", "overlapped communication"); }
    Group& mp() const { return need("mp", "the model-parallel group"); }
    Group& embd() const { return need("embd", "the tied embedding"); }

    // The group of that name; fails, naming `component`, if it was not made.
    Group& need(std::string_view name, std::string_view component) const;

    // Bytes this rank sent, by the name of the group.
    std::vector<std::pair<std::string, Traffic>> traffic() const;
    // rank_map of this world, the same on all ranks. Collective.
    std::string map() const;

private:
    MeshShape shape_;
    Coordinates at_;
    std::string host_;
    std::map<std::string, std::unique_ptr<Group>, std::less<>> groups_;
};

}  // namespace keel
