#include "engine/parallel/mesh.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "comm/agree.h"

namespace keel {
namespace {

struct Axis {
    std::string name;
    int size;
};

std::vector<std::string> split(std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find('-', at), text.size());
        parts.emplace_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

int size_of(const MeshShape& s, std::string_view axis, bool experts) {
    if (axis == "tp") return experts ? s.experts_tp() : s.tp;
    if (axis == "cp") return experts ? 1 : s.cp;
    if (axis == "ep") return experts ? s.ep : 1;
    if (axis == "dp") return experts ? s.experts_dp() : s.dp;
    if (axis == "pp") return s.pp;
    return 0;
}

std::vector<Axis> axes_of(const MeshShape& shape, bool experts) {
    std::vector<Axis> axes;
    for (const std::string& name : split(shape.order)) axes.push_back({name, size_of(shape, name, experts)});
    return axes;
}

// Indices into a mixed-radix number, fastest digit first. Groups run over the digits in `inside`.
RankLists enumerate(std::span<const int> sizes, const std::vector<bool>& inside) {
    int groups = 1, members = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) (inside[i] ? members : groups) *= sizes[i];
    RankLists lists(static_cast<std::size_t>(groups), std::vector<int>(static_cast<std::size_t>(members)));
    for (int g = 0; g < groups; ++g)
        for (int m = 0; m < members; ++m) {
            int rank = 0, stride = 1, of_group = g, of_member = m;
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                int& digit = inside[i] ? of_member : of_group;
                rank += digit % sizes[i] * stride;
                digit /= sizes[i];
                stride *= sizes[i];
            }
            lists[static_cast<std::size_t>(g)][static_cast<std::size_t>(m)] = rank;
        }
    return lists;
}

void check_order(const MeshShape& shape) {
    const std::vector<std::string> names = split(shape.order);
    for (const std::string& name : names) {
        if (size_of(shape, name, false) == 0)
            fail_usage("the order of axes \"", shape.order, "\" has \"", name,
                       "\", which is not one of tp, cp, ep, dp, pp");
        if (std::count(names.begin(), names.end(), name) > 1)
            fail_usage("the order of axes \"", shape.order, "\" has ", name, " twice");
    }
    for (const char* name : {"tp", "cp", "ep", "dp", "pp"})
        if (std::max(size_of(shape, name, false), size_of(shape, name, true)) > 1 &&
            std::find(names.begin(), names.end(), name) == names.end())
            fail_usage("the order of axes \"", shape.order, "\" has no ", name, ", which has more than one rank");
    if (shape.has_experts() && names.back() != "pp" && shape.pp > 1 && shape.experts_dp() != shape.dp)
        fail_usage("the order of axes \"", shape.order, "\" must end in pp, as experts have ", shape.experts_dp(),
                   " replicas and the rest ", shape.dp);
}

// What the groups of a name run over; nothing for those that are no product of axes.
struct Named {
    std::string_view name, axes;
    bool experts;
};
constexpr Named products[] = {
    {"dp_cp", "dp-cp", false}, {"dp", "dp", false},       {"cp", "cp", false},       {"mp", "tp-pp", false},
    {"tp", "tp", false},       {"pp", "pp", false},       {"tp_dp_cp", "tp-dp-cp", false},
    {"tp_dp", "tp-dp", false}, {"tp_cp", "tp-cp", false}, {"ep", "ep", true},        {"tp_ep", "tp-ep", true},
    {"expt_tp", "tp", true},   {"tp_ep_pp", "tp-ep-pp", true}, {"expt_dp", "dp", true}};

}  // namespace

MeshShape mesh_shape(int world, MeshShape s, int virtual_stages) {
    for (const auto& [name, size] : {std::pair{"tp", s.tp}, {"cp", s.cp}, {"ep", s.ep}, {"pp", s.pp}})
        if (size < 1) fail_usage("--parallel.", name, " is ", size, "; it must be at least 1");
    if (s.dp < 0) fail_usage("--parallel.dp is ", s.dp, "; it must be at least 1, or 0 for what is left");
    if (s.expert_tp < 0) fail_usage("the experts' tp is ", s.expert_tp, "; it must be at least 1, or 0 for tp");
    const std::int64_t copy = std::int64_t{1} * s.tp * s.cp * s.pp;
    if (world < 1 || world % copy != 0)
        fail_usage(std::to_string(world), " ranks cannot be cut into replicas of ", copy, " (--parallel.tp ", s.tp,
                   " x cp ", s.cp, " x pp ", s.pp, "); start a multiple of ", copy, " ranks, or change these");
    const int left = static_cast<int>(world / copy);
    if (s.dp != 0 && s.dp != left)
        fail_usage("--parallel.dp is ", s.dp, ", but ", world, " ranks are ", left, " replicas of ", copy, " (tp ",
                   s.tp, " x cp ", s.cp, " x pp ", s.pp, "); start ", copy * s.dp, " ranks, or leave dp out");
    s.dp = left;
    const std::int64_t experts = std::int64_t{1} * s.experts_tp() * s.ep * s.pp;
    if (world % experts != 0)
        fail_usage(std::to_string(world), " ranks cannot be cut into replicas of ", experts, " for the experts (tp ",
                   s.experts_tp(), " x --parallel.ep ", s.ep, " x pp ", s.pp, ")");
    check_order(s);
    if (s.has_experts() && mesh_groups(s, "pp") != mesh_groups(s, "pp", true))
        fail_usage("with the order of axes \"", s.order,
                   "\" a pipeline of the experts has other ranks than one of the rest");
    if (virtual_stages > 1 && s.pp == 1)
        fail_usage("--parallel.chunks is ", virtual_stages,
                   ", but there is one pipeline stage; virtual stages need --parallel.pp 2");
    return s;
}

