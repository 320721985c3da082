// Which ranks form which group: the worked tables, every rejection, and a mesh of real groups.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "comm/threads.h"
#include "engine/parallel/mesh.h"

namespace keel {
namespace {

const MeshShape worked = {.tp = 2, .cp = 2, .dp = 2, .pp = 2};  // 16 ranks: rank = tp + 2 cp + 4 dp + 8 pp

template <class Call> std::string refusal(Call call) {
    try {
        call();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST(Mesh, GroupsOfSixteenRanksAreTheWorkedTable) {
    const std::pair<const char*, RankLists> table[] = {
        {"tp", {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}},
        {"cp", {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}},
        {"dp", {{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}}},
        {"pp", {{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}}},
        {"dp_cp", {{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}},
        {"mp", {{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}},
        {"tp_cp", {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}},
        {"tp_dp", {{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}}},
        {"tp_dp_cp", {{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}},
        {"embd", {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}},
        {"pos_embd", {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}},
    };
    for (const auto& [name, lists] : table) EXPECT_EQ(named_groups(worked, name), lists) << name;
    EXPECT_EQ(named_groups(worked, "embd", true), named_groups(worked, "pp"));
    EXPECT_EQ(named_groups(worked, "pos_embd", true), named_groups(worked, "pos_embd"));
}

TEST(Mesh, Rank13IsAt1011AndBack) {
    EXPECT_EQ(coordinates(worked, 13), (Coordinates{.tp = 1, .cp = 0, .dp = 1, .pp = 1}));
    for (const char* order : {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"}) {
        MeshShape shape = worked;
        shape.order = order;
        for (int rank = 0; rank < 16; ++rank) EXPECT_EQ(rank_at(shape, coordinates(shape, rank)), rank);
    }
    EXPECT_NE(refusal([] { (void)coordinates(worked, 16); }).find("16"), std::string::npos);
    EXPECT_NE(refusal([] { (void)rank_at(worked, {.cp = 2}); }).find("cp coordinate 2"), std::string::npos);
}

TEST(Mesh, TheOtherOrderIsTheWorkedTable) {
    MeshShape shape = worked;
    shape.order = "tp-cp-ep-pp-dp";
    shape = mesh_shape(16, shape);
    const RankLists pp = named_groups(shape, "pp"), dp = named_groups(shape, "dp");
    EXPECT_EQ(RankLists(pp.begin(), pp.begin() + 5), (RankLists{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}}));
    EXPECT_EQ(RankLists(dp.begin(), dp.begin() + 2), (RankLists{{0, 8}, {1, 9}}));
    EXPECT_EQ(named_groups(shape, "mp"), (RankLists{{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}}));
    EXPECT_EQ(named_groups(shape, "dp_cp"), (RankLists{{0, 2, 8, 10}, {1, 3, 9, 11}, {4, 6, 12, 14}, {5, 7, 13, 15}}));
}

TEST(Mesh, ExpertsSeeTheSameRanksAsAnotherMesh) {
    MeshShape shape = worked;
    shape.ep = 2;
    shape = mesh_shape(16, shape);
    EXPECT_EQ(shape.experts_dp(), 2);
    const RankLists ep = named_groups(shape, "ep"), dp = named_groups(shape, "expt_dp");
    EXPECT_EQ(RankLists(ep.begin(), ep.begin() + 4), (RankLists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
    EXPECT_EQ(RankLists(dp.begin(), dp.begin() + 4), (RankLists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
    EXPECT_EQ(named_groups(shape, "tp_ep"), named_groups(worked, "tp_cp"));
    EXPECT_EQ(named_groups(shape, "expt_tp"), named_groups(worked, "tp"));
    EXPECT_EQ(named_groups(shape, "tp_ep_pp"), (RankLists{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));

    shape.ep = 4;
    shape.expert_tp = 1;
    shape = mesh_shape(16, shape);
    EXPECT_EQ(named_groups(shape, "ep"), (RankLists{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
    const RankLists left = named_groups(shape, "expt_dp");
    EXPECT_EQ(RankLists(left.begin(), left.begin() + 2), (RankLists{{0, 4}, {1, 5}}));
}

TEST(Mesh, LevelsOfContextParallelRanksAreTheWorkedExample) {
    std::vector<int> ranks(16);
    std::iota(ranks.begin(), ranks.end(), 0);
    const int sizes[] = {2, 2, 4};
    const auto first = [&](int level, std::size_t n) {
        const RankLists all = level_groups(ranks, sizes, level);
        return RankLists(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
    };
    EXPECT_EQ(first(0, 2), (RankLists{{0, 1}, {2, 3}}));
    EXPECT_EQ(first(1, 3), (RankLists{{0, 2}, {1, 3}, {4, 6}}));
    EXPECT_EQ(first(2, 2), (RankLists{{0, 4, 8, 12}, {1, 5, 9, 13}}));
    const int wrong[] = {2, 2};
    EXPECT_NE(refusal([&] { (void)level_groups(ranks, wrong, 0); }).find("there are 16"), std::string::npos);
}

TEST(Mesh, GroupsOfAnyNameCoverEveryRankOnce) {
    for (const char* name : {"tp", "cp", "dp", "pp", "dp_cp", "mp", "tp_cp", "tp_dp", "tp_dp_cp", "ep", "expt_tp",
                             "tp_ep", "tp_ep_pp", "expt_dp"})
        for (const char* order : {"tp-cp-ep-dp-pp", "pp-dp-ep-cp-tp", "tp-cp-ep-pp-dp"}) {
            const MeshShape shape = {.tp = 2, .cp = 3, .ep = 3, .dp = 2, .pp = 4, .order = order};
            std::multiset<int> seen;
            for (const auto& list : named_groups(shape, name)) seen.insert(list.begin(), list.end());
            std::multiset<int> all;
            for (int r = 0; r < 48; ++r) all.insert(r);
            EXPECT_EQ(seen, all) << name << " in " << order;
        }
}

TEST(Mesh, WhatIsLeftOfTheWorldAreReplicas) {
    const MeshShape trillion =
        mesh_shape(3072, {.tp = 8, .dp = 0, .pp = 64});  // Narayanan et al. 2021, table 1, the 1T row
    EXPECT_EQ(trillion.dp, 6);
    EXPECT_EQ(trillion.ranks(), 3072);
    EXPECT_EQ(mesh_shape(1, {.dp = 0}).dp, 1);
}

TEST(Mesh, WhatMakesNoMeshIsRefusedByTheNamesOfTheFlags) {
    const auto says = [](int world, const MeshShape& shape, const char* text, int virtual_stages = 1) {
        const std::string message = refusal([&] { (void)mesh_shape(world, shape, virtual_stages); });
        EXPECT_NE(message.find(text), std::string::npos) << "got: " << message;
    };
    says(3000, {.tp = 8, .dp = 0, .pp = 64},
         "3000 ranks cannot be cut into replicas of 512 (--parallel.tp 8 x cp 1 x pp 64)");
    says(0, {.dp = 0}, "0 ranks");
    says(8, {.tp = 0, .dp = 0}, "--parallel.tp is 0");
    says(8, {.pp = -2}, "--parallel.pp is -2");
    says(8, {.cp = 0}, "--parallel.cp is 0");
    says(8, {.ep = 0}, "--parallel.ep is 0");
    says(8, {.dp = -1}, "--parallel.dp is -1");
    says(8, {.tp = 2, .dp = 3},
         "--parallel.dp is 3, but 8 ranks are 4 replicas of 2 (tp 2 x cp 1 x pp 1); start 6 ranks");
    says(8, {.tp = 2, .ep = 3, .dp = 0}, "replicas of 6 for the experts");
    says(8, {.dp = 0, .expert_tp = -1}, "experts' tp is -1");
    says(8, {.tp = 2, .dp = 0, .order = "tp-xp-dp-pp"}, "\"xp\", which is not one of");
    says(8, {.tp = 2, .dp = 0, .order = "tp-dp-tp-pp"}, "has tp twice");
    says(8, {.tp = 2, .cp = 2, .dp = 0, .order = "tp-ep-dp-pp"}, "has no cp");
    says(8, {.ep = 2, .dp = 0, .order = "tp-cp-dp-pp"}, "has no ep");
    says(16, {.tp = 2, .cp = 2, .ep = 4, .dp = 0, .pp = 2, .order = "tp-cp-ep-pp-dp"}, "must end in pp");
    says(16, {.ep = 2, .dp = 0, .pp = 2, .order = "ep-pp-tp-cp-dp", .expert_tp = 1}, "must end in pp");
    says(16, {.tp = 2, .cp = 2, .ep = 4, .dp = 0, .pp = 2, .order = "tp-pp-cp-ep-dp", .expert_tp = 1},
         "has other ranks");
    says(4, {.tp = 2, .dp = 0}, "--parallel.chunks is 2", 2);
    EXPECT_EQ(refusal([] { (void)mesh_shape(4, {.tp = 2, .dp = 0, .pp = 2}, 2); }), "");
}

TEST(Mesh, MapNamesEveryRanksPlaceAndHost) {
    const MeshShape shape = mesh_shape(4, {.tp = 2, .dp = 0, .pp = 2});
    const std::vector<std::string> hosts = {"one", "one", "two", "two"};
    EXPECT_EQ(rank_map(shape, hosts),
              " rank    tp   cp   dp   pp  host\n"
              "    0     0    0    0    0  one\n"
              "    1     1    0    0    0  one\n"
              "    2     0    0    0    1  two\n"
              "    3     1    0    0    1  two\n");
    const std::vector<std::string> many(3072, "node");
    const std::string text = rank_map(mesh_shape(3072, {.tp = 8, .dp = 0, .pp = 64}), many);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 48 + 1 + 8);
    EXPECT_NE(text.find("(3016 more)"), std::string::npos);
    EXPECT_NE(text.find(" 3071     7    0    5   63  node"), std::string::npos);
}

TEST(Mesh, OwnsTheGroupsOfItsRank) {
    run_threads(8, {.deadline_s = 30}, [](World& world) {
        const Mesh mesh(world, {.tp = 2, .dp = 0, .pp = 2}, true, Mesh::dense());
        EXPECT_EQ(mesh.shape().dp, 2);
        const Coordinates at = coordinates(mesh.shape(), world.rank());
        EXPECT_EQ(mesh.tp().rank(), at.tp);
        EXPECT_EQ(mesh.pp().rank(), at.pp);
        EXPECT_EQ(mesh.dp().rank(), at.dp);
        EXPECT_EQ(mesh.cp().size(), 1);
        EXPECT_EQ(mesh.embd().size(), 2);
        EXPECT_EQ(mesh.need("pos_embd", "positions").size(), 1);
        EXPECT_EQ(mesh.beside().members(), mesh.dp_cp().members());
        EXPECT_NE(&mesh.beside(), &mesh.dp_cp());
        EXPECT_EQ(mesh.first_stage(), world.rank() < 4);
        EXPECT_EQ(mesh.last_stage(), world.rank() >= 4);
        Stream stream(1, 64, 64);
        double sum = world.rank();
        mesh.mp().all_reduce(stream, View<double>(&sum, {1}));
        double want = 0;
        for (const int rank : mesh.mp().members()) want += rank;
        EXPECT_EQ(sum, want);
        EXPECT_NE(mesh.map().find("    7     1    0    1    1  " + world.host()), std::string::npos);
        std::int64_t bytes = 0;
        for (const auto& [name, traffic] : mesh.traffic()) bytes += name == "mp" ? traffic.total() : 0;
        EXPECT_EQ(bytes, 12);  // 2 (n-1)/n of 8 bytes, n = 4
    });
}

TEST(Mesh, AComponentThatLacksItsGroupIsNamedWithIt) {
    SoloWorld world;
    const std::string_view only[] = {"world", "tp"};
    const Mesh mesh(world, {}, false, only);
    EXPECT_EQ(mesh.tp().size(), 1);
    const std::string message = refusal([&] { (void)mesh.need("cp", "ring attention"); });
    EXPECT_EQ(message, "ring attention needs the group cp, but this mesh was made with tp, world only");
    EXPECT_NE(refusal([&] { (void)named_groups({}, "xx"); }).find("no groups called xx"), std::string::npos);
}

}  // namespace
}  // namespace keel