RankLists mesh_groups(const MeshShape& shape, std::string_view axes, bool experts) {
    const std::vector<std::string> wanted = split(axes);
    std::vector<int> sizes;
    std::vector<bool> inside;
    for (const Axis& axis : axes_of(shape, experts)) {
        sizes.push_back(axis.size);
        inside.push_back(std::find(wanted.begin(), wanted.end(), axis.name) != wanted.end());
    }
    return enumerate(sizes, inside);
}

Coordinates coordinates(const MeshShape& shape, int rank) {
    if (rank < 0 || rank >= shape.ranks()) fail("rank ", rank, " is not in a mesh of ", shape.ranks());
    Coordinates at;
    for (const Axis& axis : axes_of(shape, false)) {
        const int digit = rank % axis.size;
        rank /= axis.size;
        if (axis.name == "tp") at.tp = digit;
        if (axis.name == "cp") at.cp = digit;
        if (axis.name == "dp") at.dp = digit;
        if (axis.name == "pp") at.pp = digit;
    }
    return at;
}

int rank_at(const MeshShape& shape, const Coordinates& at) {
    int rank = 0, stride = 1;
    for (const Axis& axis : axes_of(shape, false)) {
        const int digit = axis.name == "tp" ? at.tp : axis.name == "cp" ? at.cp : axis.name == "dp" ? at.dp
                                                  : axis.name == "pp" ? at.pp : 0;
        if (digit < 0 || digit >= axis.size)
            fail(concat(axis.name, " coordinate ", digit, " is not in 0…", axis.size - 1));
        rank += digit * stride;
        stride *= axis.size;
    }
    return rank;
}

RankLists named_groups(const MeshShape& shape, std::string_view name, bool tied) {
    for (const Named& product : products)
        if (product.name == name) return mesh_groups(shape, product.axes, product.experts);
    if (name != "embd" && name != "pos_embd") fail(concat("a mesh has no groups called ", name));
    RankLists lists = mesh_groups(shape, "pp");
    for (std::vector<int>& list : lists) {
        const std::vector<int> stages = list;
        list = {stages.front()};
        if (name == "embd" && tied && stages.size() > 1) list.push_back(stages.back());
    }
    return lists;
}

RankLists level_groups(std::span<const int> ranks, std::span<const int> sizes, int level) {
    std::vector<bool> inside(sizes.size());
    inside.at(static_cast<std::size_t>(level)) = true;
    std::size_t product = 1;
    for (const int size : sizes) product *= static_cast<std::size_t>(size);
    if (product != ranks.size()) fail("levels of ", product, " ranks, but there are ", ranks.size());
    RankLists lists = enumerate(sizes, inside);
    for (std::vector<int>& list : lists)
        for (int& index : list) index = ranks[static_cast<std::size_t>(index)];
    return lists;
}

std::string rank_map(const MeshShape& shape, std::span<const std::string> hosts) {
    constexpr int most = 64, first = 48, last = 8;
    std::string text = " rank    tp   cp   dp   pp  host\n";
    for (int rank = 0; rank < shape.ranks(); ++rank) {
        if (shape.ranks() > most && rank == first) {
            rank = shape.ranks() - last;
            text += concat("  …      (", rank - first, " more)\n");
        }
        const Coordinates at = coordinates(shape, rank);
        char line[64];
        std::snprintf(line, sizeof line, "%5d %5d%5d%5d%5d  ", rank, at.tp, at.cp, at.dp, at.pp);
        text += line + hosts[static_cast<std::size_t>(rank)] + "\n";
    }
    return text;
}

std::span<const std::string_view> Mesh::training() {
    static constexpr std::string_view names[] = {"world", "dp_cp", "beside", "cp", "tp", "pp", "embd"};
    return names;
}

std::span<const std::string_view> Mesh::dense() {
    static constexpr std::string_view names[] = {"world", "dp_cp", "beside", "dp",    "cp",    "mp",
                                                 "tp",    "pp",    "embd",   "pos_embd", "tp_dp_cp", "tp_dp", "tp_cp"};
    return names;
}

Mesh::Mesh(World& world, const MeshShape& shape, bool tied, std::span<const std::string_view> with)
    : shape_(mesh_shape(world.size(), shape)), at_(coordinates(shape_, world.rank())), host_(world.host()) {
    for (const std::string_view name : with) {
        const RankLists lists = name == "world" ? mesh_groups(shape_, shape_.order)
                                                : named_groups(shape_, name == "beside" ? "dp_cp" : name, tied);
        std::vector<int> members = {world.rank()};
        for (const std::vector<int>& list : lists)
            if (std::find(list.begin(), list.end(), world.rank()) != list.end()) members = list;
        groups_[std::string(name)] = world.group(std::string(name), members);
    }
}

Group& Mesh::need(std::string_view name, std::string_view component) const {
    const auto found = groups_.find(name);
    if (found != groups_.end()) return *found->second;
    std::string made;
    for (const auto& [other, group] : groups_) made += (made.empty() ? "" : ", ") + other;
    fail(concat(component, " needs the group ", name, ", but this mesh was made with ", made.empty() ? "none" : made,
                " only"));
}

std::vector<std::pair<std::string, Traffic>> Mesh::traffic() const {
    std::vector<std::pair<std::string, Traffic>> all;
    for (const auto& [name, group] : groups_)
        if (group->size() > 1) all.emplace_back(name, group->traffic());
    return all;
}

std::string Mesh::map() const { return rank_map(shape_, gather_strings(world(), host_)); }

}  // namespace keel
